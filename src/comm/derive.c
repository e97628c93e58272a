/* SPDX-License-Identifier: Apache-2.0
 * Communicators made from another: same engine, same peers, no bootstrap. Their identity is computed, so ranks agree on it without a
 * word; areas are found through the segments' directories, sockets are dialled on first use. */
#include "comm/comm.h"

#include "os/os.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void take_engine(hki_engine *e)
{
    if (!e->world) {
        char error[160];
        hk_status status;
        HKI_ASSERT(hki_engine_get(&status, error) == e);
        return;
    }
    atomic_fetch_add(&e->world_users, 1);
}

static hk_status make(hk_comm *parent, hk_comm **out, const uint32_t *members, uint32_t n, uint32_t rank, uint64_t uid)
{
    char error[160] = "out of memory";
    hki_peer **peers = hki_alloc(n * sizeof *peers);
    if (!peers) return hki_error(parent, HK_NO_MEMORY, "%s", error);
    for (uint32_t i = 0; i < n; i++) peers[i] = parent->peers[members[i]];
    take_engine(parent->engine);
    atomic_fetch_add(&parent->peer_block->users, 1);
    const hk_status status = hki_comm_make(out, parent->engine, &parent->settings, parent->peer_block, peers, n, rank, uid, error);
    if (!status) return HK_OK;
    hki_free(peers);
    atomic_fetch_sub(&parent->peer_block->users, 1);
    hki_engine_put(parent->engine);
    return hki_error(parent, status, "%s", error);
}

typedef struct claim { int64_t color, key; } claim;
typedef struct member { int64_t key; uint32_t rank; } member;

static int by_key(const void *a, const void *b)
{
    const member *x = a, *y = b;
    if (x->key != y->key) return x->key < y->key ? -1 : 1;
    return (x->rank > y->rank) - (x->rank < y->rank);
}

/* From everyone's claims to the members of my color, in order. */
static hk_status form(hk_comm *parent, const claim *all, uint64_t round, hk_comm **out)
{
    const uint32_t P = parent->shape.ranks, me = parent->shape.rank;
    member *m = hki_alloc(P * sizeof *m);
    uint32_t *members = hki_alloc(P * sizeof *members), n = 0, rank = 0;
    hk_status status = m && members ? HK_OK : hki_error(parent, HK_NO_MEMORY, "out of memory for a split of %u ranks", P);
    for (uint32_t r = 0; !status && r < P; r++)
        if (all[r].color == all[me].color) m[n++] = (member){all[r].key, r};
    if (!status) {
        qsort(m, n, sizeof *m, by_key);
        for (uint32_t i = 0; i < n; i++) {
            members[i] = m[i].rank;
            if (m[i].rank == me) rank = i;
        }
        status = make(parent, out, members, n, rank, hki_mix(hki_mix(parent->shape.uid, round << 1), (uint64_t)all[me].color));
    }
    hki_free(m);
    hki_free(members);
    return status;
}

HK_API hk_status hk_comm_split(hk_comm *parent, int color, int key, hk_comm **comm)
{
    hk_status status = hki_comm_usable(parent);
    if (status) return status;
    if (!comm) return hki_error(parent, HK_INVALID, "hk_comm_split: comm is NULL");
    *comm = NULL;
    if ((status = hki_outside_group(parent, "hk_comm_split"))) return status;
    if (color < -1) return hki_error(parent, HK_INVALID, "hk_comm_split: color %d: use a number >= 0, or -1 to take no part", color);
    const claim mine = {color, key};
    claim *all = hki_alloc(parent->shape.ranks * sizeof *all);
    if (!all) return hki_error(parent, HK_NO_MEMORY, "out of memory for a split");
    status = hk_all_gather(&mine, all, 2, HK_I64, parent, NULL, NULL);
    if (!status) parent->splits++;
    if (!status && color >= 0) status = form(parent, all, parent->splits, comm);
    hki_free(all);
    return status;
}

HK_API hk_status hk_comm_dup(hk_comm *parent, hk_comm **comm) { return hk_comm_split(parent, 0, parent ? hk_comm_rank(parent) : 0, comm); }

/* How often this process has made a group of that key from that parent; NULL without memory. The lock is held. */
static uint64_t *uses_of(hk_comm *parent, uint64_t key)
{
    struct hki_use *u = parent->uses;
    while (u && u->key != key) u = u->next;
    if (!u) {
        if (!(u = hki_alloc(sizeof *u))) return NULL;
        u->key = key;
        u->next = parent->uses;
        parent->uses = u;
    }
    return &u->uses;
}

HK_API hk_status hk_comm_create_group(hk_comm *parent, const int *ranks, int n, int tag, hk_comm **comm)
{
    hk_status status = hki_comm_usable(parent);
    if (status) return status;
    if (!comm || !ranks) return hki_error(parent, HK_INVALID, "hk_comm_create_group: %s is NULL", comm ? "ranks" : "comm");
    *comm = NULL;
    const int P = (int)parent->shape.ranks, me = (int)parent->shape.rank;
    if (n < 1 || n > P) return hki_error(parent, HK_INVALID, "hk_comm_create_group: n is %d, the parent has %d ranks", n, P);
    uint32_t *members = hki_alloc((size_t)n * sizeof *members), rank = UINT32_MAX;
    if (!members) return hki_error(parent, HK_NO_MEMORY, "out of memory for a group");
    uint64_t key = hki_mix(parent->shape.uid, (uint64_t)(uint32_t)tag << 32 | (uint32_t)n);
    for (int i = 0; i < n && !status; i++) {
        for (int j = 0; j < i; j++)
            if (ranks[j] == ranks[i]) status = hki_error(parent, HK_INVALID, "hk_comm_create_group: rank %d appears twice", ranks[i]);
        if (ranks[i] < 0 || ranks[i] >= P) status = hki_error(parent, HK_INVALID, "hk_comm_create_group: no rank %d in the parent", ranks[i]);
        else members[i] = (uint32_t)ranks[i];
        if (ranks[i] == me) rank = (uint32_t)i;
        key = hki_mix(key, (uint64_t)ranks[i]);
    }
    if (!status && rank == UINT32_MAX)
        status = hki_error(parent, HK_INVALID, "hk_comm_create_group: this rank (%d) is not among the members; only members call", me);
    if (!status) {
        hki_lock_take(&parent->engine->lock);
        uint64_t *uses = uses_of(parent, key);
        const uint64_t use = uses ? ++*uses : 0;
        hki_lock_give(&parent->engine->lock);
        status = use ? make(parent, comm, members, (uint32_t)n, rank, hki_mix(key, use)) : hki_error(parent, HK_NO_MEMORY, "out of memory for a group");
        if (status && use) { /* not made: the next attempt must mean the same as on the other members */
            hki_lock_take(&parent->engine->lock);
            --*uses;
            hki_lock_give(&parent->engine->lock);
        }
    }
    hki_free(members);
    return status;
}
