/* SPDX-License-Identifier: Apache-2.0
 *
 * The small collectives by which ranks find out that they differ. Each ends alike on all ranks: a failure of one is a failure of all, in
 * the same call, so that none waits for a rank that has given up. */
#include "train/train.h"

#include <inttypes.h>
#include <stdio.h>

enum { SHOWN = 4 }; /* parameters, and ranks, that a sentence names */

static uint64_t hash_of_param(const hki_param *p)
{
    const uint64_t h = hki_mix(hki_mix(0, p->count), (uint64_t)p->dtype);
    return p->name ? hki_hash_bytes(h, p->name, strlen(p->name)) : h;
}

/* What ranks must have in common. Settings: all but the parameters. */
typedef struct common { uint64_t n, params, settings; } common;

static common common_of(const hk_buckets *b, const hki_layout *l)
{
    common c = {b->n, 0, hki_mix(hki_mix(l->bucket_bytes, l->first_bytes), b->op * 4 + b->allow_unused * 2u + b->check_hash)};
    for (size_t i = 0; i < b->n; i++) c.params = hki_mix(c.params, b->hashes[i] = hash_of_param(&b->params[i]));
    return c;
}

/* The lowest rank for which `so` holds; `ranks` if there is none. */
static hk_status lowest(hk_comm *comm, bool so, int64_t *rank)
{
    *rank = so ? hk_comm_rank(comm) : hk_comm_ranks(comm);
    return hk_all_reduce(rank, rank, 1, HK_I64, HK_MIN, comm, NULL, NULL);
}

/* All know that something differs. Finds the lowest rank that differs from rank 0, and in which parameter. */
static hk_status tell_difference(const hk_buckets *b, common mine, bool same_n)
{
    common first = mine;
    uint64_t at = 0;
    int64_t who = 0;
    hk_status status = hk_broadcast(&first, &first, 3, HK_U64, 0, b->comm, NULL, NULL);
    if (!status) status = lowest(b->comm, memcmp(&first, &mine, sizeof mine) != 0, &who);
    if (!status && same_n) {
        uint64_t *theirs = b->hashes; /* its content can be had again */
        status = hk_broadcast(theirs, theirs, b->n, HK_U64, 0, b->comm, NULL, NULL);
        while (at < b->n && theirs[at] == hash_of_param(&b->params[at])) at++;
    }
    common culprit = mine;
    uint64_t told[4] = {culprit.n, culprit.params, culprit.settings, at};
    if (!status) status = hk_broadcast(told, told, 4, HK_U64, (int)who, b->comm, NULL, NULL);
    if (status) return hki_train_failed(b, status, "comparing the parameters of ranks");
    if (told[0] != first.n)
        return hki_train_error(b, HK_INVALID, "rank %" PRId64 " has %" PRIu64 " parameters, rank 0 has %" PRIu64
                               ": all ranks must register the same", who, told[0], first.n);
    if (told[1] == first.params)
        return hki_train_error(b, HK_INVALID, "rank %" PRId64 "'s settings or sizes of buckets differ from rank 0's", who);
    const hki_param *p = &b->params[told[3]];
    return hki_train_error(b, HK_INVALID, "rank %" PRId64 "'s parameter %" PRIu64 " differs from rank 0's (here it is '%.80s', %s[%zu]): "
                           "all ranks must register the same parameters in the same order", who, told[3], p->name ? p->name : "",
                           hk_dtype_name(p->dtype), p->count);
}

hk_status hki_agree_same(hk_comm *comm, const hk_buckets *b, const hki_layout *l, hk_status status)
{
    int64_t failure[2] = {status, status ? hk_comm_rank(comm) : hk_comm_ranks(comm)};
    const hk_buckets anyone = {.comm = comm, .rank = (uint32_t)hk_comm_rank(comm)};
    hk_status sent = hk_all_reduce(failure, failure, 2, HK_I64, HK_MIN, comm, NULL, NULL);
    if (sent && status) return status;
    if (sent) return hki_train_failed(&anyone, sent, "agreeing on buckets");
    if (status) return status;
    if (failure[0])
        return hki_train_error(&anyone, (hk_status)failure[0], "rank %" PRId64 " could not make its buckets (%s): its own message tells why",
                               failure[1], hk_status_name((hk_status)failure[0]));
    const common c = common_of(b, l);
    uint64_t bounds[6] = {c.n, ~c.n, c.params, ~c.params, c.settings, ~c.settings}; /* lowest, and highest as the lowest complement */
    sent = hk_all_reduce(bounds, bounds, 6, HK_U64, HK_MIN, comm, NULL, NULL);
    if (sent) return hki_train_failed(b, sent, "agreeing on buckets");
    bool same = true;
    for (int i = 0; i < 6; i += 2) same &= bounds[i] == ~bounds[i + 1];
    return same ? HK_OK : tell_difference(b, c, bounds[0] == ~bounds[1]);
}

/* ---- Unused parameters ------------------------------------------------------------------------------------------------------- */

static bool missed(const hk_buckets *b, uint32_t rank, size_t i) { return b->missing[rank * b->words + i / 64] >> i % 64 & 1; }

typedef struct text { char at[HKI_SENTENCE - 200]; size_t n; } text;

static void add(text *t, const char *s)
{
    const size_t n = hki_min(strlen(s), sizeof t->at - 1 - t->n);
    memcpy(t->at + t->n, s, n);
    t->at[t->n += n] = 0;
}

/* "'w2' (parameter 3) on ranks 1, 2" */
static void add_param(text *t, const hk_buckets *b, size_t i)
{
    char word[140];
    uint32_t on = 0, shown = 0;
    for (uint32_t r = 0; r < b->ranks; r++) on += missed(b, r, i);
    if (b->params[i].name) snprintf(word, sizeof word, "'%.80s' (parameter %zu)", b->params[i].name, i);
    else snprintf(word, sizeof word, "parameter %zu", i);
    add(t, word);
    if (on == b->ranks && on > 1) return add(t, " on all ranks");
    add(t, on > 1 ? " on ranks" : " on rank");
    for (uint32_t r = 0; r < b->ranks && shown < SHOWN; r++) {
        if (!missed(b, r, i)) continue;
        snprintf(word, sizeof word, "%s %u", shown++ ? "," : "", r);
        add(t, word);
    }
    if (on <= shown) return;
    snprintf(word, sizeof word, " and %u more", on - shown);
    add(t, word);
}

hk_status hki_agree_missing(hk_buckets *b)
{
    const hk_status status = hk_all_gather(b->missing + b->rank * b->words, b->missing, b->words, HK_U64, b->comm, NULL, NULL);
    if (status) return hki_train_failed(b, status, "telling unused parameters");
    text t = {.n = 0};
    size_t missing = 0;
    for (size_t i = 0; i < b->n; i++) {
        bool any = false;
        for (uint32_t r = 0; r < b->ranks && !any; r++) any = missed(b, r, i);
        if (!any || ++missing > SHOWN) continue;
        if (missing > 1) add(&t, "; ");
        add_param(&t, b, i);
    }
    if (missing > SHOWN) {
        char more[40];
        snprintf(more, sizeof more, "; and %zu more", missing - SHOWN);
        add(&t, more);
    }
    return hki_train_error(b, HK_INVALID, "step %" PRIu64 ": never marked ready: %s. Counted as zeros; mark every parameter, or set "
                           "allow_unused", b->steps, t.at);
}

hk_status hki_agree_any(hk_buckets *b, bool mine, bool *any)
{
    uint32_t flag = mine;
    const hk_status status = hk_all_reduce(&flag, &flag, 1, HK_U32, HK_BOR, b->comm, NULL, NULL);
    *any = flag != 0;
    return status ? hki_train_failed(b, status, "asking for unused parameters") : HK_OK;
}

/* ---- Equal gradients --------------------------------------------------------------------------------------------------------- */

hk_status hki_agree_gradients(hk_buckets *b)
{
    uint64_t mine = 0;
    for (size_t i = 0; i < b->n; i++) {
        const hki_place *p = &b->layout.places[i];
        mine = hki_hash_bytes(mine, b->layout.buckets[p->bucket].memory + p->offset, b->params[i].bytes);
    }
    const hk_status status = hk_all_gather(&mine, b->by_rank, 1, HK_U64, b->comm, NULL, NULL);
    if (status) return hki_train_failed(b, status, "comparing gradients");
    for (uint32_t r = 1; r < b->ranks; r++)
        if (b->by_rank[r] != b->by_rank[0])
            return hki_train_error(b, HK_INVALID, "rank %u's gradients differ from rank 0's (unsynchronised?): the last micro-batch before an "
                                   "optimiser step must not be under hk_buckets_no_sync", r);
    return HK_OK;
}
