/* SPDX-License-Identifier: Apache-2.0
 *
 * Direct reduce-scatter: every rank sends block j to rank j, which folds all P at once in rank order. 1 round, P-1 messages:
 * T = a + (P-2) o + (P-1) n (b + g). One fold means one rounding. */
#include "algo/phases.h"

static void emit(hki_plan *p, const hki_call *c)
{
    hki_fold_at_owners(p, c, hki_everyone(c), hki_by_rank(HKI_IN), hki_out(c));
}

static hki_cost cost(const hki_call *c)
{
    const uint64_t P = c->ranks, n = c->count;
    return (hki_cost){.rounds = 1, .messages = P - 1, .busiest = (P - 1) * n, .total = P * (P - 1) * n};
}

const hki_algo hki_algo_reduce_scatter_direct = {
    .name = "direct",
    .summary = "blocks to their owners, one fold: one round, one rounding",
    .ops = HKI_OP_BIT(HKI_REDUCE_SCATTER) | HKI_OP_BIT(HKI_REDUCE_SCATTER_V),
    .span = HKI_SPAN_ONE,
    .traits = HKI_RANK_ORDER | HKI_FOLD_ONCE,
    .emit = emit,
    .cost = cost,
};
