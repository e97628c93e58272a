/* SPDX-License-Identifier: Apache-2.0
 * Plans by call signature: a set-associative cache, least recently used out. A miss rebuilds in the storage of the entry it replaces,
 * so once a shape was used its calls allocate nothing. */
#include "comm/comm.h"

#include <stdio.h>
#include <string.h>

static uint64_t factor_bits(const hki_reduction *r)
{
    uint64_t bits = 0;
    if (r->finish == HKI_FINISH_SCALE) memcpy(&bits, &r->scale, sizeof bits);
    return bits;
}

/* Two independent hashes of the vectors this rank was given. */
static void hash_vectors(const hki_call *c, uint64_t out[2])
{
    const size_t *const vectors[] = {c->in_counts, c->in_displs, c->out_counts, c->out_displs};
    for (unsigned k = 0; k < 2; k++) {
        out[k] = 0;
        for (unsigned i = 0; hki_op_uneven(c->op) && i < HKI_COUNT(vectors); i++)
            out[k] = vectors[i] ? hki_hash_bytes(out[k] + k * 977 + i, vectors[i], c->ranks * sizeof(size_t)) : hki_mix(out[k], i);
    }
}

/* What of the count vectors must agree: all_to_all_v's are each rank's own, its messages' lengths are compared instead. */
static uint64_t agreed_vector(const hki_call *c)
{
    const size_t *v = c->op == HKI_ALL_GATHER_V ? c->out_counts : c->op == HKI_REDUCE_SCATTER_V ? c->in_counts : NULL;
    return v ? hki_hash_bytes(7, v, c->ranks * sizeof *v) : 0;
}

static hk_status build(hk_comm *comm, hki_entry *e, const hki_key *key, const hki_call *c, char error[160])
{
    e->prepared = false;
    e->used = e->built = 0; /* until it is whole, neither the cache nor a memo may take it for what it was */
    const hki_algo *algo = hki_choose(c, hki_comm_where(comm), key->forced, comm->settings.strict, error);
    if (!algo) return HK_UNSUPPORTED;
    hk_status status = hki_algo_plan(algo, c, &e->plan);
    if (!status) status = hki_plan_hazards(&e->plan);
    if (status) {
        snprintf(error, 160, "%s by %s: %s", hki_op_name(c->op), algo->name, e->plan.error ? e->plan.error : hk_status_string(status));
        return status == HK_NO_MEMORY ? status : HK_UNSUPPORTED;
    }
    if (!hki_program_init(&e->program, &e->plan, comm->shape.slot_bytes)) return HK_NO_MEMORY;
    e->key = *key;
    e->built = ++comm->builds;
    return HK_OK;
}

static void describe(hk_comm *comm, hki_entry *e, const hki_call *c, int tag)
{
    const uint64_t extra = hki_op_uneven(c->op) ? agreed_vector(c) : factor_bits(&c->red);
    const char *name = e->plan.algorithm;
    hki_desc_of(c, tag, extra, (uint32_t)hki_hash_bytes(0, name, strlen(name)), &e->desc);
    e->fingerprint = hki_desc_fingerprint(comm->shape.uid, &e->desc);
}

static hki_entry *entry_new(void)
{
    hki_entry *e = hki_alloc(sizeof *e);
    if (e) hki_plan_init(&e->plan);
    return e;
}

static void entry_free(hki_entry *e)
{
    if (!e) return;
    hki_program_fini(&e->program);
    hki_plan_fini(&e->plan);
    hki_free(e);
}

/* The entry to replace in a set: an empty one, else the one unused for longest; NULL if all are in use. */
static hki_entry **victim(hki_entry **set)
{
    hki_entry **best = NULL;
    for (unsigned w = 0; w < HKI_CACHE_WAYS; w++) {
        if (!set[w]) return &set[w];
        if (set[w]->pins == 0 && (!best || set[w]->used < (*best)->used)) best = &set[w];
    }
    return best;
}

hki_entry *hki_cache_get(hk_comm *comm, const hki_call *c, const hki_algo *forced, int tag, hk_status *status, char error[160])
{
    hki_key key;
    memset(&key, 0, sizeof key); /* compared whole, padding included */
    key.op = c->op, key.dtype = c->dtype, key.root = c->root, key.in_place = c->in_place;
    key.count = c->count, key.redop = c->redop, key.factor = factor_bits(&c->red), key.forced = forced, key.tag = tag;
    if (hki_op_uneven(c->op)) hash_vectors(c, key.vector);
    uint64_t h = hki_mix(key.count, key.op | key.dtype << 8 | key.in_place << 16 | (uint64_t)key.root << 32);
    h = hki_mix(h, key.redop ^ (uintptr_t)forced ^ key.vector[0] ^ (uint64_t)key.tag << 48);
    hki_entry **set = comm->cache[h % HKI_CACHE_SETS], *e = NULL;
    for (unsigned w = 0; w < HKI_CACHE_WAYS && !e; w++)
        if (set[w] && set[w]->used && !memcmp(&set[w]->key, &key, sizeof key)) e = set[w];
    *status = HK_OK;
    if (!e) {
        hki_entry **at = victim(set);
        e = at && *at ? *at : entry_new();
        if (!e) return *status = HK_NO_MEMORY, NULL;
        *status = build(comm, e, &key, c, error);
        if (at) *at = e;
        else e->stray = true;
        if (*status) {
            if (e->stray) entry_free(e);
            return NULL;
        }
        describe(comm, e, c, tag);
    }
    e->used = ++comm->cache_clock;
    e->pins++;
    return e;
}

void hki_cache_unpin(hki_entry *e)
{
    if (--e->pins == 0 && e->stray) entry_free(e);
}

void hki_cache_free(hk_comm *comm)
{
    for (unsigned s = 0; s < HKI_CACHE_SETS; s++)
        for (unsigned w = 0; w < HKI_CACHE_WAYS; w++) entry_free(comm->cache[s][w]);
}
