/* SPDX-License-Identifier: Apache-2.0
 *
 * Direct all-reduce in two phases: every rank sends part j of its vector to rank j, which folds the P parts at once in rank
 * order and multicasts the result. 2 rounds, 2(P-1)/P n bytes, 2(P-1) messages. T = 2(a + (P-2) o) + 2(P-1)/P n b + (P-1)/P n g.
 * One fold means one rounding: 16-bit sums stay in f32 throughout, and bits do not depend on anything but the ranks' order. */
#include "algo/phases.h"

static void emit(hki_plan *p, const hki_call *c)
{
    hki_fold_at_owners(p, c, hki_everyone(c), hki_by_rank(HKI_IN), hki_out_part(c, c->ranks, c->rank));
    /* Only now: told in the owner's turn, a part would stand in its lanes before those that are still to be folded. */
    hki_tell_all(p, hki_everyone(c), hki_by_rank(HKI_OUT));
    hki_plan_swaps(p); /* an owner sends when it has folded */
}

static hki_cost cost(const hki_call *c)
{
    const uint64_t P = c->ranks, n = c->count;
    return (hki_cost){.rounds = 2, .messages = 2 * (P - 1), .busiest = 2 * (P - 1) * (n / P), .total = 2 * (P - 1) * n};
}

const hki_algo hki_algo_all_reduce_direct = {
    .name = "direct",
    .summary = "parts to their owners, one fold, back to all: least bytes, two rounds, one rounding",
    .ops = HKI_OP_BIT(HKI_ALL_REDUCE),
    .span = HKI_SPAN_ONE,
    .traits = HKI_RANK_ORDER | HKI_FOLD_ONCE,
    .emit = emit,
    .cost = cost,
};
