/* SPDX-License-Identifier: Apache-2.0
 *
 * A port: one rank's end of one channel of a communicator, with a lane to and a lane from every rank. The only thing executors and
 * transports share.
 *
 * A lane is first in, first out, bounded and reliable. Messages are written in place (reserve, store, commit) and read in place
 * (peek, load, release). No verb ever waits: HKI_NOT_YET means "ask again later". reserve and peek may be repeated; they take
 * nothing until commit and release. A commit follows its reserve at once, with the same arguments.
 *
 * How a message gets there is the transport's business. Where both ends see the memory it may go without a copy:
 *   by reference  the sender offers where the payload lies; the reader reads it there. The memory is lent until settled() says that
 *                 every reader has let go.
 *   by put        with a message of its own a rank told where it wants a later one from that peer; the sender stores it there.
 *
 * A rank's sends on one port form one sequence whatever their destinations (they may share a ring of slots): commit them in the
 * order of the plan. After HKI_BROKEN the port is dead: port->status and port->culprit tell why. */
#ifndef HKI_LANE_H
#define HKI_LANE_H

#include "base/base.h"

typedef enum hki_go { HKI_GO, HKI_NOT_YET, HKI_BROKEN } hki_go;

/* A message as its reader sees it. What identifies it: 64 bits over everything both ends must agree on, or the low 32 of them where
 * space is short. */
typedef struct hki_msg {
    const void *data;
    size_t bytes;
    uint64_t fingerprint, mask; /* mask: which bits of the fingerprint travelled */
    bool placed;                /* by put: it is already where this rank wanted it */
} hki_msg;

/* One message to each of peers[0..n), of bytes <= port->slot_bytes. The rest may be left zero: no ways around the copy. */
typedef struct hki_outgoing {
    const uint32_t *peers;
    uint32_t n;
    size_t bytes;
    uint64_t fingerprint;
    const void *lent;           /* where the payload lies once it is committed, and stays until settled; NULL: nowhere that lasts */
    /* Messages of one run that go from one rank to another are told apart by window and ordinal. */
    uint32_t window;
    const uint32_t *ordinal;    /* of this message, per peer; NULL: no puts */
    bool holds;                 /* the sender has peeked, and reads for this message, the oldest one from each of peers */
    void *wanted;               /* where this rank wants message `wanted_ordinal` of that window from peers[0]; NULL: nowhere */
    size_t wanted_bytes;
    uint32_t wanted_ordinal;
} hki_outgoing;

/* Places to store the payload at; every one must be filled. Those from `near` on are memory of the readers, which only they will read. */
typedef struct hki_places { void **at; uint32_t n, near; } hki_places;

typedef struct hki_port hki_port;

typedef struct hki_port_ops {
    /* Room for the message. places->at has room for n + 1; n == 0: the payload goes by reference and is not stored anywhere. */
    hki_go (*reserve)(hki_port *, const hki_outgoing *, hki_places *);
    /* Both at once, for a message of up to port->small_bytes (0: never); nothing is sent unless it gives HKI_GO. */
    hki_go (*send)(hki_port *, const uint32_t *peers, uint32_t n, const void *payload, size_t bytes, uint64_t fingerprint);
    /* Returns a mark if memory was lent, else 0. */
    uint64_t (*commit)(hki_port *, const hki_outgoing *);
    /* Have all readers let go of what was lent under that mark (up_to: and under all before it)? If not, port->holder is one of them. */
    bool (*settled)(hki_port *, uint64_t mark, bool up_to);
    /* Can any of [memory, memory + bytes) be lent, and be a place that is wanted? NULL: this port never can. */
    bool (*lendable)(hki_port *, const void *memory, size_t bytes);
    /* The oldest unread message from peer. */
    hki_go (*peek)(hki_port *, uint32_t peer, hki_msg *);
    /* The payload of the oldest unread message from peer, if it is there, up to small_bytes long, and has these bytes and this fingerprint;
     * else NULL: ask peek. NULL where small_bytes is 0. */
    const void *(*glance)(hki_port *, uint32_t peer, size_t bytes, uint64_t fingerprint);
    /* Before a peek: the oldest message from peer, if it has not begun to come, is so long and has this fingerprint, may be stored at
     * `place` as it comes, until it is released or the port breaks. NULL: this port stores nothing by itself. */
    void (*expect)(hki_port *, uint32_t peer, void *place, size_t bytes, uint64_t fingerprint);
    /* Lets go of it. If what it lent turns out to have been void, the port breaks. */
    void (*release)(hki_port *, uint32_t peer);
    /* Messages committed to peer that it has not taken yet. */
    uint32_t (*unread)(hki_port *, uint32_t peer);
    void (*close)(hki_port *);
} hki_port_ops;

struct hki_port {
    const hki_port_ops *ops;
    uint32_t ranks, rank;
    size_t slot_bytes, small_bytes;
    hk_status status;   /* after HKI_BROKEN */
    uint32_t culprit;   /* the rank whose link broke or whose bytes are wrong */
    uint32_t holder;    /* after HKI_NOT_YET from reserve, or settled: the rank that has to take a message first */
    hk_link_stats stats;
    uint64_t lent;      /* bytes sent that were lent or put */
};

static inline void hki_port_break(hki_port *p, hk_status status, uint32_t culprit)
{
    if (p->status) return;
    p->status = status;
    p->culprit = culprit;
}

#endif
