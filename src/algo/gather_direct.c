/* SPDX-License-Identifier: Apache-2.0
 *
 * Direct gather: everyone sends its block to the root. 1 round; T = a + (P-2) o + (P-1) n b at the root, which is its lower
 * bound too. */
#include "algo/phases.h"

static void emit(hki_plan *p, const hki_call *c)
{
    const uint32_t P = c->ranks, me = c->rank;

    if (me != c->root) {
        hki_plan_send(p, c->root, hki_in(c));
        return;
    }
    hki_plan_copy(p, hki_out_part(c, P, me), hki_in(c));
    for (uint32_t k = 1; k < P; k++) hki_plan_recv(p, (me + k) % P, hki_out_part(c, P, (me + k) % P));
}

static hki_cost cost(const hki_call *c)
{
    const uint64_t P = c->ranks, n = c->count;
    return (hki_cost){.rounds = 1, .messages = 1, .busiest = n, .total = (P - 1) * n};
}

const hki_algo hki_algo_gather_direct = {
    .name = "direct",
    .summary = "everyone to the root: one round",
    .ops = HKI_OP_BIT(HKI_GATHER),
    .span = HKI_SPAN_ONE,
    .emit = emit,
    .cost = cost,
};
