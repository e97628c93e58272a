/* SPDX-License-Identifier: Apache-2.0
 *
 * Direct reduce: every rank sends its vector to the root, which folds all P at once in rank order. 1 round, (P-1) n bytes into the root:
 * T = a + (P-2) o + (P-1) n (b + g). For what a tree cannot do: sums that must be rounded once. */
#include "algo/phases.h"

static void emit(hki_plan *p, const hki_call *c)
{
    if (c->rank == c->root) hki_fold_all(p, c, hki_out(c), hki_in(c));
    else hki_plan_send(p, c->root, hki_in(c));
}

static hki_cost cost(const hki_call *c)
{
    return (hki_cost){.rounds = 1, .messages = 1, .busiest = c->count, .total = (c->ranks - 1) * (uint64_t)c->count};
}

const hki_algo hki_algo_reduce_direct = {
    .name = "direct",
    .summary = "everyone to the root, one fold there: one round, one rounding, the root receives everything",
    .ops = HKI_OP_BIT(HKI_REDUCE),
    .span = HKI_SPAN_ALL,
    .traits = HKI_RANK_ORDER | HKI_FOLD_ONCE,
    .emit = emit,
    .cost = cost,
};
