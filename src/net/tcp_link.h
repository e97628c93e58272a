/* SPDX-License-Identifier: Apache-2.0
 *
 * A link: one socket of a TCP lane, at either end. Internal to the transport.
 *
 * A lane's sender dials a socket on first use. Messages of any size go on it that way; small ones also the other way, from the higher to
 * the lower of its two ranks: a small exchange on one socket carries its acknowledgements along and takes about a third less time than on
 * two, while large ones are faster on two (measured over loopback). The lane's order is kept by the numbers of its messages. Notices travel
 * on any socket in both directions. Large messages may go on several sockets, each on the one with the least to do, for links that one
 * stream does not fill. Back-pressure is TCP's own: a few complete messages are read ahead, the rest stays in the socket.
 *
 *     out  dialled here; sends DATA, and CALL, FAIL, GOODBYE, WAIT; receives the latter and small DATA
 *     in   accepted here; the mirror image
 *
 * States go one way: DIALLING -> GREETING -> UP -> CLOSED. An accepted socket starts in GREETING; it is PARKED while its communicator
 * does not exist here yet. */
#ifndef HKI_TCP_LINK_H
#define HKI_TCP_LINK_H

#include "net/frame.h"
#include "net/remote.h"

typedef struct hki_remote_end hki_tcp;        /* of a process */
typedef struct hki_remote_comm hki_tcp_comm; /* of a communicator */

#define HKI_INBOX (HKI_FRAME_HEAD + 1024)
#define HKI_NOTES 2048
#define HKI_READ_AHEAD 4
#define HKI_ENDED 64

typedef enum hki_link_state { HKI_DIALLING, HKI_GREETING, HKI_PARKED, HKI_UP, HKI_CLOSED } hki_link_state;

#define HKI_SOCKETS 4     /* most sockets of a lane's direction */
#define HKI_BACKWARD 4096 /* bytes of the largest message that goes on a socket the other end has dialled */

/* A message on its way out: payload copied, or lent by its sender until it has left for the kernel; *unsent counts such. */
typedef struct hki_parcel { size_t bytes; const void *lent; uint32_t *unsent; } hki_parcel;

/* Where a rank wants the message of that number: hki_port_ops.expect. */
typedef struct hki_expected { void *place; size_t bytes; uint64_t fingerprint; uint32_t number; } hki_expected;

typedef struct hki_link {
    struct hki_link *next;         /* of the process */
    hki_tcp *tcp;
    hki_tcp_comm *comm;            /* NULL: not attached yet */
    int fd;
    hki_link_state state;
    bool out, want_in, want_out;   /* as registered with epoll */
    bool used;                     /* in: a message has come */
    bool told_end;                 /* our notice went out on it */
    uint32_t refused;              /* out: attempts in a row that were refused */
    bool goodbye;                  /* the peer said it; what follows is no failure */
    uint32_t peer, channel, index; /* index: which of the sockets of its direction */
    uint64_t since_us;             /* of the current state */
    uint32_t address;              /* out: which of the peer's addresses is being tried */
    hki_tcp_hello hello;           /* in: what was said */
    /* Bytes read and not understood yet. */
    uint8_t inbox[HKI_INBOX];
    size_t inbox_bytes;
    /* A ring of messages read ahead, ahead_room each. */
    uint8_t *read_ahead;
    size_t ahead_room;
    hki_frame frame[HKI_READ_AHEAD];
    uint8_t *place[HKI_READ_AHEAD]; /* NULL: in the ring; else the payload goes, or has gone, there */
    size_t got;                    /* payload bytes of the message being read */
    uint32_t first, complete;      /* oldest; complete ones */
    bool reading;                  /* the one after the complete ones has begun */
    hki_notice notice;             /* FAIL payload being read */
    /* A ring of messages to be sent: a head each, and queue_room for the payload unless it is lent. */
    uint8_t *queue;
    hki_parcel *parcels;
    size_t queue_room, sent;       /* sent: bytes of the oldest that have left */
    uint32_t q_first, q_used;
    /* Frames of our own (CALL, FAIL, GOODBYE): go out between messages. */
    uint8_t notes[HKI_NOTES];
    size_t notes_bytes, notes_sent;
    uint64_t told;                 /* sequence of the last call told by CALL */
} hki_link;

#define HKI_LENDS 64

typedef struct hki_tcp_port {
    hki_port port;
    hki_tcp_comm *comm;
    uint32_t channel;
    bool eager;                    /* looks at the awaited socket itself, at each peek */
    uint32_t *sent, *taken;        /* by rank: numbers of messages */
    uint64_t mark;                 /* of the last message that lent its payload */
    uint32_t unsent[HKI_LENDS];    /* by mark % HKI_LENDS: links on which it has not left yet */
} hki_tcp_port_t;

struct hki_remote_comm {
    struct hki_remote_comm *next;
    hki_tcp *tcp;
    hki_shape shape;
    hki_peer *const *peers;
    hki_link **out, **in;          /* by hki_tcp_at */
    uint32_t sockets;              /* each way, for large messages */
    hki_expected *expected;        /* [channel * ranks + peer] */
    hki_record *own;               /* HKI_KNOWN, by sequence */
    uint64_t entered;
    hki_record *known;             /* [peer * HKI_KNOWN + seq % HKI_KNOWN] */
    uint64_t *lost_us;             /* by peer: when its link broke, 0 = not */
    bool *left;                    /* by peer: said goodbye */
    struct hki_told_wait { uint64_t heard_us; uint32_t waiting_for; } *waits; /* by peer: what its last WAIT said, and when it came */
    uint64_t told_wait_us;         /* when this rank last told that it waits, and for whom */
    uint32_t told_wait_for;
    bool heard;                    /* a notice came */
    hki_notice notice;
    hki_notice told;               /* our own notice, for links that come up later */
    bool failed;
};

struct hki_remote_end {
    int epoll, listener;
    uint64_t token;                /* of this process's segment: who is meant by a hello */
    hki_tcp_comm *comms;
    hki_link *links;
    /* Communicators that have ended here, latest HKI_ENDED: who still asks is told how. */
    struct { uint64_t uid; uint32_t rank; hki_notice notice; } ended[HKI_ENDED];
    uint32_t nended;
    uint32_t parked;
    /* A token bucket for all that leaves: rate 0 = no limit. */
    uint64_t rate, bucket, filled_us;
    bool starved;                  /* of descriptors; said once */
    bool paced;                    /* something waits for the bucket */
};

static inline size_t hki_tcp_at(const hki_tcp_comm *c, uint32_t channel, uint32_t peer, uint32_t index)
{
    return ((size_t)channel * c->shape.ranks + peer) * HKI_SOCKETS + index;
}

/* ---- tcp_link.c */
hki_link *hki_link_new(hki_tcp *, int fd, bool out, hki_link_state);
void hki_link_free(hki_link *);
/* Reads and writes what is possible; true if bytes moved. A broken socket closes the link and tells its communicator. */
bool hki_link_read(hki_link *);
bool hki_link_write(hki_link *);
/* Sends a frame of our own between two messages; payload: a notice, or NULL. Dropped if there is no room: notes repeat what the peer can
 * ask again. */
void hki_link_note(hki_link *, const hki_frame *, const hki_notice *payload);
/* Once: why the communicator broke here, if it did. */
void hki_link_tell_end(hki_link *);
void hki_link_watch(hki_link *);
void hki_link_broke(hki_link *);
/* Greetings: sends ours, or acts on what came. */
void hki_link_greet(hki_link *, uint32_t welcome);
bool hki_link_attach(hki_link *, hki_tcp_comm *);
/* The memory of calls is their callers' again: nothing is stored there or read from there any more. */
void hki_tcp_let_go(hki_tcp_comm *);
/* ---- tcp.c */
hki_link *hki_tcp_dial_rank(hki_tcp_comm *, uint32_t peer, uint32_t channel, uint32_t index);
void hki_tcp_greeted(hki_link *); /* a hello came on an accepted link */
size_t hki_tcp_allowance(hki_tcp *, size_t want);
/* ---- tcp_port.c */
hki_port *hki_tcp_port(hki_tcp_comm *, uint32_t channel);

#endif
