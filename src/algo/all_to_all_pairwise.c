/* SPDX-License-Identifier: Apache-2.0
 *
 * Pairwise all-to-all: in turn k a rank sends to the one k ahead and receives from the one k behind. Blocks do not depend on
 * each other, so it is 1 round, but an in-order walk has one block in flight per rank and two slots are enough:
 * T = (P-1)(a + n b) then. Thakur, Rabenseifner & Gropp, IJHPCA 19(1), 2005. */
#include "algo/phases.h"

static void emit(hki_plan *p, const hki_call *c)
{
    const uint32_t P = c->ranks, me = c->rank;

    hki_plan_copy(p, hki_out_part(c, P, me), hki_in_part(c, P, me));
    for (uint32_t k = 1; k < P; k++) {
        const uint32_t ahead = (me + k) % P, behind = (me + P - k) % P;
        hki_plan_send(p, ahead, hki_in_part(c, P, ahead));
        hki_plan_recv(p, behind, hki_out_part(c, P, behind));
    }
}

static hki_cost cost(const hki_call *c)
{
    const uint64_t P = c->ranks, n = c->count;
    return (hki_cost){.rounds = 1, .messages = P - 1, .busiest = (P - 1) * n, .total = P * (P - 1) * n};
}

const hki_algo hki_algo_all_to_all_pairwise = {
    .name = "pairwise",
    .summary = "one partner at a time: little in flight",
    .ops = HKI_OP_BIT(HKI_ALL_TO_ALL) | HKI_OP_BIT(HKI_ALL_TO_ALL_V),
    .span = HKI_SPAN_ONE,
    .emit = emit,
    .cost = cost,
};
