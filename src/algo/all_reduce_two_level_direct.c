/* SPDX-License-Identifier: Apache-2.0
 *
 * two_level with the hosts telling each other directly, not by a ring: 4 rounds for any number of hosts, and every value is rounded twice at
 * most, the sum of a host and the sum of the hosts. Between many hosts long vectors are faster by the ring, where each link has one sender. */
#include "algo/phases.h"

static void emit(hki_plan *p, const hki_call *c)
{
    const hki_grid g = hki_grid_of(c);
    const hki_share out = hki_of_seat(g, HKI_OUT);

    hki_grid_gather_sums(p, c, g, out);
    hki_fold_at_owners(p, c, hki_same_seat(g), out, hki_share_of(out, g.host));
    hki_tell_all(p, hki_same_seat(g), out);
    hki_grid_spread(p, g);
    hki_plan_swaps(p); /* who owns a block sends it when it has folded */
}

static hki_cost cost(const hki_call *c)
{
    const hki_grid g = hki_grid_of(c);
    const uint64_t P = c->ranks, n = c->count, messages = 2 * (P - 1);
    return (hki_cost){.rounds = (g.hosts > 1 ? 2 : 0) + (g.per_host > 1 ? 2 : 0), .messages = messages, .busiest = messages * (n / P),
                      .total = messages * n};
}

const hki_algo hki_algo_all_reduce_two_level_direct = {
    .name = "two_level_direct",
    .summary = "two_level, direct between hosts: four rounds, two roundings",
    .ops = HKI_OP_BIT(HKI_ALL_REDUCE),
    .span = HKI_SPAN_ONE,
    .traits = HKI_RANK_ORDER | HKI_FOLD_TWICE,
    .emit = emit,
    .cost = cost,
};
