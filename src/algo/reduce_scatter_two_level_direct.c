/* SPDX-License-Identifier: Apache-2.0
 *
 * two_level with the hosts telling each other directly, not by a ring: 2 rounds for any number of hosts, two roundings. */
#include "algo/phases.h"

static void emit(hki_plan *p, const hki_call *c)
{
    const hki_grid g = hki_grid_of(c);
    const hki_share work = hki_grid_room(p, c, g);

    hki_grid_gather_sums(p, c, g, work);
    if (g.hosts > 1) hki_fold_at_owners(p, c, hki_same_seat(g), work, hki_out(c));
}

static hki_cost cost(const hki_call *c)
{
    const hki_grid g = hki_grid_of(c);
    const uint64_t P = c->ranks, n = c->count;
    return (hki_cost){.rounds = (g.hosts > 1) + (g.per_host > 1), .messages = P - 1, .busiest = (P - 1) * n, .total = P * (P - 1) * n};
}

const hki_algo hki_algo_reduce_scatter_two_level_direct = {
    .name = "two_level_direct",
    .summary = "two_level, direct between hosts: two rounds, two roundings",
    .ops = HKI_OP_BIT(HKI_REDUCE_SCATTER),
    .span = HKI_SPAN_ONE,
    .traits = HKI_RANK_ORDER | HKI_FOLD_TWICE,
    .emit = emit,
    .cost = cost,
};
