/* SPDX-License-Identifier: Apache-2.0
 *
 * Bruck's all-to-all: a block that must go d ranks ahead goes there by the set bits of d, one round a bit. ceil(log2 P) messages
 * instead of P-1, each of up to P/2 blocks: T = L (a + P/2 n b) and a copy a hop. For blocks so small that messages cost more
 * than bytes. Bruck, Ho, Kipnis, Upfal & Weathersby, IEEE TPDS 8(11), 1997. */
#include "algo/phases.h"

/* Distances below d whose bit i is set: what round i sends, and the place of distance d in its message if d has the bit. */
static uint32_t with_bit(uint32_t d, uint32_t i) { return (d >> (i + 1) << i) + (d >> i & 1 ? d & ((1u << i) - 1) : 0); }

/* Where the block of distance d is before round i: where the round of its last bit below i put it, at first in the input. */
static hki_slice block(const hki_call *c, const hki_slice *landed, uint32_t d, uint32_t i)
{
    const uint32_t low = d & ((1u << i) - 1), last = low ? hki_log2_floor(low) : 0;
    return low ? hki_sub(landed[last], with_bit(d, last), 1) : hki_in_parts(c, c->rank + d, 1);
}

static void emit(hki_plan *p, const hki_call *c)
{
    const uint32_t P = c->ranks, me = c->rank, rounds = hki_log2_ceil(P);
    const hki_slice pack = hki_plan_temp(p, hki_in_parts(c, 0, P / 2));
    hki_slice landed[32];

    for (uint32_t i = 0; i < rounds; i++) {
        const uint32_t hop = 1u << i, n = with_bit(P, i);
        landed[i] = hki_plan_temp(p, hki_in_parts(c, 0, n));
        for (uint32_t d = hop; d < P; d++)
            if (d & hop) hki_plan_copy(p, hki_sub(pack, with_bit(d, i), 1), block(c, landed, d, i));
        hki_plan_send(p, (me + hop) % P, hki_sub(pack, 0, n));
        hki_plan_recv(p, (me + P - hop) % P, landed[i]);
    }
    for (uint32_t d = 0; d < P; d++) hki_plan_copy(p, hki_out_part(c, P, (me + P - d) % P), block(c, landed, d, rounds));
}

static hki_cost cost(const hki_call *c)
{
    /* The last round waits for the highest lower bit that goes with its own in a distance below P. */
    const uint32_t P = c->ranks, L = hki_log2_ceil(P), above = P - 1 - (1u << (L - 1));
    uint64_t blocks = 0;
    for (uint32_t i = 0; i < L; i++) blocks += with_bit(P, i);
    return (hki_cost){.rounds = hki_max(L - 1, above ? hki_log2_floor(above) + 2 : 1), .messages = L,
                      .busiest = blocks * c->count, .total = P * blocks * c->count};
}

const hki_algo hki_algo_all_to_all_bruck = {
    .name = "bruck",
    .summary = "blocks hop by the bits of their distance: fewest messages, for tiny blocks",
    .ops = HKI_OP_BIT(HKI_ALL_TO_ALL),
    .span = HKI_SPAN_HALF,
    .emit = emit,
    .cost = cost,
};
