/* SPDX-License-Identifier: Apache-2.0
 *
 * Two-level reduce-scatter for H hosts of q ranks: reduce-scatter on each host, so that each seat has the host's share for the same seat of
 * every host, then a ring of those. A host sends (H-1)/H of the vector to others, from a flat ring (P-1)/P. */
#include "algo/phases.h"

static void emit(hki_plan *p, const hki_call *c)
{
    const hki_grid g = hki_grid_of(c);
    const hki_share work = hki_grid_room(p, c, g);

    hki_grid_gather_sums(p, c, g, work);
    hki_ring_reduce_scatter(p, hki_same_seat(g), work, work, hki_out(c));
}

static hki_cost cost(const hki_call *c)
{
    const hki_grid g = hki_grid_of(c);
    const uint64_t P = c->ranks, n = c->count;
    return (hki_cost){.rounds = g.hosts - 1 + (g.per_host > 1), .messages = P - 1, .busiest = (P - 1) * n, .total = P * (P - 1) * n};
}

const hki_algo hki_algo_reduce_scatter_two_level = {
    .name = "two_level",
    .summary = "on each host, then between hosts: least bytes on the links",
    .ops = HKI_OP_BIT(HKI_REDUCE_SCATTER),
    .span = HKI_SPAN_ONE,
    .emit = emit,
    .cost = cost,
};
