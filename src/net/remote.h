/* SPDX-License-Identifier: Apache-2.0
 *
 * What a transport between hosts offers: a dozen verbs behind which everything of its own is hidden, so that a build without it still
 * stands. An *end* belongs to a process (listener, connections), a *remote comm* to a communicator of it. No verb waits, but `leave`
 * for a moment, so that its goodbye gets out. */
#ifndef HKI_REMOTE_H
#define HKI_REMOTE_H

#include "net/net.h"

#define HKI_KNOWN 8 /* calls of each peer, and of our own, remembered for reports */
#define HKI_TELL_US 200000

typedef struct hki_remote_end hki_remote_end;
typedef struct hki_remote_comm hki_remote_comm;

struct hki_remote {
    /* Opens the listening port and stores it; NULL with text in error. epoll: where descriptors are registered (data: 1, or a pointer).
     * token: names this process. */
    hki_remote_end *(*open)(int epoll, uint64_t token, uint16_t *port, char error[160]);
    void (*close)(hki_remote_end *);
    /* Accepts, reads and writes what is possible now; true if anything moved. *paced: something waits for the rate limit, ask again
     * within a millisecond. */
    bool (*progress)(hki_remote_end *, bool *paced);
    /* Joins a communicator; rate: bytes per second that this process may send, 0 = no limit. NULL without memory. */
    hki_remote_comm *(*join)(hki_remote_end *, const hki_shape *, hki_peer *const *peers, uint64_t rate);
    /* Says goodbye on every link and closes them. */
    void (*leave)(hki_remote_comm *);
    hki_port *(*port)(hki_remote_comm *, uint32_t channel);
    /* This rank has entered that call: sent along with its messages, and to ranks it probes. */
    void (*enter)(hki_remote_comm *, const hki_record *);
    /* Asks rank what it is doing, and makes sure that its death is noticed; repeated calls are cheap. */
    void (*probe)(hki_remote_comm *, uint32_t rank, uint64_t now_us);
    /* This rank waits, in the end for that one: told to whoever there is a link with, when it changes and each HKI_TELL_US, so that blame
     * finds its way along a chain of waiting. */
    void (*tell_wait)(hki_remote_comm *, uint32_t waiting_for, uint64_t now_us);
    /* Does rank say that it waits itself (within the last few HKI_TELL_US)? Then for whom in the end; not validated. */
    bool (*waits)(hki_remote_comm *, uint32_t rank, uint64_t now_us, uint32_t *waiting_for);
    /* Call `seq` of rank, if it is known to have entered it and it is among its last HKI_KNOWN. */
    bool (*entered)(hki_remote_comm *, uint32_t rank, uint64_t seq, hki_record *);
    /* Passes a notice to every rank there is a link with; when called again, dials the others to tell them too. true once each rank was
     * told, has left or is lost. */
    bool (*fail)(hki_remote_comm *, const hki_notice *);
    /* A notice that arrived from a peer, or one made here of a link that broke (HK_PEER_LOST, its body zero). */
    bool (*notice)(hki_remote_comm *, hki_notice *, uint64_t now_us);
    /* Has rank ended this communicator on its side? */
    bool (*left)(hki_remote_comm *, uint32_t rank);
};

#endif
