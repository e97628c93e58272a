/* SPDX-License-Identifier: Apache-2.0 */
#include "algo/algo.h"

#include <string.h>

const hki_algo *hki_algo_find(hki_op op, const char *name)
{
    for (const hki_algo *const *a = hki_algos; *a; a++)
        if (((*a)->ops & HKI_OP_BIT(op)) && !strcmp((*a)->name, name)) return *a;
    return NULL;
}

const char *hki_algo_objection(const hki_algo *a, const hki_call *c)
{
    if (!(a->ops & HKI_OP_BIT(c->op))) return "it does not do this operation";
    if (c->ranks == 1 || !hki_op_reduces(c->op)) return NULL;
    if (!c->red.commutes && !(a->traits & HKI_RANK_ORDER)) return "it does not combine in rank order, which an operator that does not commute needs";
    if (c->red.finish == HKI_FINISH_AVG && !hki_dtype_is_float(c->dtype) && !(a->traits & HKI_FOLD_ONCE))
        return "it keeps partial sums in the element type, and an integer average needs the widened sum";
    return NULL;
}

uint32_t hki_algo_span(const hki_algo *a, uint32_t ranks)
{
    switch (a->span) {
    case HKI_SPAN_ONE: return 1;
    case HKI_SPAN_HALF: return (ranks + 1) / 2;
    default: return ranks;
    }
}

/* With one rank there is nobody to talk to: the plan is a fold of one source, or a copy. */
static void emit_alone(hki_plan *p, const hki_call *c)
{
    if (c->op == HKI_BARRIER) return;
    if (hki_op_reduces(c->op)) hki_plan_reduce(p, hki_out(c), (hki_slice[]){hki_in(c)}, 1);
    else hki_plan_copy(p, hki_out(c), hki_in(c));
}

hk_status hki_algo_plan(const hki_algo *a, const hki_call *c, hki_plan *p)
{
    hki_plan_begin(p, c, a->name, hki_algo_span(a, c->ranks));
    if (p->status) return p->status; /* algorithms count on the blocks being there */
    if (c->ranks == 1) emit_alone(p, c);
    else a->emit(p, c);
    hki_plan_end(p);
    hki_plan_fuse(p);
    return p->status;
}
