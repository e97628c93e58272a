/* SPDX-License-Identifier: Apache-2.0
 *
 * Recursive doubling: in round i ranks that differ in bit i swap whole vectors and fold them. ceil(log2 P) rounds if P is a
 * power of two, else floor(log2 P) + 2: neighbours fold in pairs first and the odd ones get the result last.
 * T = L(a + n b + n g). Fewest rounds, so for small vectors. The ranks folded so far are always a contiguous range and the lower
 * range comes first: all ranks do the same sum. Thakur, Rabenseifner & Gropp, IJHPCA 19(1), 2005. */
#include "algo/phases.h"

static void emit(hki_plan *p, const hki_call *c)
{
    const hki_core k = hki_core_of(c->ranks);
    const uint32_t v = hki_core_member(k, c->rank);
    hki_slice mine = hki_core_enter(p, c, k, hki_out(c));

    /* Before round i `mine` is the fold of the ranks of members (v with its low i bits cleared) .. + 2^i. */
    for (uint32_t i = 0; mine.n && i < k.bits; i++) {
        const uint32_t peer = hki_core_rank(k, v ^ 1u << i);
        hki_plan_send(p, peer, mine);
        hki_fold_by_rank(p, c, peer, hki_out(c), mine);
        mine = hki_out(c);
    }
    hki_core_leave(p, c, k, hki_out(c));
}

static hki_cost cost(const hki_call *c)
{
    const hki_core k = hki_core_of(c->ranks);
    const uint64_t n = c->count, most = k.bits + (k.extras > 0), all = (uint64_t)k.members * k.bits + 2 * k.extras;
    return (hki_cost){.rounds = hki_core_rounds(k), .messages = most, .busiest = most * n, .total = all * n};
}

const hki_algo hki_algo_all_reduce_recursive_doubling = {
    .name = "recursive_doubling",
    .summary = "whole vectors swapped at doubling distance: fewest rounds, most bytes",
    .ops = HKI_OP_BIT(HKI_ALL_REDUCE),
    .span = HKI_SPAN_ALL,
    .traits = HKI_RANK_ORDER,
    .emit = emit,
    .cost = cost,
};
