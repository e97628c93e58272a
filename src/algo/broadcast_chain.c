/* SPDX-License-Identifier: Apache-2.0
 *
 * Chain broadcast: every rank passes the vector on to the next one, from the root all the way round. P-1 rounds of whole vectors,
 * which windows pipeline: T -> n b + (P-1) a. For long vectors over few ranks. */
#include "algo/algo.h"

static void emit(hki_plan *p, const hki_call *c)
{
    const uint32_t P = c->ranks, me = c->rank, place = (me + P - c->root) % P; /* in the chain, the root first */

    if (place == 0) hki_plan_copy(p, hki_out(c), hki_in(c));
    else hki_plan_recv(p, (me + P - 1) % P, hki_out(c));
    if (place + 1 < P) hki_plan_send(p, (me + 1) % P, hki_out(c));
}

static hki_cost cost(const hki_call *c)
{
    const uint64_t P = c->ranks, n = c->count;
    return (hki_cost){.rounds = P - 1, .messages = 1, .busiest = n, .total = (P - 1) * n};
}

const hki_algo hki_algo_broadcast_chain = {
    .name = "chain",
    .summary = "from rank to rank along a chain: least bytes, pipelined by windows",
    .ops = HKI_OP_BIT(HKI_BROADCAST),
    .span = HKI_SPAN_ALL,
    .emit = emit,
    .cost = cost,
};
