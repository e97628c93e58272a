/* SPDX-License-Identifier: Apache-2.0
 *
 * Flat all-reduce: everyone sends its vector to rank 0, which folds all of them at once in rank order and multicasts the result.
 * 2 rounds; T = 2a + 2(P-1) n b at rank 0. The plainest algorithm there is: reference for the others. */
#include "algo/phases.h"

static void emit(hki_plan *p, const hki_call *c)
{
    if (c->rank) {
        hki_plan_send(p, 0, hki_in(c));
        hki_plan_recv(p, 0, hki_out(c));
        return;
    }
    hki_fold_all(p, c, hki_out(c), hki_in(c));
    hki_plan_send_all(p, hki_out(c));
}

static hki_cost cost(const hki_call *c)
{
    const uint64_t P = c->ranks, n = c->count;
    return (hki_cost){.rounds = 2, .messages = P - 1, .busiest = (P - 1) * n, .total = 2 * (P - 1) * n};
}

const hki_algo hki_algo_all_reduce_reduce_broadcast = {
    .name = "reduce_broadcast",
    .summary = "all to rank 0, one fold, back to all: plain, rank 0 is the bottleneck",
    .ops = HKI_OP_BIT(HKI_ALL_REDUCE),
    .span = HKI_SPAN_ALL,
    .traits = HKI_RANK_ORDER | HKI_FOLD_ONCE,
    .emit = emit,
    .cost = cost,
};
