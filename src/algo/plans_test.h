/* SPDX-License-Identifier: Apache-2.0
 *
 * For tests: the plans of all ranks of one call. */
#ifndef HKI_PLANS_TEST_H
#define HKI_PLANS_TEST_H

#include "algo/algo.h"

enum { MOST_RANKS = 65 };

/* A call as all ranks make it; rank is filled in for each. Uneven forms: length(shape, P, from, to) elements a block. */
typedef struct world_call {
    hki_call call;
    unsigned shape;
} world_call;

typedef struct world_plans { hki_plan plan[MOST_RANKS], *at[MOST_RANKS]; } world_plans;

static inline hki_reduction sum_of(uint32_t ranks, hki_finish finish, bool commutes)
{
    return (hki_reduction){.op = HKI_SUM, .finish = finish, .divisor = ranks, .scale = 0.5, .commutes = commutes};
}

/* Elements that `from` has for `to`; all_gather_v: from's block; reduce_scatter_v: to's block. */
static inline size_t block_length(const world_call *w, uint32_t from, uint32_t to)
{
    const uint32_t P = w->call.ranks, a = w->call.op == HKI_REDUCE_SCATTER_V ? to : from,
                   b = w->call.op == HKI_ALL_TO_ALL_V ? to : a;
    switch (w->shape) {
    case 0: return 0;
    case 1: return 24;
    case 2: return (a * 7 + b * 3) % 5 == 1 ? 0 : (a * 5 + b * 11) % 97 + 1;
    case 3: return a == P / 2 ? 1000 : 0;
    default: return (a ^ b) & 1 ? 40 : 0;
    }
}

static inline void world_plans_init(world_plans *w)
{
    for (uint32_t r = 0; r < MOST_RANKS; r++) hki_plan_init(w->at[r] = &w->plan[r]);
}

static inline void world_plans_fini(world_plans *w)
{
    for (uint32_t r = 0; r < MOST_RANKS; r++) hki_plan_fini(&w->plan[r]);
}

static inline hk_status world_plans_build(world_plans *w, const hki_algo *a, const world_call *wc)
{
    size_t in[MOST_RANKS], out[MOST_RANKS];
    hk_status status = HK_OK;
    for (uint32_t r = 0; r < wc->call.ranks && !status; r++) {
        hki_call c = wc->call;
        c.rank = r;
        /* A gather's or scatter's other ranks have one buffer only. */
        if (r != c.root && (c.op == HKI_GATHER || c.op == HKI_SCATTER)) c.in_place = false;
        for (uint32_t k = 0; hki_op_uneven(c.op) && k < c.ranks; k++) {
            in[k] = c.op == HKI_REDUCE_SCATTER_V ? block_length(wc, 0, k) : block_length(wc, r, k);
            out[k] = block_length(wc, k, r);
        }
        if (c.op == HKI_REDUCE_SCATTER_V || c.op == HKI_ALL_TO_ALL_V) c.in_counts = in;
        if (c.op == HKI_ALL_GATHER_V || c.op == HKI_ALL_TO_ALL_V) c.out_counts = out;
        status = hki_algo_plan(a, &c, &w->plan[r]);
    }
    return status;
}

#endif
