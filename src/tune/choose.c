/* SPDX-License-Identifier: Apache-2.0 */
#include "tune/choose.h"

#include <stdio.h>
#include <string.h>

typedef struct rule {
    hki_op op;
    unsigned where; /* any of these places, and what else must be so */
    uint32_t max_ranks;
    size_t max_bytes;
    const char *name;
} rule;

#define ANY UINT32_MAX
#define KIB(n) ((size_t)(n) << 10)
#define MIB(n) ((size_t)(n) << 20)
enum {
    NEAR = HKI_NEAR | HKI_NEAR_CROWDED, FAR = HKI_FAR | HKI_FAR_CROWDED, CROWDED = HKI_NEAR_CROWDED | HKI_FAR_CROWDED, ALL = NEAR | FAR,
    POWERS = 1 << 8,     /* the ranks are a power of two */
    HOSTS = 1 << 9,      /* they are several hosts' of as many ranks each */
    NEIGHBOURS = 1 << 10 /* they were not dealt to hosts in turn */
};

/* First match wins; a rule whose algorithm is not there or cannot do the call is passed over. Where ranks outnumber CPUs, what counts
 * for small vectors is not the number of rounds but the number of messages of all ranks together: every one wakes somebody. */
static const rule rules[] = {
    {HKI_ALL_REDUCE, ALL & ~CROWDED, 2, KIB(48), "one_shot"},
    {HKI_ALL_REDUCE, HKI_FAR_CROWDED | HOSTS, ANY, KIB(4), "reduce_broadcast"},
    {HKI_ALL_REDUCE, HKI_FAR_CROWDED | HOSTS, ANY, MIB(1), "two_level_direct"},
    {HKI_ALL_REDUCE, CROWDED, ANY, KIB(48), "reduce_broadcast"},
    {HKI_ALL_REDUCE, HKI_NEAR, 16, KIB(8), "one_shot"},
    {HKI_ALL_REDUCE, HKI_NEAR, ANY, KIB(2), "recursive_doubling"},
    {HKI_ALL_REDUCE, NEAR, ANY, SIZE_MAX, "direct"},
    {HKI_ALL_REDUCE, HKI_FAR, 2, KIB(512), "one_shot"},
    {HKI_ALL_REDUCE, HKI_FAR, ANY, KIB(8), "recursive_doubling"},
    {HKI_ALL_REDUCE, HKI_FAR | POWERS | NEIGHBOURS, ANY, KIB(256), "halving_doubling"},
    {HKI_ALL_REDUCE, FAR | HOSTS, ANY, MIB(1), "two_level_direct"},
    {HKI_ALL_REDUCE, FAR | HOSTS, ANY, SIZE_MAX, "two_level"},
    {HKI_ALL_REDUCE, FAR | HOSTS, ANY, SIZE_MAX, "two_level_direct"},
    {HKI_ALL_REDUCE, FAR, ANY, MIB(1), "circulant"},
    {HKI_ALL_REDUCE, HKI_FAR, ANY, MIB(4), "circulant"},
    {HKI_ALL_REDUCE, FAR, ANY, SIZE_MAX, "ring"},
    {HKI_ALL_REDUCE, FAR, ANY, SIZE_MAX, "direct"},

    {HKI_ALL_GATHER, NEAR, ANY, SIZE_MAX, "direct"},
    {HKI_ALL_GATHER, FAR | HOSTS, ANY, KIB(16), "bruck"},
    {HKI_ALL_GATHER, FAR | HOSTS, ANY, SIZE_MAX, "two_level"},
    {HKI_ALL_GATHER, HKI_FAR_CROWDED, 4, KIB(128), "recursive_doubling"},
    {HKI_ALL_GATHER, FAR, ANY, KIB(256), "bruck"},
    {HKI_ALL_GATHER, FAR, ANY, SIZE_MAX, "ring"},
    {HKI_ALL_GATHER_V, ALL, ANY, SIZE_MAX, "direct"},

    {HKI_REDUCE_SCATTER, NEAR, ANY, SIZE_MAX, "direct"},
    {HKI_REDUCE_SCATTER, FAR | HOSTS, ANY, MIB(1), "two_level_direct"},
    {HKI_REDUCE_SCATTER, FAR | HOSTS, ANY, SIZE_MAX, "two_level"},
    {HKI_REDUCE_SCATTER, FAR | HOSTS, ANY, SIZE_MAX, "two_level_direct"},
    {HKI_REDUCE_SCATTER, HKI_FAR_CROWDED, 3, KIB(128), "recursive_halving"},
    {HKI_REDUCE_SCATTER, HKI_FAR_CROWDED, ANY, KIB(512), "circulant"},
    {HKI_REDUCE_SCATTER, HKI_FAR, ANY, MIB(1), "direct"},
    {HKI_REDUCE_SCATTER, FAR, ANY, SIZE_MAX, "ring"},
    {HKI_REDUCE_SCATTER, FAR, ANY, SIZE_MAX, "direct"},
    {HKI_REDUCE_SCATTER_V, ALL, ANY, SIZE_MAX, "direct"},

    {HKI_BROADCAST, FAR, ANY, KIB(64), "binomial"},
    {HKI_BROADCAST, FAR, 2, SIZE_MAX, "binomial"},
    {HKI_BROADCAST, FAR | NEIGHBOURS, 32, SIZE_MAX, "chain"},
    {HKI_BROADCAST, FAR, ANY, KIB(256), "binomial"},
    {HKI_BROADCAST, FAR, ANY, SIZE_MAX, "scatter_all_gather"},
    {HKI_BROADCAST, NEAR, ANY, SIZE_MAX, "binomial"},
    {HKI_REDUCE, ALL, ANY, SIZE_MAX, "binomial"},

    {HKI_ALL_TO_ALL, NEAR, ANY, KIB(16), "direct"},
    {HKI_ALL_TO_ALL, HKI_FAR_CROWDED, ANY, KIB(64), "bruck"},
    {HKI_ALL_TO_ALL, HKI_FAR, ANY, KIB(2), "bruck"},
    {HKI_ALL_TO_ALL, ALL, ANY, SIZE_MAX, "pairwise"},
};

size_t hki_call_bytes(const hki_call *c)
{
    const bool split = c->op != HKI_ALL_REDUCE && c->op != HKI_BROADCAST && c->op != HKI_REDUCE;
    return c->count * hk_dtype_size(c->dtype) * (split ? c->ranks : 1);
}

bool hki_forced_parse(const char *text, hki_forced *f, char error[160])
{
    char copy[512], *save = NULL;
    memset(f, 0, sizeof *f);
    if (!text) return true;
    snprintf(copy, sizeof copy, "%s", text);
    for (char *t = strtok_r(copy, ",;", &save); t; t = strtok_r(NULL, ",;", &save)) {
        char *colon = strchr(t, ':');
        hki_op only = HKI_OPS;
        if (colon) *colon = 0;
        if (colon && (!hki_op_parse(t, &only) || only >= HKI_COLLECTIVES))
            return snprintf(error, 160, "unknown operation '%.40s' in algorithm choice", t), false;
        const char *name = colon ? colon + 1 : t;
        bool any = false;
        for (unsigned op = 0; op < HKI_COLLECTIVES; op++) {
            if (only != HKI_OPS && only != op) continue;
            const hki_algo *a = hki_algo_find((hki_op)op, name);
            if (a) f->by_op[op] = a, any = true;
        }
        if (!any)
            return snprintf(error, 160, "unknown algorithm '%.40s'%s%.20s; `hocket info algos` lists them", name, colon ? " for " : "",
                            colon ? t : ""), false;
    }
    return true;
}

/* Folds that all associate in rank order give the same bits whatever the algorithm, window or transport. */
static bool able(const hki_algo *a, const hki_call *c, bool strict)
{
    if (strict && hki_op_reduces(c->op) && c->ranks > 2 && !(a->traits & HKI_FOLD_ONCE)) return false;
    return !hki_algo_objection(a, c);
}

/* Sums of f16 and bf16 that all ranks get are to be rounded once, or, where that halves what links between hosts carry, twice. */
static bool rounds_too_often(const hki_algo *a, const hki_call *c)
{
    const bool shared = c->op == HKI_ALL_REDUCE || c->op == HKI_REDUCE_SCATTER || c->op == HKI_REDUCE_SCATTER_V;
    return shared && c->ranks > 2 && (c->dtype == HK_F16 || c->dtype == HK_BF16) && !(a->traits & (HKI_FOLD_ONCE | HKI_FOLD_TWICE));
}

static const hki_algo *by_rules(const hki_call *c, hki_where where, bool strict)
{
    const size_t bytes = hki_call_bytes(c);
    for (size_t i = 0; i < HKI_COUNT(rules); i++) {
        const rule *r = &rules[i];
        if (r->op != c->op || !(r->where & where) || c->ranks > r->max_ranks || bytes > r->max_bytes) continue;
        if ((r->where & POWERS) && (c->ranks & (c->ranks - 1))) continue;
        if ((r->where & HOSTS) && !c->per_host) continue;
        if ((r->where & NEIGHBOURS) && c->dealt) continue;
        const hki_algo *a = hki_algo_find(c->op, r->name);
        if (a && able(a, c, strict) && !rounds_too_often(a, c)) return a;
    }
    return NULL;
}

static const hki_algo *first_able(const hki_call *c, bool strict)
{
    for (const hki_algo *const *a = hki_algos; *a; a++)
        if (((*a)->ops & HKI_OP_BIT(c->op)) && able(*a, c, strict)) return *a;
    return NULL;
}

const hki_algo *hki_choose(const hki_call *c, hki_where where, const hki_algo *forced, bool strict, char error[160])
{
    if (forced && able(forced, c, strict)) return forced;
    const hki_algo *a = by_rules(c, where, strict);
    if (!a) a = first_able(c, strict);
    if (!forced && a) return a;
    const char *why = forced ? hki_algo_objection(forced, c) : "no algorithm of this build can do it";
    snprintf(error, 160, "%s%s: %.90s%s%s", hki_op_name(c->op), forced ? " by the forced algorithm" : "",
             why ? why : "it depends on the ranks' order of arrival, which strict determinism excludes", a ? "; use " : "", a ? a->name : "");
    return NULL;
}
