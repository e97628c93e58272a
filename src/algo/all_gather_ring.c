/* SPDX-License-Identifier: Apache-2.0
 *
 * Ring all-gather: blocks go once around. P-1 rounds, each rank sends (P-1) blocks of n: T = (P-1)(a + n b). Traffic between
 * neighbours only. Patarasuk & Yuan, JPDC 69(2), 2009. */
#include "algo/phases.h"

static void emit(hki_plan *p, const hki_call *c)
{
    hki_plan_copy(p, hki_out_part(c, c->ranks, c->rank), hki_in(c));
    hki_ring_all_gather(p, hki_everyone(c), hki_by_rank(HKI_OUT));
}

static hki_cost cost(const hki_call *c)
{
    const uint64_t P = c->ranks, n = c->count;
    return (hki_cost){.rounds = P - 1, .messages = P - 1, .busiest = (P - 1) * n, .total = P * (P - 1) * n};
}

const hki_algo hki_algo_all_gather_ring = {
    .name = "ring",
    .summary = "once around a ring: least bytes, neighbours only",
    .ops = HKI_OP_BIT(HKI_ALL_GATHER) | HKI_OP_BIT(HKI_ALL_GATHER_V),
    .span = HKI_SPAN_ONE,
    .emit = emit,
    .cost = cost,
};
