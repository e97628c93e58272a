/* SPDX-License-Identifier: Apache-2.0
 *
 * Two-level all-reduce for H hosts of q ranks: reduce-scatter on each host, all-reduce of each seat with the same seat of other hosts by
 * a ring, all-gather on each host. A rank sends as much as in a flat ring, but a host only 2 (H-1)/H n to others, where from a flat ring
 * it sends 2 (P-1)/P n: with two hosts of two a third less. The seats of a host share its link. */
#include "algo/phases.h"

static void emit(hki_plan *p, const hki_call *c)
{
    const hki_grid g = hki_grid_of(c);
    const hki_share out = hki_of_seat(g, HKI_OUT);

    hki_grid_gather_sums(p, c, g, out);
    hki_ring_reduce_scatter(p, hki_same_seat(g), out, out, hki_share_of(out, g.host));
    hki_ring_all_gather(p, hki_same_seat(g), out);
    hki_grid_spread(p, g);
    hki_plan_swaps(p); /* who owns a block sends it when it has folded */
}

static hki_cost cost(const hki_call *c)
{
    const hki_grid g = hki_grid_of(c);
    const uint64_t P = c->ranks, n = c->count, messages = 2 * (P - 1);
    return (hki_cost){.rounds = 2 * (g.hosts - 1) + (g.per_host > 1 ? 2 : 0), .messages = messages, .busiest = messages * (n / P), .total = messages * n};
}

const hki_algo hki_algo_all_reduce_two_level = {
    .name = "two_level",
    .summary = "on each host, then between hosts, then on each host: least bytes on the links",
    .ops = HKI_OP_BIT(HKI_ALL_REDUCE),
    .span = HKI_SPAN_ONE,
    .emit = emit,
    .cost = cost,
};
