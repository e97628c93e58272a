/* SPDX-License-Identifier: Apache-2.0
 * The collectives: how each is called, where its blocks lie and what they must hold. Rooted ones have rank 0 as root. */
#include "perf.h"

#include <string.h>

enum { ROOT = 0, VERIFIED_CALLS = 4 };

#define CALL(op, ...)                                                                                                          \
    static hk_status op(perf_case *c)                                                                                          \
    {                                                                                                                          \
        const perf_options *o = c->run->o;                                                                                     \
        return hk_##op(c->send, c->recv, c->count, o->dtype, ##__VA_ARGS__, c->run->comm, NULL, NULL);                         \
    }
CALL(all_reduce, o->redop)
CALL(all_gather)
CALL(reduce_scatter, o->redop)
CALL(broadcast, ROOT)
CALL(reduce, o->redop, ROOT)
CALL(gather, ROOT)
CALL(scatter, ROOT)
CALL(all_to_all)
#undef CALL

static hk_status barrier(perf_case *c) { return hk_barrier(c->run->comm, NULL, NULL); }

const perf_op perf_ops[] = {
    {"all_reduce", all_reduce, .reduces = true},
    {"all_gather", all_gather, .split = true, .recv_all = true},
    {"reduce_scatter", reduce_scatter, .split = true, .send_all = true, .reduces = true},
    {"broadcast", broadcast, .rooted = true},
    {"reduce", reduce, .reduces = true, .rooted = true},
    {"gather", gather, .split = true, .recv_all = true, .rooted = true},
    {"scatter", scatter, .split = true, .send_all = true, .rooted = true},
    {"all_to_all", all_to_all, .split = true, .send_all = true, .recv_all = true, .never_in_place = true},
    {"barrier", barrier, .copies_nothing = true, .never_in_place = true},
};
const size_t perf_ops_n = sizeof perf_ops / sizeof *perf_ops;

/* nccl-tests' factors: what makes busbw comparable over operations and ranks. */
double perf_bus_factor(const perf_op *op, int ranks)
{
    const double others = (double)(ranks - 1) / ranks;
    if (op->copies_nothing) return 0;
    if (op->split) return others;
    return op->reduces && !op->rooted ? 2 * others : 1;
}

/* ---- Buffers */

static bool is_root(const perf_case *c) { return c->run->rank == ROOT; }
static bool sends(const perf_case *c) { return !c->op->rooted || c->op->recv_all || c->op->reduces || is_root(c); }
static bool receives(const perf_case *c) { return !c->op->rooted || !(c->op->recv_all || c->op->reduces) || is_root(c); }

/* In place one side is the other, or this rank's block of it where that side holds all blocks. */
static void place(perf_case *c)
{
    const size_t own = (size_t)c->run->rank * c->count * hk_dtype_size(c->run->o->dtype);
    c->send = c->memory[0];
    c->recv = c->memory[1];
    if (!c->run->o->in_place) return;
    c->recv = c->memory[0];
    if (c->op->recv_all && receives(c)) c->send = (char *)c->recv + own;
    if (c->op->send_all && sends(c)) c->recv = (char *)c->send + own;
}

static void fill(const perf_case *c)
{
    const size_t all = c->count * (size_t)(c->op->send_all ? c->run->ranks : 1);
    memset(c->memory[1], 0xa5, c->room);
    if (c->run->o->in_place) memset(c->memory[0], 0xa5, c->room);
    if (sends(c)) perf_fill(c->run, c->send, c->run->rank, 0, all);
}

/* Elements that are not what the operation is defined to give. */
static uint64_t wrong_here(const perf_case *c)
{
    const perf_run *r = c->run;
    const size_t first = c->op->send_all ? (size_t)r->rank * c->count : 0, size = hk_dtype_size(r->o->dtype);
    if (c->op->copies_nothing || !receives(c)) return 0;
    if (!c->op->recv_all) return perf_wrong(r, c->recv, c->op->reduces ? PERF_REDUCED : ROOT, first, c->count);
    uint64_t wrong = 0;
    for (int b = 0; b < r->ranks; b++) wrong += perf_wrong(r, (char *)c->recv + (size_t)b * c->count * size, b, first, c->count);
    return wrong;
}

static uint64_t verify(perf_case *c)
{
    fill(c);
    perf_must(c->run->comm, c->op->name, c->op->call(c));
    return wrong_here(c);
}

/* ---- Sizes */

static void one_size(perf_run *r, size_t bytes)
{
    const perf_op *op = r->o->op;
    const size_t size = hk_dtype_size(r->o->dtype), blocks = op->split ? (size_t)r->ranks : 1, fits = bytes / blocks / size;
    perf_case c = {.run = r, .op = op, .count = op->copies_nothing ? 0 : fits ? fits : 1};
    perf_result result = {.bytes = bytes, .count = c.count, .moved = (double)(c.count * size * blocks), .pair = {-1, -1}};
    c.room = c.count * size * blocks;
    for (int k = 0; k < 2; k++) c.memory[k] = perf_memory(r, c.room);
    place(&c);
    result.algorithm = hk_tool_algorithm(r->comm, op->name, c.count, r->o->dtype, r->o->redop);
    uint64_t wrong = 0;
    for (int k = 0; k < VERIFIED_CALLS; k++) wrong += verify(&c);
    fill(&c);
    perf_time(r, op->call, &c, 1, &result);
    if (!r->o->in_place) wrong += wrong_here(&c); /* the timed calls gave that */
    result.wrong = perf_sum(r, wrong + verify(&c));
    result.calls += VERIFIED_CALLS + 1;
    for (int k = 0; k < 2; k++) perf_memory_free(r, c.memory[k]);
    perf_report_row(r, &result);
}

void perf_collective(perf_run *r)
{
    const perf_options *o = r->o;
    r->bus_factor = perf_bus_factor(o->op, r->ranks);
    perf_report_begin(r);
    if (o->op->copies_nothing) return one_size(r, 0);
    for (size_t bytes = o->min; bytes <= o->max; bytes *= o->factor) one_size(r, bytes);
}
