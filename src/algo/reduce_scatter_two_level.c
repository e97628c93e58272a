/* SPDX-License-Identifier: Apache-2.0
 *
 * Two-level reduce-scatter for H hosts of q ranks: reduce-scatter on each host, so that each seat has the host's share for the same seat of
 * every host, then a ring of those. A host sends (H-1)/H of the vector to others, from a flat ring (P-1)/P. */
#include "algo/phases.h"

static void emit(hki_plan *p, const hki_call *c)
{
    const hki_grid g = hki_grid_of(c);
    const uint32_t q = g.per_host;
    hki_share work = {HKI_TEMP, 0, 1};

    for (uint32_t h = 0; h < g.hosts; h++) {
        const hki_slice dst = g.hosts == 1 ? hki_out(c) : hki_plan_temp(p, hki_in_part(c, c->ranks, h * q + g.seat));
        if (h == 0) work.first = dst.first;
        hki_fold_at_owners(p, c, hki_housemates(g), (hki_share){HKI_IN, h * q, 1}, dst);
    }
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
