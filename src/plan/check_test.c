/* SPDX-License-Identifier: Apache-2.0
 *
 * The checker finds what is broken: plans spoilt by hand are named for what they are, and of thousands of random mutants it
 * accepts only those that an interpreter over numbers, which shares no code with it, cannot tell from the original. */
#include "plan/check.h"
#include "algo/plans_test.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { SLOTS = 2, MUTANT_RANKS = 5, MUTANTS = 1500 };

static world_plans plans;
static hki_check_report report;

/* ---- Spoilt by hand ---- */

/* Both parts of a vector in two messages. */
static void emit_two_parts(hki_plan *p, const hki_call *c)
{
    if (c->rank == c->root) hki_plan_copy(p, hki_out(c), hki_in(c));
    for (uint32_t i = 0; i < 2; i++) {
        if (c->rank == c->root) hki_plan_send(p, 1 - c->rank, hki_out_part(c, 2, i));
        else hki_plan_recv(p, c->root, hki_out_part(c, 2, i));
    }
}

/* Everything is sent before anything is heard. */
static void emit_flood(hki_plan *p, const hki_call *c)
{
    for (int i = 0; i < 3; i++) hki_plan_post(p, 0, 1 - c->rank);
    for (int i = 0; i < 3; i++) hki_plan_await(p, 0, 1 - c->rank);
}

static const hki_algo two_parts = {.name = "two_parts", .ops = HKI_OP_BIT(HKI_BROADCAST), .span = HKI_SPAN_ALL,
                                   .emit = emit_two_parts};
static const hki_algo flood = {.name = "flood", .ops = HKI_OP_BIT(HKI_BARRIER), .span = HKI_SPAN_ALL, .emit = emit_flood};

static void drop(hki_plan *p, uint32_t i)
{
    memmove(&p->steps[i], &p->steps[i + 1], (p->nsteps - i - 1) * sizeof *p->steps);
    p->nsteps--;
}

static void swap_steps(hki_plan *p, uint32_t i, uint32_t j)
{
    const hki_step s = p->steps[i];
    p->steps[i] = p->steps[j];
    p->steps[j] = s;
}

static void nothing(hki_plan *p) { (void)p; }
static void drop_first(hki_plan *p) { drop(p, 0); }
static void drop_last(hki_plan *p) { drop(p, p->nsteps - 1); }
static void to_another(hki_plan *p) { p->peers[p->steps[0].to] = 2; }
static void one_short(hki_plan *p) { p->steps[0].slice.n--; }
static void one_off(hki_plan *p) { p->steps[0].slice.first = (p->steps[0].slice.first + 1) % p->call.ranks; }
static void fold_again(hki_plan *p)
{
    hki_plan_reduce(p, hki_out(&p->call), (hki_slice[]){hki_out(&p->call), hki_in(&p->call)}, 2);
}
static void take_for_fold(hki_plan *p) { p->steps[1] = (hki_step){.kind = HKI_STEP_RECV, .peer = 1, .slice = p->steps[1].slice}; }
static void swap_sends(hki_plan *p) { swap_steps(p, 1, 2); }
static void copy_over_itself(hki_plan *p) { hki_plan_copy(p, hki_out_parts(&p->call, 0, 2), hki_out_parts(&p->call, 1, 2)); }
static void write_input(hki_plan *p) { hki_plan_copy(p, hki_in(&p->call), hki_out(&p->call)); }
static void read_early(hki_plan *p) { p->steps[0].slice.buf = HKI_OUT; }
static void finish_twice(hki_plan *p)
{
    hki_plan_reduce(p, hki_out(&p->call), (hki_slice[]){hki_out(&p->call)}, 1);
    hki_plan_finish(p);
}
static void never_finish(hki_plan *p) { p->steps[1].finish = false; }
static void fold_otherwise(hki_plan *p)
{
    const hki_slice s = p->srcs[0];
    p->srcs[0] = p->srcs[1];
    p->srcs[1] = s;
}
static void forget_hazard(hki_plan *p)
{
    hki_plan_hazards(p);
    p->hazards.at[2] = p->hazards.at[1];
}

static const struct broken {
    const char *what, *algo;
    hki_op op;
    uint32_t ranks;
    bool in_place;
    uint32_t spoilt;         /* the rank whose plan is spoilt */
    void (*spoil)(hki_plan *);
    hki_property property;
    uint32_t rank, step;     /* who must be blamed */
} broken[] = {
    {"a dropped send", "ring", HKI_ALL_REDUCE, 4, false, 1, drop_first, HKI_CHECK_MESSAGES, 2, 6},
    {"a dropped receive", "ring", HKI_ALL_REDUCE, 4, false, 2, drop_last, HKI_CHECK_MESSAGES, 1, 5},
    {"a wrong peer", "ring", HKI_ALL_REDUCE, 4, false, 0, to_another, HKI_CHECK_MESSAGES, 1, 6},
    {"a slice one short", "reduce_broadcast", HKI_ALL_REDUCE, 4, false, 1, one_short, HKI_CHECK_MESSAGES, 0, 0},
    {"an offset off by a part", "ring", HKI_ALL_REDUCE, 4, false, 0, one_off, HKI_CHECK_RESULT, 0, 4},
    {"a contribution folded twice", "recursive_doubling", HKI_ALL_REDUCE, 2, false, 0, fold_again, HKI_CHECK_FINISH, 0, 2},
    {"a copy instead of a fold", "recursive_doubling", HKI_ALL_REDUCE, 2, false, 0, take_for_fold, HKI_CHECK_RESULT, 0, 1},
    {"two sends swapped on a lane", NULL, HKI_BROADCAST, 2, false, 0, swap_sends, HKI_CHECK_RESULT, 1, 0},
    {"an unordered overlap", "recursive_doubling", HKI_ALL_REDUCE, 2, true, 1, forget_hazard, HKI_CHECK_HAZARDS, 1, 1},
    {"a step overlapping itself", "ring", HKI_ALL_GATHER, 4, false, 3, copy_over_itself, HKI_CHECK_HAZARDS, 3, 4},
    {"more in flight than slots", NULL, HKI_BARRIER, 2, false, 0, nothing, HKI_CHECK_DEADLOCK, 0, 2},
    {"a written input", "ring", HKI_ALL_REDUCE, 4, false, 2, write_input, HKI_CHECK_BUFFERS, 2, 7},
    {"a read before a write", "ring", HKI_ALL_REDUCE, 4, false, 2, read_early, HKI_CHECK_BUFFERS, 2, 0},
    {"a value finished twice", "recursive_doubling", HKI_ALL_REDUCE, 2, false, 0, finish_twice, HKI_CHECK_FINISH, 0, 2},
    {"a value never finished", "recursive_doubling", HKI_ALL_REDUCE, 2, false, 1, never_finish, HKI_CHECK_FINISH, 1, 1},
    {"a fold unlike the others'", "recursive_doubling", HKI_ALL_REDUCE, 2, false, 1, fold_otherwise, HKI_CHECK_ASSOCIATION, 1, 1},
};

static void test_broken_by_hand(void **state)
{
    for (size_t i = 0; i < HKI_COUNT(broken); i++) {
        const struct broken *b = &broken[i];
        const hki_algo *a = b->algo ? hki_algo_find(b->op, b->algo) : b->op == HKI_BARRIER ? &flood : &two_parts;
        world_call w = {.call = {.op = b->op, .ranks = b->ranks, .dtype = HK_F32, .count = 16 * b->ranks, .in_place = b->in_place,
                                 .red = sum_of(b->ranks, HKI_FINISH_AVG, true)}};
        char where[64];
        assert_non_null(a);
        assert_int_equal(world_plans_build(&plans, a, &w), HK_OK);
        if (b->spoil != nothing) assert_int_equal(hki_check(plans.at, b->ranks, SLOTS, &report), HK_OK);
        assert_int_equal(world_plans_build(&plans, a, &w), HK_OK);
        b->spoil(&plans.plan[b->spoilt]);
        snprintf(where, sizeof where, "%s: rank %u step %u (", hki_property_name(b->property), b->rank, b->step);
        if (hki_check(plans.at, b->ranks, SLOTS, &report) != HK_INVALID || report.property != b->property ||
            report.rank != b->rank || report.step != b->step || strncmp(report.text, where, strlen(where)) != 0)
            fail_msg("%s: wanted \"%s\", got \"%s\"", b->what, where, report.text);
    }
}

static void test_barrier_that_lets_one_slip(void **state)
{
    world_call w = {.call = {.op = HKI_BARRIER, .ranks = 4, .dtype = HK_F32}};
    assert_int_equal(world_plans_build(&plans, hki_algo_find(HKI_BARRIER, "dissemination"), &w), HK_OK);
    for (uint32_t r = 0; r < 4; r++) plans.plan[r].nsteps = 2;
    assert_int_equal(hki_check(plans.at, 4, SLOTS, &report), HK_INVALID);
    assert_int_equal(report.property, HKI_CHECK_BARRIER);
}

static void test_order_for_operators_that_do_not_commute(void **state)
{
    world_call w = {.call = {.op = HKI_ALL_REDUCE, .ranks = 4, .count = 64, .dtype = HK_F32,
                             .red = sum_of(4, HKI_FINISH_NONE, false)}};
    assert_int_equal(world_plans_build(&plans, hki_algo_find(HKI_ALL_REDUCE, "ring"), &w), HK_OK);
    assert_int_equal(hki_check(plans.at, 4, SLOTS, &report), HK_INVALID);
    assert_int_equal(report.property, HKI_CHECK_ASSOCIATION);
}

/* Any allocation may fail: the checker says so, and leaks nothing (sanitizers look). */
static void test_no_memory(void **state)
{
    world_call w = {.call = {.op = HKI_ALL_REDUCE, .ranks = 5, .count = 64, .dtype = HK_F32,
                             .red = sum_of(5, HKI_FINISH_AVG, true)}};
    hk_status status = HK_NO_MEMORY;
    for (uint64_t k = 1; status == HK_NO_MEMORY; k++) {
        assert_int_equal(world_plans_build(&plans, hki_algo_find(HKI_ALL_REDUCE, "direct"), &w), HK_OK);
        hki_alloc_fail_at(k);
        status = hki_check(plans.at, 5, SLOTS, &report);
        hki_alloc_fail_at(0);
    }
    assert_int_equal(status, HK_OK);
}

/* ---- An interpreter over doubles: steps run in random order, as soon as executors' rules let them. ---- */

typedef struct letter { double *data; size_t n; uint32_t send; } letter;

typedef struct machine {
    const world_plans *w;
    uint32_t ranks;
    double *buf[MUTANT_RANKS][HKI_BUFS];
    size_t room[MUTANT_RANKS][HKI_BUFS], *temp_off[MUTANT_RANKS];
    letter lane[MUTANT_RANKS][MUTANT_RANKS][64];
    uint32_t sent[MUTANT_RANKS][MUTANT_RANKS], taken[MUTANT_RANKS][MUTANT_RANKS];
    uint32_t sends[MUTANT_RANKS], unread[MUTANT_RANKS][256];
    bool done[MUTANT_RANKS][256];
    uint32_t held;                /* a rank that does not enter, or MUTANT_RANKS */
} machine;

static double *place_of(machine *m, uint32_t r, uint8_t buf, uint32_t block)
{
    return m->buf[r][buf] + (buf == HKI_TEMP ? m->temp_off[r][block] : m->w->plan[r].blocks[buf].off[block]);
}

static bool one_buffer_is_in(const hki_plan *p) { return p->blocks[HKI_IN].n > p->blocks[HKI_OUT].n; }

/* Where an input or output block stands, in place or not. */
static double *user_block(machine *m, uint32_t r, bool output, uint32_t b)
{
    const hki_plan *p = &m->w->plan[r];
    const uint32_t in = p->blocks[HKI_IN].n, out = p->blocks[HKI_OUT].n;
    const uint32_t own = p->call.op == HKI_GATHER || p->call.op == HKI_SCATTER ? p->call.root : r;
    if (!p->call.in_place) return place_of(m, r, output ? HKI_OUT : HKI_IN, b);
    if (one_buffer_is_in(p)) return place_of(m, r, HKI_IN, output ? own : b);
    return place_of(m, r, HKI_OUT, output || in == out ? b : own);
}

/* What rank r contributes to element e of input block b: integers, so that sums are exact in any order. */
static double input(uint32_t r, uint32_t b, size_t e)
{
    return 1.0 + (double)((r * 7919 + b * 104729 + e * 31 + r * r * b) % 100003);
}

static void machine_open(machine *m, const world_plans *w, uint32_t ranks)
{
    memset(m, 0, sizeof *m);
    m->w = w;
    m->ranks = m->held = ranks;
    for (uint32_t r = 0; r < ranks; r++) {
        const hki_plan *p = &w->plan[r];
        m->temp_off[r] = calloc(p->blocks[HKI_TEMP].n + 1, sizeof(size_t));
        for (uint32_t b = 0; b < p->blocks[HKI_TEMP].n; b++)
            m->temp_off[r][b + 1] = m->temp_off[r][b] + p->blocks[HKI_TEMP].len[b];
        m->room[r][HKI_TEMP] = m->temp_off[r][p->blocks[HKI_TEMP].n];
        for (int k = HKI_IN; k <= HKI_OUT; k++)
            for (uint32_t b = 0; b < p->blocks[k].n; b++)
                m->room[r][k] = hki_max(m->room[r][k], p->blocks[k].off[b] + p->blocks[k].len[b]);
        for (int k = 0; k < HKI_BUFS; k++) {
            m->buf[r][k] = malloc((m->room[r][k] + 1) * sizeof(double));
            for (size_t i = 0; i < m->room[r][k]; i++) m->buf[r][k][i] = NAN;
        }
        const bool reads = (p->call.op != HKI_BROADCAST && p->call.op != HKI_SCATTER) || r == p->call.root;
        for (uint32_t b = 0; reads && b < p->blocks[HKI_IN].n; b++)
            for (size_t e = 0; e < p->blocks[HKI_IN].len[b]; e++) user_block(m, r, false, b)[e] = input(r, b, e);
    }
}

static void machine_close(machine *m)
{
    for (uint32_t r = 0; r < m->ranks; r++) {
        free(m->temp_off[r]);
        for (int k = 0; k < HKI_BUFS; k++) free(m->buf[r][k]);
        for (uint32_t d = 0; d < m->ranks; d++)
            for (uint32_t k = 0; k < m->sent[r][d]; k++) free(m->lane[r][d][k].data);
    }
}

static bool reads_from(const hki_plan *p, const hki_step *s, uint32_t peer)
{
    if (s->kind == HKI_STEP_RECV || s->kind == HKI_STEP_AWAIT) return s->peer == peer;
    for (uint32_t k = 0; s->kind == HKI_STEP_REDUCE && k < s->nsrc; k++)
        if (p->srcs[s->src + k].buf == HKI_MSG && p->srcs[s->src + k].first == peer) return true;
    return false;
}

static bool may_run(const machine *m, uint32_t r, uint32_t i)
{
    const hki_plan *p = &m->w->plan[r];
    const hki_step *s = &p->steps[i];
    if (r == m->held) return false;
    for (uint32_t k = p->hazards.at[i]; k < p->hazards.at[i + 1]; k++)
        if (!m->done[r][p->hazards.pred[k]]) return false;
    for (uint32_t j = 0; s->nto && j < i; j++)
        if (p->steps[j].nto && !m->done[r][j]) return false;
    if (s->nto && m->sends[r] >= SLOTS && m->unread[r][m->sends[r] - SLOTS]) return false;
    for (uint32_t peer = 0; peer < m->ranks; peer++) {
        if (!reads_from(p, s, peer)) continue;
        if (m->taken[peer][r] == m->sent[peer][r]) return false;
        for (uint32_t j = 0; j < i; j++)
            if (!m->done[r][j] && reads_from(p, &p->steps[j], peer)) return false;
    }
    return true;
}

static letter *next_letter(machine *m, uint32_t from, uint32_t to)
{
    letter *l = &m->lane[from][to][m->taken[from][to]++];
    m->unread[from][l->send]--;
    return l;
}

/* False: a message has another length than the step that reads it. */
static bool fold_step(machine *m, uint32_t r, const hki_step *s, size_t total)
{
    const hki_plan *p = &m->w->plan[r];
    const bool received = s->kind == HKI_STEP_RECV;
    const letter *l[64] = {0};
    const uint32_t n = received ? 1 : s->nsrc;
    for (uint32_t k = 0; k < n; k++) {
        if (!received && p->srcs[s->src + k].buf != HKI_MSG) continue;
        l[k] = next_letter(m, received ? s->peer : p->srcs[s->src + k].first, r);
        if (l[k]->n != total) return false;
    }
    size_t at = 0;
    for (uint32_t i = 0; i < s->slice.n; i++) {
        const uint32_t block = hki_slice_block(p, s->slice, i);
        double *dst = place_of(m, r, s->slice.buf, block);
        for (size_t e = 0; e < p->blocks[s->slice.buf].len[block]; e++, at++) {
            double v = 0;
            for (uint32_t k = 0; k < n; k++) {
                const hki_slice from = l[k] ? s->slice : p->srcs[s->src + k];
                v += l[k] ? l[k]->data[at] : place_of(m, r, from.buf, hki_slice_block(p, from, i))[e];
            }
            dst[e] = s->finish && !received && p->call.red.finish ? v / p->call.red.divisor : v;
        }
    }
    return true;
}

static bool run_one(machine *m, uint32_t r, uint32_t i)
{
    const hki_plan *p = &m->w->plan[r];
    const hki_step *s = &p->steps[i];
    const bool token = s->kind == HKI_STEP_POST || s->kind == HKI_STEP_AWAIT;
    const size_t total = token ? 0 : hki_slice_elems(p, s->slice);
    if (s->kind == HKI_STEP_AWAIT && next_letter(m, s->peer, r)->n) return false;
    if (!token && s->kind != HKI_STEP_SEND && !fold_step(m, r, s, total)) return false;
    for (uint32_t k = 0; k < s->nto; k++) {
        const uint32_t d = p->peers[s->to + k];
        letter *l = &m->lane[r][d][m->sent[r][d]++];
        *l = (letter){.data = malloc((total + 1) * sizeof(double)), .n = total, .send = m->sends[r]};
        m->unread[r][m->sends[r]]++;
        size_t at = 0;
        for (uint32_t b = 0; !token && b < s->slice.n; b++) {
            const uint32_t block = hki_slice_block(p, s->slice, b);
            const size_t n = p->blocks[s->slice.buf].len[block];
            memcpy(l->data + at, place_of(m, r, s->slice.buf, block), n * sizeof(double));
            at += n;
        }
    }
    m->sends[r] += s->nto > 0;
    return m->done[r][i] = true;
}

/* Runs all plans to the end; false if they stick. */
static bool machine_run(machine *m, hki_prng *g)
{
    uint32_t left = 0, idle = 0;
    for (uint32_t r = 0; r < m->ranks; r++) left += m->w->plan[r].nsteps;
    while (left && idle < m->ranks) {
        const uint32_t r = (uint32_t)((hki_prng_below(g, m->ranks) + idle) % m->ranks), n = m->w->plan[r].nsteps;
        const uint32_t from = n ? (uint32_t)hki_prng_below(g, n) : 0;
        uint32_t k = 0;
        while (k < n && (m->done[r][(from + k) % n] || !may_run(m, r, (from + k) % n))) k++;
        if (k == n) {
            /* Nothing here: make sure that nothing goes anywhere before giving up. */
            idle = 0;
            for (uint32_t q = 0; q < m->ranks; q++) {
                bool any = false;
                for (uint32_t i = 0; i < m->w->plan[q].nsteps; i++) any |= !m->done[q][i] && may_run(m, q, i);
                idle += !any;
            }
            if (idle < m->ranks) idle = 0;
            continue;
        }
        if (!run_one(m, r, (from + k) % n)) return false;
        left--;
    }
    return left == 0;
}

static double expected(const hki_call *c, uint32_t b, size_t e)
{
    switch (c->op) {
    case HKI_BROADCAST: return input(c->root, b, e);
    case HKI_SCATTER: return input(c->root, c->rank, e);
    case HKI_GATHER: case HKI_ALL_GATHER: case HKI_ALL_GATHER_V: return input(b, 0, e);
    case HKI_ALL_TO_ALL: case HKI_ALL_TO_ALL_V: return input(b, c->rank, e);
    default: break;
    }
    double sum = 0;
    const uint32_t block = c->op == HKI_REDUCE_SCATTER || c->op == HKI_REDUCE_SCATTER_V ? c->rank : b;
    for (uint32_t r = 0; r < c->ranks; r++) sum += input(r, block, e);
    return c->red.finish ? sum / c->red.divisor : sum;
}

/* Results as they must be, inputs as they were. */
static bool right(machine *m)
{
    for (uint32_t r = 0; r < m->ranks; r++) {
        const hki_plan *p = &m->w->plan[r];
        const hki_call *c = &p->call;
        const bool has_in = (c->op != HKI_BROADCAST && c->op != HKI_SCATTER) || r == c->root;
        const bool has_out = (c->op != HKI_REDUCE && c->op != HKI_GATHER) || r == c->root;
        for (uint32_t b = 0; has_out && b < p->blocks[HKI_OUT].n; b++)
            for (size_t e = 0; e < p->blocks[HKI_OUT].len[b]; e++)
                if (user_block(m, r, true, b)[e] != expected(c, b, e)) return false;
        const bool kept = has_in && (!c->in_place || (c->op == HKI_REDUCE && r != c->root));
        for (uint32_t b = 0; kept && b < p->blocks[HKI_IN].n; b++)
            for (size_t e = 0; e < p->blocks[HKI_IN].len[b]; e++)
                if (user_block(m, r, false, b)[e] != input(r, b, e)) return false;
    }
    return true;
}

/* ---- Mutants ---- */

static void insert_copy_of(hki_plan *p, uint32_t i, uint32_t at)
{
    if (p->nsteps == p->steps_room) {
        p->steps = hki_grow(p->steps, p->nsteps * sizeof *p->steps, 2 * p->nsteps * sizeof *p->steps);
        p->steps_room = 2 * p->nsteps;
    }
    const hki_step s = p->steps[i];
    memmove(&p->steps[at + 1], &p->steps[at], (p->nsteps - at) * sizeof *p->steps);
    p->steps[at] = s;
    p->nsteps++;
}

static bool mutate_slice(hki_plan *p, hki_slice *s, hki_prng *g)
{
    const hki_slice old = *s;
    const uint32_t n = s->buf < HKI_MSG ? p->blocks[s->buf].n : p->call.ranks;
    switch (hki_prng_below(g, 5)) {
    case 0: s->first = n ? (s->first + 1) % n : 1; break;
    case 1: s->first = n ? (s->first + n - 1) % n : 1; break;
    case 2: s->n += s->n < 2 || hki_prng_below(g, 2) ? 1 : -1; break;
    case 3: s->buf = (uint8_t)hki_prng_below(g, HKI_BUFS + 1); break;
    default: s->first = (uint32_t)hki_prng_below(g, n + 1); break;
    }
    return s->buf != old.buf || s->first != old.first || s->n != old.n;
}

static bool change(uint32_t *rank, const hki_plan *p, hki_prng *g)
{
    const uint32_t old = *rank;
    *rank = (uint32_t)hki_prng_below(g, p->call.ranks);
    return *rank != old;
}

/* Tries to change something small; false if nothing came of it. */
static bool mutate(hki_plan *p, hki_prng *g)
{
    const uint32_t i = (uint32_t)hki_prng_below(g, p->nsteps), j = (uint32_t)hki_prng_below(g, p->nsteps);
    hki_step *s = &p->steps[i];
    const hki_step old = *s;
    const bool token = s->kind >= HKI_STEP_POST;
    const uint32_t k = s->nsrc ? s->src + (uint32_t)hki_prng_below(g, s->nsrc) : 0, next = i + 1 < p->nsteps ? i + 1 : i;
    const hki_slice first = p->srcs && s->nsrc ? p->srcs[s->src] : s->slice;
    p->hazards.ready = false;
    switch (hki_prng_below(g, 14)) {
    case 0: drop(p, i); return true;
    case 1: insert_copy_of(p, i, i); return true;
    case 2: insert_copy_of(p, i, j); return true;
    case 3: swap_steps(p, i, next); return i != next;
    case 4: swap_steps(p, i, j); return i != j;
    case 5: return (s->kind == HKI_STEP_RECV || s->kind == HKI_STEP_AWAIT) && change(&s->peer, p, g);
    case 6: return s->nto && change(&p->peers[s->to + hki_prng_below(g, s->nto)], p, g);
    case 7: return s->nto && s->nto--;
    case 8: return !token && mutate_slice(p, &s->slice, g);
    case 9: return s->nsrc && mutate_slice(p, &p->srcs[k], g);
    case 10:
        if (s->nsrc < 2 || k == s->src) return false;
        p->srcs[s->src] = p->srcs[k];
        p->srcs[k] = first;
        return true;
    case 11: s->kind = (uint8_t)hki_prng_below(g, HKI_STEP_AWAIT + 1); return s->kind != old.kind;
    case 12: s->finish = !s->finish; return p->call.red.finish;
    default:
        if (!s->nsrc) return false;
        s->nsrc--;
        s->src += (uint32_t)hki_prng_below(g, 2);
        return true;
    }
}

static void dump(const hki_plan *p)
{
    for (uint32_t i = 0; i < p->nsteps; i++) {
        const hki_step *s = &p->steps[i];
        print_error("  %2u kind %u%s buf %u [%u +%u) peer %u nto %u:", i, s->kind, s->finish ? " finish" : "", s->slice.buf,
                    s->slice.first, s->slice.n, s->peer, s->nto);
        for (uint32_t k = 0; k < s->nto; k++) print_error(" %u", p->peers[s->to + k]);
        for (uint32_t k = 0; k < s->nsrc; k++)
            print_error(" <- %u [%u +%u)", p->srcs[s->src + k].buf, p->srcs[s->src + k].first, p->srcs[s->src + k].n);
        print_error("\n");
    }
}

static bool runs_right(hki_prng *g)
{
    static machine m;
    bool ok = true;
    for (int turn = 0; ok && turn < 3; turn++) {
        machine_open(&m, &plans, MUTANT_RANKS);
        ok = machine_run(&m, g) && right(&m);
        machine_close(&m);
    }
    return ok;
}

/* While one rank stays away, no other leaves. */
static bool holds_all(hki_prng *g)
{
    static machine m;
    bool ok = true;
    for (uint32_t held = 0; ok && held < MUTANT_RANKS; held++) {
        machine_open(&m, &plans, MUTANT_RANKS);
        m.held = held;
        machine_run(&m, g);
        for (uint32_t r = 0; r < MUTANT_RANKS; r++) {
            uint32_t left = plans.plan[r].nsteps;
            for (uint32_t i = 0; i < plans.plan[r].nsteps; i++) left -= m.done[r][i];
            ok &= r == held || left > 0;
        }
        machine_close(&m);
    }
    return ok;
}

static world_call random_call(hki_op op, hki_prng *g)
{
    const uint32_t P = MUTANT_RANKS;
    const size_t counts[] = {3 * P, 1, 40, 1009};
    const bool in_place = op != HKI_ALL_TO_ALL && op != HKI_ALL_TO_ALL_V && op != HKI_BARRIER;
    world_call w = {.call = {.op = op, .ranks = P, .dtype = HK_F64, .root = (uint32_t)hki_prng_below(g, P)}};
    w.call.count = hki_op_uneven(op) ? 0 : counts[hki_prng_below(g, 4)];
    if (!hki_op_rooted(op)) w.call.root = 0;
    w.call.in_place = in_place && hki_prng_below(g, 2);
    w.call.red = sum_of(P, hki_prng_below(g, 2) ? HKI_FINISH_AVG : HKI_FINISH_NONE, true);
    w.shape = 1 + (unsigned)hki_prng_below(g, 4);
    return w;
}

static void mutants_of(const hki_algo *a, hki_op op, hki_prng *g)
{
    uint32_t accepted = 0;
    for (int k = 0; k < MUTANTS; k++) {
        const world_call w = random_call(op, g);
        assert_int_equal(world_plans_build(&plans, a, &w), HK_OK);
        if (k < 20 && (hki_check(plans.at, w.call.ranks, SLOTS, &report) || !runs_right(g)))
            fail_msg("%s by %s: the interpreter disagrees with the checker about the original", hki_op_name(op), a->name);
        const uint32_t r = (uint32_t)hki_prng_below(g, w.call.ranks);
        for (uint32_t n = hki_prng_below(g, 4) ? 1 : 2; n > 0 && plans.plan[r].nsteps;) n -= mutate(&plans.plan[r], g);
        if (hki_check(plans.at, w.call.ranks, SLOTS, &report)) {
            assert_true(report.property != HKI_CHECK_NONE && strstr(report.text, hki_property_name(report.property)));
            continue;
        }
        accepted++;
        if (!runs_right(g) || (op == HKI_BARRIER && !holds_all(g))) {
            print_error("%s by %s, count %zu, shape %u, root %u%s: a mutant of rank %u was accepted and is wrong\n",
                        hki_op_name(op), a->name, w.call.count, w.shape, w.call.root, w.call.in_place ? ", in place" : "", r);
            dump(&plans.plan[r]);
            fail();
        }
    }
    /* Most mutations hurt; if they did not, the mutants would show nothing. */
    if (accepted > MUTANTS / 2) fail_msg("%s by %s: %u of %d mutants accepted", hki_op_name(op), a->name, accepted, MUTANTS);
    if (getenv("HOCKET_TEST_VERBOSE"))
        print_message("%-16s %-20s %4u of %d mutants do no harm\n", hki_op_name(op), a->name, accepted, MUTANTS);
}

static void test_mutants(void **state)
{
    hki_prng g = {.state = 20240917};
    for (const hki_algo *const *a = hki_algos; *a; a++)
        for (unsigned op = 0; op < HKI_COLLECTIVES; op++)
            if ((*a)->ops & HKI_OP_BIT(op)) mutants_of(*a, (hki_op)op, &g);
}

int main(void)
{
    world_plans_init(&plans);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_broken_by_hand),
        cmocka_unit_test(test_barrier_that_lets_one_slip),
        cmocka_unit_test(test_order_for_operators_that_do_not_commute),
        cmocka_unit_test(test_no_memory),
        cmocka_unit_test(test_mutants),
    };
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    world_plans_fini(&plans);
    return failed;
}
