/* SPDX-License-Identifier: Apache-2.0
 *
 * Direct all-to-all: all sends at once, the next rank's first, then all receives. 1 round, P-1 messages:
 * T = a + (P-2) o + (P-1) n b. Wants as many slots as ranks to run without waiting. */
#include "algo/phases.h"

static void emit(hki_plan *p, const hki_call *c)
{
    const uint32_t P = c->ranks, me = c->rank;

    for (uint32_t k = 1; k < P; k++) hki_plan_send(p, (me + k) % P, hki_in_part(c, P, (me + k) % P));
    hki_plan_copy(p, hki_out_part(c, P, me), hki_in_part(c, P, me));
    for (uint32_t k = 1; k < P; k++) hki_plan_recv(p, (me + P - k) % P, hki_out_part(c, P, (me + P - k) % P));
}

static hki_cost cost(const hki_call *c)
{
    const uint64_t P = c->ranks, n = c->count;
    return (hki_cost){.rounds = 1, .messages = P - 1, .busiest = (P - 1) * n, .total = P * (P - 1) * n};
}

const hki_algo hki_algo_all_to_all_direct = {
    .name = "direct",
    .summary = "everything at once: one round, many messages in flight",
    .ops = HKI_OP_BIT(HKI_ALL_TO_ALL) | HKI_OP_BIT(HKI_ALL_TO_ALL_V),
    .span = HKI_SPAN_ONE,
    .emit = emit,
    .cost = cost,
};
