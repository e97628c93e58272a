/* SPDX-License-Identifier: Apache-2.0
 *
 * Circulant-graph all-reduce: reduce-scatter with skips ceil(P/2), ceil(P/4), .. 1, all-gather with the same skips backwards.
 * For every P it has both optima at once: 2 ceil(log2 P) rounds and 2(P-1)/P n bytes sent by each rank.
 * T = 2L a + 2(P-1)/P n b + (P-1)/P n g. Ranks combine out of order, so the operator must commute. J. L. Traff,
 * "Optimal, non-pipelined reduce-scatter and allreduce algorithms", arXiv:2410.14234, 2024. */
#include "algo/phases.h"

static void emit(hki_plan *p, const hki_call *c)
{
    const uint32_t P = c->ranks, me = c->rank;
    hki_circulant_reduce_scatter(p, c, hki_out_parts(c, me, (P + 1) / 2), hki_out_part(c, P, me));
    hki_circulant_all_gather(p, c);
}

static hki_cost cost(const hki_call *c)
{
    const uint64_t P = c->ranks, n = c->count;
    return (hki_cost){.rounds = 2 * hki_circulant_rounds(c->ranks), .messages = 2 * hki_log2_ceil(c->ranks),
                      .busiest = 2 * (P - 1) * (n / P), .total = 2 * (P - 1) * n};
}

const hki_algo hki_algo_all_reduce_circulant = {
    .name = "circulant",
    .summary = "halving skips around a ring: fewest rounds and least bytes for any number of ranks",
    .ops = HKI_OP_BIT(HKI_ALL_REDUCE),
    .span = HKI_SPAN_HALF,
    .emit = emit,
    .cost = cost,
};
