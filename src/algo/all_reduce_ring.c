/* SPDX-License-Identifier: Apache-2.0
 *
 * Ring all-reduce: reduce-scatter once around the ring, all-gather once more. 2(P-1) steps; each rank sends 2(P-1)/P of the
 * vector: bandwidth-optimal, latency grows with P. Patarasuk & Yuan, JPDC 69(2), 2009. */
#include "algo/phases.h"

static void emit(hki_plan *p, const hki_call *c)
{
    const hki_share out = hki_by_rank(HKI_OUT);
    hki_ring_reduce_scatter(p, hki_everyone(c), hki_by_rank(HKI_IN), out, hki_out_part(c, c->ranks, c->rank));
    hki_ring_all_gather(p, hki_everyone(c), out);
}

static hki_cost cost(const hki_call *c)
{
    const uint64_t P = c->ranks, n = c->count;
    return (hki_cost){.rounds = 2 * (P - 1), .messages = 2 * (P - 1), .busiest = 2 * (P - 1) * (n / P), .total = 2 * (P - 1) * n};
}

const hki_algo hki_algo_all_reduce_ring = {
    .name = "ring",
    .summary = "twice around a ring: least bytes, latency grows with the ranks",
    .ops = HKI_OP_BIT(HKI_ALL_REDUCE),
    .span = HKI_SPAN_ONE,
    .emit = emit,
    .cost = cost,
};
