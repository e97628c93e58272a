/* SPDX-License-Identifier: Apache-2.0
 *
 * Ring reduce-scatter: partial results go once around. P-1 rounds, each rank sends P-1 blocks of n: T = (P-1)(a + n b + n g).
 * The same sums as the ring all-reduce. Patarasuk & Yuan, JPDC 69(2), 2009. */
#include "algo/phases.h"

static void emit(hki_plan *p, const hki_call *c)
{
    const bool even = c->op == HKI_REDUCE_SCATTER; /* blocks are equally long: one place serves for each in turn */
    const hki_slice work = hki_plan_temp(p, even ? hki_in_part(c, c->ranks, 0) : hki_in(c));
    hki_ring_reduce_scatter(p, hki_everyone(c), hki_by_rank(HKI_IN), (hki_share){work.buf, work.first, !even}, hki_out(c));
}

static hki_cost cost(const hki_call *c)
{
    const uint64_t P = c->ranks, n = c->count;
    return (hki_cost){.rounds = P - 1, .messages = P - 1, .busiest = (P - 1) * n, .total = P * (P - 1) * n};
}

const hki_algo hki_algo_reduce_scatter_ring = {
    .name = "ring",
    .summary = "once around a ring: least bytes, neighbours only",
    .ops = HKI_OP_BIT(HKI_REDUCE_SCATTER) | HKI_OP_BIT(HKI_REDUCE_SCATTER_V),
    .span = HKI_SPAN_ONE,
    .emit = emit,
    .cost = cost,
};
