/* SPDX-License-Identifier: Apache-2.0
 *
 * Direct scatter: the root sends each rank its block. 1 round; T = a + (P-2) o + (P-1) n b at the root, which is its lower bound
 * too. */
#include "algo/phases.h"

static void emit(hki_plan *p, const hki_call *c)
{
    const uint32_t P = c->ranks, me = c->rank;

    if (me != c->root) {
        hki_plan_recv(p, c->root, hki_out(c));
        return;
    }
    for (uint32_t k = 1; k < P; k++) hki_plan_send(p, (me + k) % P, hki_in_part(c, P, (me + k) % P));
    hki_plan_copy(p, hki_out(c), hki_in_part(c, P, me));
}

static hki_cost cost(const hki_call *c)
{
    const uint64_t P = c->ranks, n = c->count;
    return (hki_cost){.rounds = 1, .messages = P - 1, .busiest = (P - 1) * n, .total = (P - 1) * n};
}

const hki_algo hki_algo_scatter_direct = {
    .name = "direct",
    .summary = "the root to everyone: one round",
    .ops = HKI_OP_BIT(HKI_SCATTER),
    .span = HKI_SPAN_ONE,
    .emit = emit,
    .cost = cost,
};
