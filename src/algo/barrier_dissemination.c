/* SPDX-License-Identifier: Apache-2.0
 *
 * Dissemination barrier: in round i a rank tells the one 2^i ahead that it, and all it has heard of, are there. ceil(log2 P)
 * rounds, no bytes: T = ceil(log2 P) a. Hensgen, Finkel & Manber, IJPP 17(1), 1988. */
#include "algo/phases.h"

static void emit(hki_plan *p, const hki_call *c)
{
    const uint32_t P = c->ranks, me = c->rank;

    /* One token: a post waits for the await before it. Before a round the 2^i ranks up to this one are known to be there. */
    for (uint32_t hop = 1; hop < P; hop *= 2) {
        hki_plan_post(p, 0, (me + hop) % P);
        hki_plan_await(p, 0, (me + P - hop) % P);
    }
}

static hki_cost cost(const hki_call *c)
{
    const uint64_t rounds = hki_log2_ceil(c->ranks);
    return (hki_cost){.rounds = rounds, .messages = rounds};
}

const hki_algo hki_algo_barrier_dissemination = {
    .name = "dissemination",
    .summary = "tell the one 2^i ahead: fewest rounds",
    .ops = HKI_OP_BIT(HKI_BARRIER),
    .span = HKI_SPAN_ONE,
    .emit = emit,
    .cost = cost,
};
