/* SPDX-License-Identifier: Apache-2.0
 *
 * TCP lanes. A lane is one socket, dialled by its sender on first use, carrying framed messages one way; notices travel on any socket
 * in both directions. docs/wire.md is the standard of the bytes.
 *
 * One listening port a process. A connection says hello first {magic, version, communicator, from, to, channel}; one for a
 * communicator not yet known is parked, bounded and for a limited time. Everything read is validated before use.
 *
 * Back-pressure is TCP's own: at most `slots` complete messages are read ahead, the rest stays in the socket. */
#ifndef HKI_TCP_H
#define HKI_TCP_H

#include "net/net.h"

#define HKI_KNOWN 8 /* calls of each peer, and of our own, remembered for reports */

typedef struct hki_tcp hki_tcp;           /* of a process: listener, connections, epoll registrations */
typedef struct hki_tcp_comm hki_tcp_comm; /* of a communicator */

/* Opens the listening port; NULL with text in error. epoll: where sockets are registered. token: names this process. */
hki_tcp *hki_tcp_open(int epoll, uint64_t token, char error[160]);
void hki_tcp_close(hki_tcp *);
uint16_t hki_tcp_port_number(const hki_tcp *);
/* Something waits for the rate limit: ask again within a millisecond. */
bool hki_tcp_is_paced(const hki_tcp *);

hki_tcp_comm *hki_tcp_comm_open(hki_tcp *, const hki_shape *, hki_peer *const *peers, uint64_t pace_bytes_per_s);
/* Says goodbye on every socket and closes them. */
void hki_tcp_comm_close(hki_tcp_comm *);
hki_port *hki_tcp_port(hki_tcp_comm *, uint32_t channel);

/* Accepts, reads and writes what is possible now; true if anything moved. */
bool hki_tcp_progress(hki_tcp *);
/* What this rank is doing, sent along with every message and to whom it waits for. */
void hki_tcp_enter(hki_tcp_comm *, const hki_record *);
/* Asks rank what it is doing, and makes sure that its death is noticed; repeated calls are cheap. */
void hki_tcp_probe(hki_tcp_comm *, uint32_t rank, uint64_t now_us);
/* The last call that rank is known to have entered. */
bool hki_tcp_entered(hki_tcp_comm *, uint32_t rank, uint64_t seq, hki_record *);
void hki_tcp_fail(hki_tcp_comm *, const hki_notice *);
/* A notice that arrived from a peer, or one made here of a link that broke (status HK_PEER_LOST). */
bool hki_tcp_notice(hki_tcp_comm *, hki_notice *, uint64_t now_us);
/* Everything committed has left for the kernel. */
bool hki_tcp_flushed(hki_tcp_comm *);
bool hki_tcp_left(hki_tcp_comm *, uint32_t rank);

#endif
