/* SPDX-License-Identifier: Apache-2.0
 *
 * Recursive-doubling all-gather: in round i ranks that differ in bit i swap the 2^i blocks they have. log2 P rounds where P is a
 * power of two: T = L a + (P-1) n b, pairs of ranks only. Else the ranks too many give their block to a neighbour first and get
 * all others last: 2 rounds and P-1 blocks more. Thakur, Rabenseifner & Gropp, IJHPCA 19(1), 2005. */
#include "algo/phases.h"

static void emit(hki_plan *p, const hki_call *c)
{
    const uint32_t P = c->ranks, me = c->rank;
    const hki_core k = hki_core_of(P);
    const uint32_t v = hki_core_member(k, me);

    hki_plan_copy(p, hki_out_part(c, P, me), hki_in(c));
    if (hki_core_is_extra(k, me)) {
        hki_plan_send(p, me - 1, hki_out_part(c, P, me));
        hki_plan_recv(p, me - 1, hki_out_parts(c, me + 1, P - 1)); /* all but its own */
        return;
    }
    if (me < 2 * k.extras) hki_plan_recv(p, me + 1, hki_out_part(c, P, me + 1));
    /* Before round i the blocks of members (v with its low i bits cleared) .. + 2^i are here; the peer has its neighbours'. */
    for (uint32_t i = 0; i < k.bits; i++) {
        const uint32_t low = v >> i << i, theirs = low ^ 1u << i;
        const uint32_t from = hki_core_rank(k, low), to = hki_core_rank(k, low + (1u << i));
        const uint32_t peer_from = hki_core_rank(k, theirs), peer_to = hki_core_rank(k, theirs + (1u << i));
        hki_plan_send(p, hki_core_rank(k, v ^ 1u << i), hki_out_parts(c, from, to - from));
        hki_plan_recv(p, hki_core_rank(k, v ^ 1u << i), hki_out_parts(c, peer_from, peer_to - peer_from));
    }
    if (me < 2 * k.extras) hki_plan_send(p, me + 1, hki_out_parts(c, me + 2, P - 1));
}

static hki_cost cost(const hki_call *c)
{
    /* Member 0 speaks for the most ranks in every round. */
    const hki_core k = hki_core_of(c->ranks);
    const uint64_t P = c->ranks, n = c->count;
    uint64_t blocks = k.extras ? P - 1 : 0;
    for (uint32_t i = 0; i < k.bits; i++) blocks += hki_core_rank(k, 1u << i);
    return (hki_cost){.rounds = hki_core_rounds(k), .messages = k.bits + (k.extras > 0), .busiest = blocks * n,
                      .total = P * (P - 1) * n};
}

const hki_algo hki_algo_all_gather_recursive_doubling = {
    .name = "recursive_doubling",
    .summary = "ranges swapped at doubling distance: fewest rounds for powers of two",
    .ops = HKI_OP_BIT(HKI_ALL_GATHER) | HKI_OP_BIT(HKI_ALL_GATHER_V),
    .span = HKI_SPAN_ALL,
    .emit = emit,
    .cost = cost,
};
