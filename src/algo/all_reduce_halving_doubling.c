/* SPDX-License-Identifier: Apache-2.0
 *
 * Rabenseifner's all-reduce: reduce-scatter by recursive halving, all-gather by recursive doubling. 2 log2 P rounds and
 * 2(P-1)/P n bytes where P is a power of two, 2 floor(log2 P) + 2 rounds and up to 2n more else. T = 2L a + 2n b + n g.
 * Neighbours exchange first and hold the largest ranges, so ranges of folded ranks are contiguous, most bytes stay near, and the
 * association is that of recursive_doubling. Rabenseifner, ICCS 2004; Thakur, Rabenseifner & Gropp, IJHPCA 19(1), 2005. */
#include "algo/phases.h"

static void emit(hki_plan *p, const hki_call *c)
{
    const hki_core k = hki_core_of(c->ranks);
    const uint32_t v = hki_core_member(k, c->rank);

    hki_core_halve(p, c, k, hki_out(c));
    /* The same exchanges backwards: the range of step i + 1 grows to that of step i. */
    for (uint32_t i = k.bits; !hki_core_is_extra(k, c->rank) && i-- > 0;) {
        const uint32_t other = v ^ 1u << i, peer = hki_core_rank(k, other);
        const hki_range have = hki_core_range(k, v, i + 1), get = hki_core_range(k, other, i + 1);
        hki_plan_send(p, peer, hki_out_parts(c, have.lo, have.hi - have.lo));
        hki_plan_recv(p, peer, hki_out_parts(c, get.lo, get.hi - get.lo));
    }
    hki_core_leave(p, c, k, hki_out(c));
}

static hki_cost cost(const hki_call *c)
{
    /* A member gives away half of its range and later the other half: once each range on its way. Member 0's are the widest. */
    const hki_core k = hki_core_of(c->ranks);
    const uint64_t P = c->ranks, n = c->count;
    uint64_t parts = k.extras ? P : 0;
    for (uint32_t i = 0; i < k.bits; i++) parts += hki_core_range(k, 0, i).hi;
    return (hki_cost){.rounds = 2 * k.bits + (k.extras ? 2 : 0), .messages = 2 * k.bits + (k.extras > 0),
                      .busiest = parts * (n / P), .total = 2 * (P - 1) * n};
}

const hki_algo hki_algo_all_reduce_halving_doubling = {
    .name = "halving_doubling",
    .summary = "ever smaller halves swapped, then back: few rounds and few bytes for powers of two",
    .ops = HKI_OP_BIT(HKI_ALL_REDUCE),
    .span = HKI_SPAN_ALL,
    .traits = HKI_RANK_ORDER,
    .emit = emit,
    .cost = cost,
};
