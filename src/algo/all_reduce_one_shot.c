/* SPDX-License-Identifier: Apache-2.0
 *
 * One-shot all-reduce: everyone multicasts its vector, everyone folds all of them in rank order. 1 round, (P-1) n bytes.
 * T = a + (P-2) o + (P-1) n (b + g): nothing is faster for a few bytes among a few ranks. */
#include "algo/phases.h"

static void emit(hki_plan *p, const hki_call *c)
{
    hki_plan_send_all(p, hki_in(c));
    hki_fold_all(p, c, hki_out(c), hki_in(c));
}

static hki_cost cost(const hki_call *c)
{
    const uint64_t P = c->ranks, n = c->count;
    return (hki_cost){.rounds = 1, .messages = P - 1, .busiest = (P - 1) * n, .total = P * (P - 1) * n};
}

const hki_algo hki_algo_all_reduce_one_shot = {
    .name = "one_shot",
    .summary = "everyone tells everyone, everyone folds: one round, for tiny vectors",
    .ops = HKI_OP_BIT(HKI_ALL_REDUCE),
    .span = HKI_SPAN_ALL,
    .traits = HKI_RANK_ORDER | HKI_FOLD_ONCE,
    .emit = emit,
    .cost = cost,
};
