/* SPDX-License-Identifier: Apache-2.0
 *
 * Recursive-halving reduce-scatter: in each round pairs of ranks swap and fold halves of what they still hold, neighbours first,
 * so that ranges of folded ranks are contiguous; the price is one hop at the end that brings blocks to their ranks.
 * floor(log2 P) + 1 rounds for powers of two, one more else; T = (L + 1) a + P n b + (P-1) n g. The same sums as all_reduce by
 * halving_doubling. Thakur, Rabenseifner & Gropp, IJHPCA 19(1), 2005. */
#include "algo/phases.h"

/* The member that ends with member g's range: bit i of its number chose the half in step i, so it is g's bits reversed. */
static uint32_t holder(hki_core k, uint32_t g)
{
    uint32_t v = 0;
    for (uint32_t i = 0; i < k.bits; i++) v = v << 1 | (g >> i & 1);
    return v;
}

static void emit(hki_plan *p, const hki_call *c)
{
    const uint32_t P = c->ranks, me = c->rank;
    const hki_core k = hki_core_of(P);
    const uint32_t from = hki_core_rank(k, holder(k, hki_core_member(k, me)));
    const bool extra = hki_core_is_extra(k, me);
    const hki_slice work = extra ? hki_blocks_of(HKI_TEMP, 0, 0) : hki_plan_temp(p, hki_in(c));

    hki_core_halve(p, c, k, work);
    if (!extra) {
        const hki_range held = hki_core_range(k, hki_core_member(k, me), k.bits);
        const hki_slice mine = hki_sub(work, held.lo, held.hi - held.lo);
        if (hki_slice_elems(p, mine)) hki_plan_finish(p);
        for (uint32_t r = held.lo; r < held.hi; r++) {
            if (r == me) hki_plan_copy(p, hki_out(c), hki_sub(work, r, 1));
            else hki_plan_send(p, r, hki_sub(work, r, 1));
        }
    }
    if (from != me) hki_plan_recv(p, from, hki_out(c));
}

static hki_cost cost(const hki_call *c)
{
    /* Blocks of palindromic members are home already, unless an extra's. */
    const hki_core k = hki_core_of(c->ranks);
    const uint64_t P = c->ranks, n = c->count, home = 1u << (k.bits + 1) / 2, hop = P > 2;
    return (hki_cost){.rounds = k.bits + (k.extras > 1) + hop, .messages = k.bits + (k.extras > 1 ? 2 : hop),
                      .busiest = (hop ? P : 1) * n, .total = ((P - 1) * P + P - home) * n};
}

const hki_algo hki_algo_reduce_scatter_recursive_halving = {
    .name = "recursive_halving",
    .summary = "ever smaller halves swapped, then one hop home: few rounds",
    .ops = HKI_OP_BIT(HKI_REDUCE_SCATTER) | HKI_OP_BIT(HKI_REDUCE_SCATTER_V),
    .span = HKI_SPAN_ALL,
    .traits = HKI_RANK_ORDER,
    .emit = emit,
    .cost = cost,
};
