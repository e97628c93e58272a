/* SPDX-License-Identifier: Apache-2.0
 *
 * A port: one rank's end of one channel of a communicator, with a lane to and a lane from every rank. The only thing executors and
 * transports share.
 *
 * A lane is first in, first out, bounded and reliable. Messages are written in place (reserve, store, commit) and read in place
 * (peek, load, release). No verb ever waits: HKI_NOT_YET means "ask again later". reserve and peek may be repeated; they take
 * nothing until commit and release.
 *
 * A rank's sends on one port form one sequence whatever their destinations (they may share a ring of slots): commit them in the
 * order of the plan. After HKI_BROKEN the port is dead: port->status and port->culprit tell why. */
#ifndef HKI_LANE_H
#define HKI_LANE_H

#include "base/base.h"

typedef enum hki_go { HKI_GO, HKI_NOT_YET, HKI_BROKEN } hki_go;

/* What identifies a message: 64 bits over everything both ends must agree on, or the low 32 of them where space is short. */
typedef struct hki_msg {
    const void *data;
    size_t bytes;
    uint64_t fingerprint, mask; /* mask: which bits of the fingerprint travelled */
} hki_msg;

typedef struct hki_port hki_port;

typedef struct hki_port_ops {
    /* Room for one message of `bytes` (<= port->slot_bytes) to each of peers[0..n). at[0..*nat) are the places to write the payload
     * to; every one must be filled, and *nat <= n (ranks that share memory share one place). */
    hki_go (*reserve)(hki_port *, const uint32_t *peers, uint32_t n, size_t bytes, void **at, uint32_t *nat);
    void (*commit)(hki_port *, const uint32_t *peers, uint32_t n, size_t bytes, uint64_t fingerprint);
    /* The oldest unread message from peer. */
    hki_go (*peek)(hki_port *, uint32_t peer, hki_msg *);
    void (*release)(hki_port *, uint32_t peer);
    /* Messages committed to peer that it has not taken yet. */
    uint32_t (*unread)(hki_port *, uint32_t peer);
    void (*close)(hki_port *);
} hki_port_ops;

struct hki_port {
    const hki_port_ops *ops;
    uint32_t ranks, rank;
    size_t slot_bytes;
    hk_status status;   /* after HKI_BROKEN */
    uint32_t culprit;   /* the rank whose link broke or whose bytes are wrong */
    uint32_t holder;    /* after HKI_NOT_YET from reserve: the rank that has to take a message first */
    hk_link_stats stats;
};

static inline void hki_port_break(hki_port *p, hk_status status, uint32_t culprit)
{
    if (p->status) return;
    p->status = status;
    p->culprit = culprit;
}

#endif
