/* SPDX-License-Identifier: Apache-2.0
 *
 * Direct all-gather: everyone multicasts its block. 1 round, P-1 messages: T = a + (P-2) o + (P-1) n b. In shared memory the
 * block is written once and read by all. */
#include "algo/phases.h"

static void emit(hki_plan *p, const hki_call *c)
{
    hki_plan_copy(p, hki_out_part(c, c->ranks, c->rank), hki_in(c));
    hki_tell_all(p, hki_everyone(c), hki_by_rank(HKI_OUT));
}

static hki_cost cost(const hki_call *c)
{
    const uint64_t P = c->ranks, n = c->count;
    return (hki_cost){.rounds = 1, .messages = P - 1, .busiest = (P - 1) * n, .total = P * (P - 1) * n};
}

const hki_algo hki_algo_all_gather_direct = {
    .name = "direct",
    .summary = "everyone tells everyone: one round",
    .ops = HKI_OP_BIT(HKI_ALL_GATHER) | HKI_OP_BIT(HKI_ALL_GATHER_V),
    .span = HKI_SPAN_ONE,
    .emit = emit,
    .cost = cost,
};
