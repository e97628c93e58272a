/* SPDX-License-Identifier: Apache-2.0
 *
 * Circulant-graph reduce-scatter: skips ceil(P/2), ceil(P/4), .. 1. ceil(log2 P) rounds and P-1 blocks of n sent by each rank,
 * both optimal, for every P: T = ceil(log2 P) a + (P-1) n (b + g). The same sums as the circulant all-reduce; the operator must
 * commute. J. L. Traff, "Optimal, non-pipelined reduce-scatter and allreduce algorithms", arXiv:2410.14234, 2024. */
#include "algo/phases.h"

static void emit(hki_plan *p, const hki_call *c)
{
    const hki_slice work = hki_plan_temp(p, hki_in_parts(c, c->rank, (c->ranks + 1) / 2));
    hki_circulant_reduce_scatter(p, c, work, hki_out(c));
}

static hki_cost cost(const hki_call *c)
{
    const uint64_t P = c->ranks, n = c->count;
    return (hki_cost){.rounds = hki_circulant_rounds(c->ranks), .messages = hki_log2_ceil(c->ranks), .busiest = (P - 1) * n,
                      .total = P * (P - 1) * n};
}

const hki_algo hki_algo_reduce_scatter_circulant = {
    .name = "circulant",
    .summary = "halving skips around a ring: fewest rounds and least bytes for any number of ranks",
    .ops = HKI_OP_BIT(HKI_REDUCE_SCATTER) | HKI_OP_BIT(HKI_REDUCE_SCATTER_V),
    .span = HKI_SPAN_HALF,
    .emit = emit,
    .cost = cost,
};
