/* SPDX-License-Identifier: Apache-2.0
 * hocket plan: what algorithms cost, by formula, by measure of the plans, and in the model's time. */
#include "plan.h"

#include <stdio.h>
#include <string.h>

static bool in_parts(const hk_tool_op *op)
{
    return !strcmp(op->name, "all_reduce") || !strcmp(op->name, "reduce") || !strcmp(op->name, "broadcast");
}

size_t plan_count(const plan_options *o, uint32_t ranks, size_t bytes)
{
    const size_t blocks = in_parts(&o->op) ? 1 : ranks, fits = bytes / blocks / hk_dtype_size(o->call.dtype);
    return !strcmp(o->op.name, "barrier") ? 0 : fits ? fits : 1;
}

static double model_us(const plan_model *m, const hk_tool_cost *c, size_t elem)
{
    return (double)c->rounds * m->alpha_us + (double)(c->busiest * elem) / (1e3 * m->gbytes_per_s);
}

/* 1234567 us as "1.23 s". */
static const char *time_text(double us, char text[32])
{
    if (us < 1e3) snprintf(text, 32, "%.1f us", us);
    else if (us < 1e6) snprintf(text, 32, "%.2f ms", us / 1e3);
    else snprintf(text, 32, "%.2f s", us / 1e6);
    return text;
}

static void row(const char *what, bool stated, uint64_t formula, uint64_t measured)
{
    printf("  %-24s ", what);
    if (stated) printf("%14llu", (unsigned long long)formula);
    else printf("%14s", "-");
    printf(" %14llu%s\n", (unsigned long long)measured, stated && formula != measured ? "  (differs)" : "");
}

void plan_print_cost(const plan_options *o, const hk_tool_call *call, const hk_tool_cost *m)
{
    hk_tool_cost f = {0};
    char text[32];
    const size_t elem = hk_dtype_size(call->dtype);
    const bool stated = hk_tool_cost_of(call, &f), unequal = in_parts(&o->op) && call->count % call->ranks;
    printf("%-26s %14s %14s\n", "cost", "formula", "measured");
    row("rounds", stated, f.rounds, m->rounds);
    row("messages, busiest rank", stated, f.messages, m->messages);
    row("bytes, busiest rank", stated, f.busiest * elem, m->busiest * elem);
    row("bytes, total", stated, f.total * elem, m->total * elem);
    if (unequal) printf("  %u does not divide %zu: blocks are not equally long, for which the formula stands\n", call->ranks, call->count);
    if (o->op.uneven && stated) puts("  the formula stands for blocks that are all as long as the longest");
    printf("  model time  %llu x %g us + %llu B / %g GB/s = %s\n", (unsigned long long)m->rounds, o->model.alpha_us,
           (unsigned long long)(m->busiest * elem), o->model.gbytes_per_s, time_text(model_us(&o->model, m, elem), text));
}

/* One line an algorithm; the cheapest by the model is marked. */
static void compare(const plan_options *o, uint32_t ranks, size_t bytes)
{
    const size_t elem = hk_dtype_size(o->call.dtype);
    hk_tool_call call = o->call;
    hk_tool_algo a;
    double least = -1;
    char text[32];
    call.ranks = ranks;
    call.count = o->counted ? o->count : plan_count(o, ranks, bytes);
    printf("%s, %u ranks, %zu %s a %s\n", o->op.name, ranks, call.count, hk_dtype_name(call.dtype),
           in_parts(&o->op) ? "vector" : "block");
    printf("  %-20s %8s %18s %18s %14s\n", "algorithm", "rounds", "busiest, bytes", "total, bytes", "model time");
    for (int pass = 0; pass < 2; pass++) {
        for (size_t i = 0; hk_tool_algo_at(i, &a); i++) {
            hk_tool_cost c;
            if (strcmp(a.op, o->op.name)) continue;
            call.algorithm = a.name;
            const bool stated = hk_tool_cost_of(&call, &c);
            const double us = stated ? model_us(&o->model, &c, elem) : -1;
            if (pass == 0) {
                if (stated && (least < 0 || us < least)) least = us;
            } else if (stated) {
                printf("  %-20s %8llu %18llu %18llu %14s%s\n", a.name, (unsigned long long)c.rounds,
                       (unsigned long long)(c.busiest * elem), (unsigned long long)(c.total * elem), time_text(us, text),
                       us <= least ? "  <" : "");
            } else {
                printf("  %-20s        - no formula, or not for this call\n", a.name);
            }
        }
    }
}

void plan_compare(const plan_options *o)
{
    for (size_t r = 0; r < o->nranks; r++)
        for (size_t b = 0; b < (o->counted || !o->nbytes ? 1 : o->nbytes); b++) {
            if (r || b) puts("");
            compare(o, o->ranks[r], o->nbytes ? o->bytes[b] : 0);
        }
    printf("\nmodel time = rounds x %g us + bytes of the busiest rank / %g GB/s; <: the least. --alpha and --beta set other figures.\n",
           o->model.alpha_us, o->model.gbytes_per_s);
}
