/* SPDX-License-Identifier: Apache-2.0
 *
 * Two-level all-gather for H hosts of q ranks: each seat goes round a ring with the same seat of other hosts, then all ranks of a host tell
 * each other. A host sends (H-1)/H of what all have to others, from a flat ring (P-1)/P. */
#include "algo/phases.h"

static void emit(hki_plan *p, const hki_call *c)
{
    const hki_grid g = hki_grid_of(c);

    hki_plan_copy(p, hki_out_part(c, c->ranks, c->rank), hki_in(c));
    hki_ring_all_gather(p, hki_same_seat(g), hki_of_seat(g, HKI_OUT));
    hki_grid_spread(p, g);
}

static hki_cost cost(const hki_call *c)
{
    const hki_grid g = hki_grid_of(c);
    const uint64_t P = c->ranks, n = c->count;
    return (hki_cost){.rounds = g.hosts - 1 + (g.per_host > 1), .messages = P - 1, .busiest = (P - 1) * n, .total = P * (P - 1) * n};
}

const hki_algo hki_algo_all_gather_two_level = {
    .name = "two_level",
    .summary = "between hosts, then on each host: least bytes on the links",
    .ops = HKI_OP_BIT(HKI_ALL_GATHER) | HKI_OP_BIT(HKI_ALL_GATHER_V),
    .span = HKI_SPAN_ONE,
    .emit = emit,
    .cost = cost,
};
