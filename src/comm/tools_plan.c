/* SPDX-License-Identifier: Apache-2.0
 * hocket/plan.h: plans built, read, printed, checked, for tools. */
#include "algo/algo.h"
#include "comm/redop.h"
#include "plan/check.h"
#include "plan/holds.h"
#include "plan/text.h"

#include <hocket/plan.h>
#include <stdio.h>
#include <string.h>

struct hk_tool_plans {
    uint32_t ranks, first;  /* first: a rank whose plan is here */
    hki_plan *plans, **at;  /* at[r]: rank r's; those not built are empty */
};

enum { PAYLOAD_SLOTS = 2 };

static hk_tool_plans *new_plans(uint32_t ranks, char error[HK_TOOL_TEXT])
{
    hk_tool_plans *t = hki_alloc(sizeof *t);
    if (t) t->plans = hki_alloc(ranks * sizeof *t->plans);
    if (t) t->at = hki_alloc(ranks * sizeof *t->at);
    if (!t || !t->plans || !t->at) {
        snprintf(error, HK_TOOL_TEXT, "out of memory for plans");
        hk_tool_plans_free(t);
        return NULL;
    }
    t->ranks = ranks;
    for (uint32_t r = 0; r < ranks; r++) t->at[r] = &t->plans[r];
    return t;
}

HK_API void hk_tool_plans_free(hk_tool_plans *t)
{
    if (!t) return;
    for (uint32_t r = 0; t->plans && r < t->ranks; r++) hki_plan_fini(&t->plans[r]);
    hki_free(t->plans);
    hki_free(t->at);
    hki_free(t);
}

/* ---- Building ---- */

/* What algorithms are asked with; count arrays of uneven forms are added by the caller. */
static bool resolve(const hk_tool_call *t, const hki_algo **algo, hki_call *c, char error[HK_TOOL_TEXT])
{
    const char *objection = NULL;
    *c = (hki_call){.ranks = t->ranks, .root = t->root, .dtype = t->dtype, .redop = t->redop, .in_place = t->in_place != 0,
                    .per_host = t->per_host, .dealt = t->dealt != 0};
    *algo = NULL;
    if (!hki_op_parse(t->op, &c->op) || c->op >= HKI_COLLECTIVES) objection = "no such operation";
    else if (!t->ranks || t->ranks > HKI_TEXT_RANKS) objection = "1 to 4096 ranks are possible";
    else if (!hk_dtype_size(t->dtype)) objection = "no such element type";
    else if (hki_op_reduces(c->op) && (t->redop >= HK_REDOPS || !hki_redop_resolve(t->redop, t->ranks, &c->red)))
        objection = "no such reduction";
    else if (hki_op_reduces(c->op) && hki_dtype_is_float(t->dtype) && t->redop >= HK_BAND)
        objection = "bitwise reductions are for integers";
    else if (t->root >= t->ranks) objection = "no such root";
    else if (t->per_host && t->ranks % t->per_host) objection = "hosts of so many ranks do not make up all of them";
    else if (t->count > HKI_TEXT_ELEMS) objection = "too many elements";
    else if (t->in_place && (c->op == HKI_BARRIER || c->op == HKI_ALL_TO_ALL || c->op == HKI_ALL_TO_ALL_V))
        objection = "this operation cannot be done in place";
    else if (!(*algo = hki_algo_find(c->op, t->algorithm))) objection = "no such algorithm for this operation";
    else objection = hki_algo_objection(*algo, c);
    if (objection) snprintf(error, HK_TOOL_TEXT, "%s by %s: %s", t->op, t->algorithm, objection);
    else c->count = hki_op_uneven(c->op) || c->op == HKI_BARRIER ? 0 : t->count;
    return !objection;
}

HK_API hk_tool_plans *hk_tool_plans_build(const hk_tool_call *call, uint32_t rank, char error[HK_TOOL_TEXT])
{
    const hki_algo *algo;
    hki_call c;
    *error = 0;
    if (!resolve(call, &algo, &c, error)) return NULL;
    if (rank != HK_TOOL_ALL_RANKS && rank >= c.ranks) return snprintf(error, HK_TOOL_TEXT, "no rank %u of %u", rank, c.ranks), NULL;
    hk_tool_plans *t = new_plans(c.ranks, error);
    size_t *counts = hki_alloc(c.ranks * sizeof *counts);
    for (uint32_t r = 0; counts && r < c.ranks; r++) counts[r] = call->count;
    if (c.op == HKI_REDUCE_SCATTER_V || c.op == HKI_ALL_TO_ALL_V) c.in_counts = counts;
    if (c.op == HKI_ALL_GATHER_V || c.op == HKI_ALL_TO_ALL_V) c.out_counts = counts;
    hk_status status = counts ? HK_OK : HK_NO_MEMORY;
    const char *why = "out of memory for plans";
    for (uint32_t r = 0; t && !status && r < c.ranks; r++) {
        if (rank != HK_TOOL_ALL_RANKS && r != rank) continue;
        c.rank = r;
        /* The other ranks of a gather or scatter have one buffer only. */
        c.in_place = call->in_place && (r == c.root || (c.op != HKI_GATHER && c.op != HKI_SCATTER));
        status = hki_algo_plan(algo, &c, t->at[r]);
        if (status && t->at[r]->error) why = t->at[r]->error;
    }
    hki_free(counts);
    if (t) t->first = rank == HK_TOOL_ALL_RANKS ? 0 : rank;
    if (!status) return t;
    snprintf(error, HK_TOOL_TEXT, "%s by %s: rank %u: %s", call->op, call->algorithm, c.rank, why);
    hk_tool_plans_free(t);
    return NULL;
}

/* ---- Reading ---- */

/* Puts a plan that was read in its place; the first one tells how many there are. */
static bool place(hk_tool_plans **t, hki_plan *p, char error[HK_TOOL_TEXT])
{
    const hki_call *c = &p->call;
    if (!*t && !(*t = new_plans(c->ranks, error))) return false;
    if (c->ranks != (*t)->ranks) return snprintf(error, HK_TOOL_TEXT, "plans of %u and of %u ranks", (*t)->ranks, c->ranks), false;
    hki_plan *to = &(*t)->plans[c->rank];
    if (to->algorithm) return snprintf(error, HK_TOOL_TEXT, "two plans of rank %u", c->rank), false;
    *to = *p;
    to->algorithm = to->name;
    hki_plan_init(p);
    return true;
}

static bool one_call(const hk_tool_plans *t, char error[HK_TOOL_TEXT])
{
    const hki_call *a = &t->plans->call;
    for (uint32_t r = 0; r < t->ranks; r++) {
        const hki_call *b = &t->plans[r].call;
        if (!t->plans[r].algorithm) return snprintf(error, HK_TOOL_TEXT, "no plan of rank %u", r), false;
        if (a->op == b->op && a->dtype == b->dtype && a->count == b->count && a->root == b->root && a->per_host == b->per_host &&
            a->dealt == b->dealt && a->red.op == b->red.op && a->red.finish == b->red.finish && a->red.commutes == b->red.commutes)
            continue;
        return snprintf(error, HK_TOOL_TEXT, "the plans of ranks 0 and %u are of different calls", r), false;
    }
    return true;
}

HK_API hk_tool_plans *hk_tool_plans_read(const char *text, size_t len, char error[HK_TOOL_TEXT])
{
    hk_tool_plans *t = NULL;
    hki_plan p;
    size_t used = 0;
    bool ok = true;
    hki_plan_init(&p);
    *error = 0;
    do ok = !hki_plan_parse(text, len, &used, &p, error) && place(&t, &p, error);
    while (ok && used < len);
    hki_plan_fini(&p);
    if (ok && one_call(t, error)) return t;
    hk_tool_plans_free(t);
    return NULL;
}

/* ---- What they are ---- */

HK_API void hk_tool_plans_shape(const hk_tool_plans *t, hk_tool_call *call, uint32_t *steps, uint32_t *blocks)
{
    const hki_plan *p = t->at[t->first];
    const hki_call *c = &p->call;
    *call = (hk_tool_call){hki_op_name(c->op), p->algorithm, c->ranks, c->root, c->count, c->dtype, c->redop, c->in_place, c->per_host, c->dealt};
    if (hki_op_uneven(c->op)) call->count = p->longest;
    *steps = 0;
    for (uint32_t r = 0; r < t->ranks; r++) *steps = (uint32_t)hki_max(*steps, t->plans[r].nsteps);
    *blocks = p->blocks[HKI_OUT].n;
}

HK_API size_t hk_tool_plans_print(const hk_tool_plans *t, uint32_t rank, size_t window, unsigned depth, char *buf, size_t cap)
{
    if (rank < t->ranks && t->plans[rank].algorithm) return hki_plan_print_windows(t->at[rank], window, depth, buf, cap);
    if (cap) *buf = 0;
    return 0;
}

static const struct { hki_property property; const char *meaning; } properties[] = {
    {HKI_CHECK_FORM, "every step names blocks, ranks and tokens that exist; operands have the same shape"},
    {HKI_CHECK_MESSAGES, "each message has exactly one reading, of the same block lengths"},
    {HKI_CHECK_HAZARDS, "steps that conflict are ordered, and none overlaps itself"},
    {HKI_CHECK_DEADLOCK, "no circle of waiting, with 2 or more payload slots a rank"},
    {HKI_CHECK_BUFFERS, "only buffers that the rank has; no input is written, nothing is read before it is written"},
    {HKI_CHECK_RESULT, "each output block is made of the right input blocks, each rank's exactly once"},
    {HKI_CHECK_ASSOCIATION, "each result is the same tree of folds on all ranks: the same bits"},
    {HKI_CHECK_FINISH, "the average's or factor's multiplication is done exactly once on the way to each result"},
    {HKI_CHECK_BARRIER, "nobody leaves before all have come"},
};

HK_API int hk_tool_property_at(size_t i, hk_tool_property *property)
{
    if (i >= HKI_COUNT(properties)) return 0;
    *property = (hk_tool_property){hki_property_name(properties[i].property), properties[i].meaning};
    return 1;
}

static bool applies(hki_property property, const hki_call *c)
{
    switch (property) {
    case HKI_CHECK_BUFFERS: case HKI_CHECK_RESULT: return c->op != HKI_BARRIER;
    case HKI_CHECK_ASSOCIATION: return hki_op_reduces(c->op);
    case HKI_CHECK_FINISH: return hki_op_reduces(c->op) && c->red.finish;
    case HKI_CHECK_BARRIER: return c->op == HKI_BARRIER;
    default: return true;
    }
}

HK_API void hk_tool_plans_check(hk_tool_plans *t, hk_tool_report *report)
{
    hki_check_report m;
    memset(report, 0, sizeof *report);
    report->status = hki_check(t->at, t->ranks, PAYLOAD_SLOTS, &m);
    if (report->status) {
        snprintf(report->finding, sizeof report->finding, "%s", report->status == HK_NO_MEMORY ? "out of memory for the check" : m.text);
        return;
    }
    for (size_t i = 0; i < HKI_COUNT(properties); i++)
        if (applies(properties[i].property, &t->plans->call)) report->proven |= UINT64_C(1) << i;
    report->cost = (hk_tool_cost){m.rounds, m.messages, m.busiest, m.total};
    report->slots = m.inline_slots;
    report->rendezvous = m.rendezvous;
    report->rank_order = m.rank_order;
    report->fold_once = m.rank_order && m.folds <= 1;
}

HK_API int hk_tool_cost_of(const hk_tool_call *call, hk_tool_cost *cost)
{
    char error[HK_TOOL_TEXT];
    const hki_algo *algo;
    hki_call c;
    if (!resolve(call, &algo, &c, error) || !algo->cost || c.ranks < 2) return 0;
    c.count = c.op == HKI_BARRIER ? 0 : call->count; /* of uneven forms: that of every block */
    const hki_cost k = algo->cost(&c);
    *cost = (hk_tool_cost){k.rounds, k.messages, k.busiest, k.total};
    return 1;
}

HK_API hk_status hk_tool_plans_hold(const hk_tool_plans *t, uint32_t steps, uint64_t *sets)
{
    return hki_plan_holds(t->at, t->ranks, steps, sets);
}
