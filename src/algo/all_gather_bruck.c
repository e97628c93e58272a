/* SPDX-License-Identifier: Apache-2.0
 *
 * Bruck's all-gather: in round i a rank passes all it has, up to 2^i blocks, 2^i ranks down. ceil(log2 P) rounds and (P-1)
 * blocks sent for every P: T = ceil(log2 P) a + (P-1) n b. Slices wrap around, so blocks land where they belong and nothing is
 * rotated afterwards. Bruck, Ho, Kipnis, Upfal & Weathersby, IEEE TPDS 8(11), 1997. */
#include "algo/phases.h"

static void emit(hki_plan *p, const hki_call *c)
{
    const uint32_t P = c->ranks, me = c->rank;

    hki_plan_copy(p, hki_out_part(c, P, me), hki_in(c));
    /* Blocks me .. me + have - 1 are here. */
    for (uint32_t have = 1; have < P; have *= 2) {
        const uint32_t n = (uint32_t)hki_min(have, P - have);
        hki_plan_send(p, (me + P - have) % P, hki_out_parts(c, me, n));
        hki_plan_recv(p, (me + have) % P, hki_out_parts(c, me + have, n));
    }
}

static hki_cost cost(const hki_call *c)
{
    /* A last round that passes on no more than was there some rounds ago need not wait for those between. */
    const uint64_t P = c->ranks, n = c->count;
    const uint32_t full = hki_log2_floor(c->ranks), rest = c->ranks - (1u << full);
    return (hki_cost){.rounds = hki_max(full, rest ? 1 + hki_log2_ceil(rest) : 0), .messages = hki_log2_ceil(c->ranks),
                      .busiest = (P - 1) * n, .total = P * (P - 1) * n};
}

const hki_algo hki_algo_all_gather_bruck = {
    .name = "bruck",
    .summary = "doubling ranges passed down at doubling distance: fewest rounds, least bytes, any number of ranks",
    .ops = HKI_OP_BIT(HKI_ALL_GATHER) | HKI_OP_BIT(HKI_ALL_GATHER_V),
    .span = HKI_SPAN_HALF,
    .emit = emit,
    .cost = cost,
};
