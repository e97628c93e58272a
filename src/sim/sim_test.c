/* SPDX-License-Identifier: Apache-2.0
 *
 * Every algorithm by the production executors in simulated worlds: delays, orders, hand-overs and faults drawn from seeds. The
 * oracle (tests/values.h) shares no code with the library. */
#include "sim/sim.h"

#include "algo/plans_test.h"
#include "plan/check.h"
#include "values.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include <cmocka.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { LIGHT = 1 };
#else
enum { LIGHT = 0 };
#endif
enum { RANKS = 33, FILL = 0xa5 };

static const char *const executor_names[] = {"handed", "event", "mixed", "inline"};

/* One call of all ranks: plans, programs, buffers. */
typedef struct scene {
    world_call w;
    const hki_algo *algo;
    size_t slot_bytes;
    hki_program programs[RANKS];
    uint8_t *in[RANKS], *out[RANKS];
    size_t in_bytes[RANKS], out_bytes[RANKS], in_room[RANKS], out_room[RANKS];
} scene;

static world_plans plans;
static scene sc;
static hki_sim_executor running;
static uint64_t seed_now;
static uint32_t slots_now;
static bool lends_now; /* messages by reference and by put too */

static void complain(uint32_t rank, const char *what)
{
    const hki_call *c = &sc.w.call;
    print_error("%s by %s, %s: %u ranks, root %u, count %zu, shape %u%s, %u slots of %zu bytes%s, %s, seed %llu: rank %u: %s\n",
                hki_op_name(c->op), sc.algo->name, hk_dtype_name(c->dtype), c->ranks, c->root, c->count, sc.w.shape,
                c->in_place ? ", in place" : "", slots_now, sc.slot_bytes, lends_now ? ", lending" : "", executor_names[running],
                (unsigned long long)seed_now, rank, what);
    fail();
}

/* ---- Values and the oracle ------------------------------------------------------------------------------------------ */

/* Floating-point inputs have no exact sums, so that another order of additions shows in the bits. */
static double given(uint32_t r, size_t block, size_t i)
{
    const int64_t v = value_at((int)r, i + block * 131, HK_SUM);
    return sc.w.call.dtype == HK_F32 ? (double)((float)v * 0.1f) : (double)v;
}

static void put(uint8_t *at, size_t i, double v)
{
    if (sc.w.call.dtype == HK_F32) memcpy(at + 4 * i, &(float){(float)v}, 4);
    else memcpy(at + 4 * i, &(int32_t){(int32_t)v}, 4);
}

static double get(const uint8_t *at, size_t i)
{
    float f;
    int32_t n;
    memcpy(&f, at + 4 * i, 4);
    memcpy(&n, at + 4 * i, 4);
    return sc.w.call.dtype == HK_F32 ? (double)f : n;
}

/* Parts of one vector are numbered through, blocks of their own are not. */
static bool in_parts(hki_op op) { return op == HKI_ALL_REDUCE || op == HKI_REDUCE || op == HKI_BROADCAST; }

static double sum(size_t block, size_t i)
{
    const bool max = sc.w.call.red.op == HKI_MAX;
    double v = given(0, block, i);
    for (uint32_t r = 1; r < sc.w.call.ranks; r++) v = max ? fmax(v, given(r, block, i)) : v + given(r, block, i);
    return v;
}

/* Element i of block b of rank me's output. */
static double wanted(uint32_t me, size_t b, size_t i)
{
    const uint32_t root = sc.w.call.root;
    switch (sc.w.call.op) {
    case HKI_ALL_REDUCE: case HKI_REDUCE: return sum(0, i);
    case HKI_REDUCE_SCATTER: case HKI_REDUCE_SCATTER_V: return sum(me, i);
    case HKI_BROADCAST: return given(root, 0, i);
    case HKI_SCATTER: return given(root, me, i);
    case HKI_ALL_TO_ALL: case HKI_ALL_TO_ALL_V: return given((uint32_t)b, me, i);
    default: return given((uint32_t)b, 0, i);
    }
}

static size_t end_of(const hki_blocks *t)
{
    size_t end = 0;
    for (uint32_t b = 0; b < t->n; b++) end = hki_max(end, t->off[b] + t->len[b]);
    return end * 4;
}

static bool has_in(uint32_t r) { return (sc.w.call.op != HKI_BROADCAST && sc.w.call.op != HKI_SCATTER) || r == sc.w.call.root; }
static bool has_out(uint32_t r) { return (sc.w.call.op != HKI_REDUCE && sc.w.call.op != HKI_GATHER) || r == sc.w.call.root; }

static void have(uint8_t **p, size_t *room, size_t want)
{
    if (want <= *room) return;
    hki_free(*p);
    *p = hki_alloc(want);
    *room = want;
    assert_non_null(*p);
}

/* Where rank r's input and its result stand: with in-place one inside the other, the wider side's blocks giving the place. */
static uint8_t *input_at(uint32_t r)
{
    const hki_plan *p = &plans.plan[r];
    const hki_blocks *in = &p->blocks[HKI_IN], *out = &p->blocks[HKI_OUT];
    if (!p->call.in_place || in->n > out->n) return sc.in[r];
    return sc.out[r] + (in->n < out->n ? 4 * out->off[r] : 0);
}

static uint8_t *result_at(uint32_t r)
{
    const hki_plan *p = &plans.plan[r];
    const hki_blocks *in = &p->blocks[HKI_IN], *out = &p->blocks[HKI_OUT];
    return p->call.in_place && in->n > out->n ? sc.in[r] + 4 * in->off[r] : sc.out[r];
}

static void fill(uint32_t r)
{
    const hki_blocks *in = &plans.plan[r].blocks[HKI_IN];
    memset(sc.in[r], FILL, sc.in_bytes[r]);
    memset(sc.out[r], FILL, sc.out_bytes[r]);
    for (uint32_t b = 0; b < in->n && has_in(r); b++)
        for (size_t i = 0; i < in->len[b]; i++) {
            const size_t at = in->off[b] + i;
            put(input_at(r), at, in_parts(sc.w.call.op) ? given(r, 0, at) : given(r, in->n == 1 ? 0 : b, i));
        }
}

/* The right result on rank r? Elements of f32 sums may differ from the oracle's by rounding. */
static bool right(uint32_t r)
{
    const hki_blocks *out = &plans.plan[r].blocks[HKI_OUT];
    const uint8_t *at = result_at(r);
    if (!has_out(r)) {
        for (size_t i = 0; i < sc.out_bytes[r]; i++)
            if (sc.out[r][i] != FILL) return false;
        return true;
    }
    for (uint32_t b = 0; b < out->n; b++)
        for (size_t i = 0; i < out->len[b]; i++) {
            const size_t k = out->off[b] + i;
            const double want = in_parts(sc.w.call.op) ? wanted(r, 0, k) : wanted(r, b, i), d = get(at, k) - want;
            if (!(fabs(d) <= (sc.w.call.dtype == HK_F32 ? 1e-5 * fabs(want) : 0))) return false;
        }
    return true;
}

/* The input as it was? In place it need not be. */
static bool input_kept(uint32_t r)
{
    const hki_plan *p = &plans.plan[r];
    const hki_blocks *in = &p->blocks[HKI_IN];
    for (uint32_t b = 0; b < in->n && has_in(r) && !p->call.in_place; b++)
        for (size_t i = 0; i < in->len[b]; i++) {
            const size_t at = in->off[b] + i;
            const double v = in_parts(sc.w.call.op) ? given(r, 0, at) : given(r, in->n == 1 ? 0 : b, i);
            if (get(sc.in[r], at) != (sc.w.call.dtype == HK_F32 ? (double)(float)v : v)) return false;
        }
    return true;
}

static uint64_t bits(void)
{
    uint64_t h = 0;
    for (uint32_t r = 0; r < sc.w.call.ranks; r++)
        if (has_out(r)) h = hki_hash_bytes(h, result_at(r), end_of(&plans.plan[r].blocks[HKI_OUT]));
    return h;
}

/* ---- Setting up ----------------------------------------------------------------------------------------------------- */

static bool set_scene(const hki_algo *a, const world_call *w, size_t slot_bytes)
{
    sc.w = *w;
    sc.algo = a;
    sc.slot_bytes = slot_bytes;
    if (hki_algo_objection(a, &w->call)) return false;
    assert_int_equal(world_plans_build(&plans, a, w), HK_OK);
    for (uint32_t r = 0; r < w->call.ranks; r++) {
        hki_plan *p = &plans.plan[r];
        assert_int_equal(hki_plan_hazards(p), HK_OK);
        assert_true(hki_program_init(&sc.programs[r], p, slot_bytes));
        sc.in_bytes[r] = end_of(&p->blocks[HKI_IN]);
        sc.out_bytes[r] = end_of(&p->blocks[HKI_OUT]);
        have(&sc.in[r], &sc.in_room[r], sc.in_bytes[r] + 1);
        have(&sc.out[r], &sc.out_room[r], sc.out_bytes[r] + 1);
    }
    return true;
}

static hki_sim *open_world(uint32_t slots, size_t transcript)
{
    const hki_sim_params p = {.ranks = sc.w.call.ranks, .slots = slots, .slot_bytes = sc.slot_bytes, .delay_us = 2,
                              .jitter_us = 10, .hesitate = 16, .lends = lends_now, .transcript_bytes = transcript};
    hki_sim *s = hki_sim_create(&p);
    assert_non_null(s);
    slots_now = slots;
    return s;
}

static void load(hki_sim *s, uint64_t seed, hki_sim_executor executor)
{
    running = executor;
    seed_now = seed;
    hki_sim_reset(s, seed, executor);
    for (uint32_t r = 0; r < sc.w.call.ranks; r++) {
        fill(r);
        assert_int_equal(hki_sim_load(s, r, &sc.programs[r], sc.in[r], sc.out[r], hki_mix(7, 7)), HK_OK);
    }
}

static void all_right(hki_sim *s)
{
    for (uint32_t r = 0; r < sc.w.call.ranks; r++) {
        const hki_sim_verdict v = hki_sim_verdict_of(s, r);
        if (v.state != HKI_SIM_DONE) complain(r, v.state == HKI_SIM_BLOCKED ? "blocked for good" : "did not end");
        if (!right(r)) complain(r, "wrong result, or written where nothing belongs");
        if (!input_kept(r)) complain(r, "the input was changed");
    }
}

/* A call of `count` elements (a block, for operations with blocks) or, for uneven forms, of shape `shape`. */
static world_call call_of(hki_op op, uint32_t P, hk_dtype dtype, size_t count, unsigned shape)
{
    world_call w = {.call = {.op = op, .ranks = P, .root = (P - 1) / 2, .dtype = dtype, .redop = HK_SUM}, .shape = shape};
    w.call.red = sum_of(P, HKI_FINISH_NONE, true);
    w.call.count = hki_op_uneven(op) || op == HKI_BARRIER ? 0 : count;
    return w;
}

static const hki_algo *algo_of(hki_op op, const char *name)
{
    const hki_algo *a = hki_algo_find(op, name);
    assert_non_null(a);
    return a;
}

/* ---- Every algorithm in many worlds --------------------------------------------------------------------------------- */

static uint64_t worlds;

/* All executors, seeds and numbers of slots must give the bits that the oracle has confirmed. */
static void run_scene(unsigned seeds)
{
    const uint32_t slots[] = {(uint32_t)hki_max(2, sc.w.call.slots), 8};
    uint64_t first = 0;
    bool have_first = false;
    for (unsigned i = 0; i < 2 * HKI_COUNT(slots); i++) {
        lends_now = i >= HKI_COUNT(slots);
        hki_sim *s = open_world(slots[i % HKI_COUNT(slots)], 0);
        for (unsigned seed = 0; seed < seeds; seed++)
            for (unsigned e = HKI_SIM_HANDED; e <= HKI_SIM_MIXED; e++) {
                load(s, seed * 1000 + i * 100 + e, (hki_sim_executor)e);
                hki_sim_run(s, HKI_SIM_NEVER);
                worlds++;
                if (have_first) {
                    for (uint32_t r = 0; r < sc.w.call.ranks; r++)
                        if (hki_sim_verdict_of(s, r).state != HKI_SIM_DONE) complain(r, "did not end");
                    if (bits() != first) complain(0, "other bits than the first world of this call");
                    continue;
                }
                all_right(s);
                first = bits();
                have_first = true;
            }
        hki_sim_destroy(s);
    }
    lends_now = false;
}

/* A count that makes three windows or more of slots of P lines. */
static size_t many_windows(const hki_algo *a, hki_op op, uint32_t P)
{
    const size_t w = P / hki_algo_span(a, P) * (HKI_LINE / 4), n = 2 * w + 21;
    return in_parts(op) ? P * n + 5 : n;
}

static void every_call(const hki_algo *a, hki_op op, uint32_t P)
{
    const uint32_t never = HKI_OP_BIT(HKI_ALL_TO_ALL) | HKI_OP_BIT(HKI_ALL_TO_ALL_V) | HKI_OP_BIT(HKI_REDUCE) |
                           HKI_OP_BIT(HKI_BARRIER);
    const bool uneven = hki_op_uneven(op), can_be_in_place = !(HKI_OP_BIT(op) & never);
    const size_t counts[] = {0, 1, 37, many_windows(a, op, P)};
    const unsigned n = op == HKI_BARRIER ? 1 : HKI_COUNT(counts), seeds = LIGHT ? 1 : 3;
    for (unsigned i = 0; i < n; i++) {
        if (LIGHT && (i == 0 || (i == 3 && P > 9))) continue;
        const hk_dtype dtype = (i + P) % 2 ? HK_I32 : HK_F32;
        world_call w = call_of(op, P, dtype, counts[i], uneven ? i + 1 : 0);
        if (dtype == HK_F32 && P % 4 == 1) w.call.red.op = HKI_MAX, w.call.redop = HK_MAX;
        w.call.in_place = can_be_in_place && (i + P) % 4 >= 2;
        w.call.slots = (i + P) % 3 ? 8 : 0; /* plans may count on what there is */
        if (set_scene(a, &w, (size_t)P * HKI_LINE)) run_scene(seeds);
    }
}

static void test_every_algorithm(void **state)
{
    static const uint32_t ranks[] = {2, 3, 4, 5, 7, 8, 9, 17, 33};
    worlds = 0;
    for (const hki_algo *const *a = hki_algos; *a; a++)
        for (unsigned op = 0; op < HKI_COLLECTIVES; op++) {
            const clock_t start = clock();
            if (!((*a)->ops & HKI_OP_BIT(op))) continue;
            for (unsigned i = 0; i < HKI_COUNT(ranks); i++)
                if (!LIGHT || ranks[i] <= 17) every_call(*a, (hki_op)op, ranks[i]);
            if (getenv("HOCKET_TEST_VERBOSE"))
                print_message("%-16s %-20s %6.2f s\n", hki_op_name((hki_op)op), (*a)->name,
                              (double)(clock() - start) / CLOCKS_PER_SEC);
        }
    print_message("%llu worlds\n", (unsigned long long)worlds);
    assert_true(worlds > (LIGHT ? 1000 : 10000));
}

/* What the checker says an in-order walk needs is enough for one. */
static void test_inline_slots(void **state)
{
    hki_check_report m;
    for (const hki_algo *const *a = hki_algos; *a; a++)
        for (unsigned op = 0; op < HKI_COLLECTIVES; op++)
            for (uint32_t P = 2; P <= 9 && ((*a)->ops & HKI_OP_BIT(op)); P++) {
                const world_call w = call_of((hki_op)op, P, HK_I32, 5 * P, 2);
                if (!set_scene(*a, &w, (size_t)P * 1024)) continue;
                assert_int_equal(hki_check(plans.at, P, 2, &m), HK_OK);
                if (m.inline_slots == 0) continue;
                hki_sim *s = open_world(m.inline_slots, 0);
                for (uint64_t seed = 0; seed < 3; seed++) {
                    load(s, seed, HKI_SIM_INLINE);
                    hki_sim_run(s, HKI_SIM_NEVER);
                    all_right(s);
                }
                hki_sim_destroy(s);
            }
}

/* ---- Histories ------------------------------------------------------------------------------------------------------ */

static uint64_t history(hki_sim *s, uint64_t seed)
{
    load(s, seed, HKI_SIM_MIXED);
    hki_sim_run(s, HKI_SIM_NEVER);
    all_right(s);
    return hki_sim_hash(s);
}

static void test_one_seed_one_history(void **state)
{
    const world_call w = call_of(HKI_ALL_REDUCE, 7, HK_F32, 1000, 0);
    assert_true(set_scene(algo_of(HKI_ALL_REDUCE, "ring"), &w, 448));
    uint64_t seen[32];
    char *first = hki_alloc(1 << 18);
    assert_non_null(first);
    hki_sim *s = open_world(2, 1 << 18), *other = open_world(2, 1 << 18);
    for (uint64_t seed = 0; seed < HKI_COUNT(seen); seed++) {
        seen[seed] = history(s, seed);
        strcpy(first, hki_sim_transcript(s));
        assert_null(strstr(first, "..."));
        for (uint64_t k = 0; k < seed; k++) assert_true(seen[k] != seen[seed]);
        assert_true(history(s, seed) == seen[seed] && history(other, seed) == seen[seed]);
        assert_string_equal(first, hki_sim_transcript(s));
        assert_string_equal(first, hki_sim_transcript(other));
    }
    hki_sim_destroy(s);
    hki_sim_destroy(other);
    hki_free(first);
}

/* A run cut into pieces of time is the same history; so is one whose transcript does not fit. */
static void test_time_limits(void **state)
{
    const world_call w = call_of(HKI_ALL_GATHER, 5, HK_I32, 500, 0);
    assert_true(set_scene(algo_of(HKI_ALL_GATHER, "ring"), &w, 320));
    hki_sim *s = open_world(2, 64);
    const uint64_t whole = history(s, 3), end = hki_sim_now(s);
    assert_non_null(strstr(hki_sim_transcript(s), "..."));
    load(s, 3, HKI_SIM_MIXED);
    hki_sim_run(s, end / 2);
    assert_true(hki_sim_now(s) <= end / 2 && hki_sim_hash(s) != whole);
    unsigned running_ranks = 0;
    for (uint32_t r = 0; r < 5; r++) running_ranks += hki_sim_verdict_of(s, r).state == HKI_SIM_RUNNING;
    assert_true(running_ranks > 0);
    for (uint64_t t = end / 2; t <= end; t++) hki_sim_run(s, t);
    all_right(s);
    assert_true(hki_sim_hash(s) == whole);
    hki_sim_destroy(s);
}

static void test_thousand_seeds(void **state)
{
    const clock_t start = clock();
    const world_call w = call_of(HKI_ALL_REDUCE, 33, HK_I32, 8, 0);
    const unsigned seeds = LIGHT ? 100 : 1000;
    assert_true(set_scene(algo_of(HKI_ALL_REDUCE, "recursive_doubling"), &w, 33 * HKI_LINE));
    hki_sim *s = open_world(2, 0);
    for (uint64_t seed = 0; seed < seeds; seed++) history(s, seed);
    hki_sim_destroy(s);
    const double took = (double)(clock() - start) / CLOCKS_PER_SEC;
    print_message("%u seeds, 33 ranks: %.2f s\n", seeds, took);
    if (!LIGHT) assert_true(took < 5);
}

/* ---- Faults --------------------------------------------------------------------------------------------------------- */

/* Calls worth breaking: every algorithm, a few ranks, two windows and more. */
static void each_small_call(void (*body)(hki_sim *, uint64_t seed))
{
    for (const hki_algo *const *a = hki_algos; *a; a++)
        for (unsigned op = 0; op < HKI_COLLECTIVES; op++)
            for (uint32_t P = 3; P <= 8 && ((*a)->ops & HKI_OP_BIT(op)); P += P == 3 ? 2 : 3) {
                const world_call w = call_of((hki_op)op, P, P == 5 ? HK_F32 : HK_I32, many_windows(*a, (hki_op)op, P), 2);
                if (!set_scene(*a, &w, (size_t)P * HKI_LINE)) continue;
                hki_sim *s = open_world(2, 0);
                for (uint64_t seed = 0; seed < (LIGHT ? 2 : 12); seed++) body(s, seed);
                hki_sim_destroy(s);
            }
}

static void stall(hki_sim *s, uint64_t seed)
{
    const uint32_t victim = (uint32_t)seed % sc.w.call.ranks;
    history(s, seed);
    const uint64_t end = hki_sim_now(s), from = end / 3;
    if (hki_sim_verdict_of(s, victim).at_us < from) return; /* it had nothing left to do */
    load(s, seed, HKI_SIM_MIXED);
    hki_sim_stall(s, victim, from, from + 100000);
    hki_sim_run(s, HKI_SIM_NEVER);
    all_right(s);
    if (hki_sim_verdict_of(s, victim).at_us < from + 100000) complain(victim, "ran while it was stalled");
}

static void test_stall(void **state) { each_small_call(stall); }

/* Does rank r lack what victim, or one that in turn lacks what ..., has not given? */
static bool hangs_on(const hki_sim *s, uint32_t r, uint32_t victim)
{
    bool seen[RANKS] = {false};
    uint32_t queue[RANKS], n = 0;
    seen[queue[n++] = r] = true;
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t q = 0; q < sc.w.call.ranks; q++) {
            if (!hki_sim_lacks(s, queue[i], q) || seen[q]) continue;
            if (q == victim) return true;
            if (hki_sim_verdict_of(s, q).state != HKI_SIM_BLOCKED) return false;
            seen[queue[n++] = q] = true;
        }
    return false;
}

/* Where the slots are enough for the plan in line, what runs report as their one cause leads to the killed rank. */
static void blames(hki_sim *s, uint32_t r, uint32_t victim)
{
    char text[96];
    uint32_t at = r;
    for (uint32_t k = 0; k <= sc.w.call.ranks && at != victim; k++) {
        const hki_sim_verdict v = hki_sim_verdict_of(s, at);
        if (v.state != HKI_SIM_BLOCKED || v.waiting_for >= sc.w.call.ranks) break;
        at = v.waiting_for;
    }
    if (at == victim) return;
    for (uint32_t q = 0; q < sc.w.call.ranks && getenv("HOCKET_TEST_VERBOSE"); q++) {
        const hki_sim_verdict v = hki_sim_verdict_of(s, q);
        print_error("rank %u: state %d, waits for %d%s; lacks", q, v.state, (int)v.waiting_for, v.waits_to_send ? " (room)" : "");
        for (uint32_t p = 0; p < sc.w.call.ranks; p++)
            if (hki_sim_lacks(s, q, p)) print_error(" %u", p);
        print_error("\n");
    }
    snprintf(text, sizeof text, "its chain of waiting ends at rank %u, not at the killed rank %u", at, victim);
    complain(r, text);
}

static void dead(hki_sim *s, uint32_t victim)
{
    hki_check_report m;
    assert_int_equal(hki_check(plans.at, sc.w.call.ranks, slots_now, &m), HK_OK);
    const bool in_line = m.inline_slots && m.inline_slots <= slots_now;
    hki_sim_run(s, HKI_SIM_NEVER);
    for (uint32_t r = 0; r < sc.w.call.ranks; r++) {
        const hki_sim_verdict v = hki_sim_verdict_of(s, r);
        if (v.state == HKI_SIM_DONE && !right(r)) complain(r, "done with a wrong result");
        if (v.state == HKI_SIM_FAILED || v.state == HKI_SIM_RUNNING) complain(r, "neither done nor blocked");
        if (v.state == HKI_SIM_KILLED && r != victim) complain(r, "killed by nobody");
        if (v.state == HKI_SIM_BLOCKED && !hangs_on(s, r, victim)) complain(r, "lacks nothing that hangs on the killed rank");
        if (v.state == HKI_SIM_BLOCKED && in_line) blames(s, r, victim);
        if (!input_kept(r)) complain(r, "the input was changed");
    }
}

static void kill_one(hki_sim *s, uint64_t seed)
{
    const uint32_t victim = (uint32_t)(seed * 7) % sc.w.call.ranks;
    history(s, seed);
    const uint64_t end = hki_sim_now(s);
    load(s, seed, HKI_SIM_MIXED);
    hki_sim_kill(s, victim, end * (seed % 4) / 4);
    dead(s, victim);
    load(s, seed, HKI_SIM_MIXED);
    hki_sim_kill_after(s, victim, (uint32_t)seed % 9);
    dead(s, victim);
}

static void test_kill(void **state) { each_small_call(kill_one); }

/* One rank makes another call. Whoever took a message of it has failed, and says because of whom; nobody is done with a wrong
 * result. Ranks that heard of neither may be done or wait. */
static void mismatch(hki_sim *s, uint64_t seed)
{
    const uint32_t P = sc.w.call.ranks, odd = (uint32_t)seed % P;
    load(s, seed, HKI_SIM_MIXED);
    assert_int_equal(hki_sim_load(s, odd, &sc.programs[odd], sc.in[odd], sc.out[odd], hki_mix(8, seed)), HK_OK);
    hki_sim_run(s, HKI_SIM_NEVER);
    unsigned failed = 0;
    for (uint32_t r = 0; r < P; r++) {
        const hki_sim_verdict v = hki_sim_verdict_of(s, r);
        failed += v.state == HKI_SIM_FAILED;
        if (v.state == HKI_SIM_FAILED && v.status != HK_MISMATCH) complain(r, hk_status_name(v.status));
        if (v.state == HKI_SIM_FAILED && r != odd && v.culprit != odd) complain(r, "blames another than the odd rank");
        if (v.state == HKI_SIM_DONE && r != odd && !right(r)) complain(r, "done with a wrong result");
        for (uint32_t q = 0; q < P; q++)
            if (q != r && (q == odd || r == odd) && hki_sim_taken(s, q, r)) complain(r, "took a message of another call");
    }
    if (!failed) complain(odd, "nobody noticed the odd call");
}

static void test_mismatch(void **state) { each_small_call(mismatch); }

/* Another count under the same fingerprint: messages of other lengths are refused too. */
static void test_other_length(void **state)
{
    static world_plans shorter;
    hki_program g = {0};
    world_call w = call_of(HKI_ALL_GATHER, 4, HK_I32, 16, 0);
    world_plans_init(&shorter);
    assert_int_equal(world_plans_build(&shorter, algo_of(HKI_ALL_GATHER, "ring"), &w), HK_OK);
    assert_int_equal(hki_plan_hazards(&shorter.plan[2]), HK_OK);
    assert_true(hki_program_init(&g, &shorter.plan[2], 1024));
    w.call.count = 32;
    assert_true(set_scene(algo_of(HKI_ALL_GATHER, "ring"), &w, 1024));
    hki_sim *s = open_world(2, 0);
    load(s, 1, HKI_SIM_HANDED);
    assert_int_equal(hki_sim_load(s, 2, &g, sc.in[2], sc.out[2], hki_mix(7, 7)), HK_OK);
    hki_sim_run(s, HKI_SIM_NEVER);
    const hki_sim_verdict v = hki_sim_verdict_of(s, 3);
    assert_true(v.state == HKI_SIM_FAILED && v.status == HK_MISMATCH && v.culprit == 2);
    hki_sim_destroy(s);
    hki_program_fini(&g);
    world_plans_fini(&shorter);
}

/* The oracle sees one changed byte wherever it is sent: a test that could not fail would show nothing. */
static void corrupt(hki_sim *s, uint64_t seed)
{
    const uint32_t P = sc.w.call.ranks, from = (uint32_t)seed % P;
    history(s, seed);
    if (hki_sim_sent_payloads(s, from) == 0) return;
    const uint32_t message = (uint32_t)(seed * 5) % hki_sim_sent_payloads(s, from);
    load(s, seed, HKI_SIM_MIXED);
    hki_sim_corrupt(s, from, message, (size_t)seed * 13);
    hki_sim_run(s, HKI_SIM_NEVER);
    unsigned wrong = 0;
    for (uint32_t r = 0; r < P; r++) {
        if (hki_sim_verdict_of(s, r).state != HKI_SIM_DONE) complain(r, "did not end");
        wrong += !right(r);
    }
    if (!wrong && sc.w.call.dtype == HK_I32) complain(from, "a changed byte went unseen");
}

static void test_corrupt(void **state) { each_small_call(corrupt); }

/* ---- Transcripts ---------------------------------------------------------------------------------------------------- */

static unsigned differing;

static void golden(hki_sim *s, const char *name)
{
    static char had[1 << 16];
    char path[512];
    const char *now = hki_sim_transcript(s);
    snprintf(path, sizeof path, "%s/tests/golden/sim/%s.txt", SOURCE_DIR, name);
    if (getenv("BLESS")) {
        FILE *f = fopen(path, "w");
        if (!f || fputs(now, f) < 0 || fclose(f)) fail_msg("%s cannot be written", path);
    }
    FILE *f = fopen(path, "r");
    if (!f) fail_msg("no golden file %s; BLESS=1 writes it", path);
    had[fread(had, 1, sizeof had - 1, f)] = 0;
    fclose(f);
    if (!strcmp(had, now)) return;
    size_t line = 1;
    for (size_t i = 0; had[i] && had[i] == now[i]; i++) line += now[i] == '\n';
    print_error("%s:%zu: the history has changed; BLESS=1 accepts it\n", path, line);
    differing++;
}

static hki_sim *small_world(hki_op op, const char *algo, uint32_t P, size_t count)
{
    const world_call w = call_of(op, P, HK_I32, count, 0);
    assert_true(set_scene(algo_of(op, algo), &w, 1024));
    const hki_sim_params p = {.ranks = P, .slots = 2, .slot_bytes = 1024, .delay_us = 5, .jitter_us = 4,
                              .transcript_bytes = 1 << 16};
    hki_sim *s = hki_sim_create(&p);
    assert_non_null(s);
    slots_now = p.slots;
    load(s, 1, HKI_SIM_HANDED);
    return s;
}

static void test_golden_transcripts(void **state)
{
    hki_sim *s = small_world(HKI_ALL_REDUCE, "ring", 3, 96);
    hki_sim_run(s, HKI_SIM_NEVER);
    all_right(s);
    golden(s, "all_reduce_ring_3");
    hki_sim_destroy(s);

    s = small_world(HKI_ALL_REDUCE, "direct", 3, 96);
    hki_sim_stall(s, 1, 3, 1000);
    hki_sim_run(s, HKI_SIM_NEVER);
    all_right(s);
    golden(s, "all_reduce_direct_3_stall");
    hki_sim_destroy(s);

    s = small_world(HKI_BARRIER, "dissemination", 4, 0);
    hki_sim_kill_after(s, 2, 1);
    dead(s, 2);
    golden(s, "barrier_dissemination_4_kill");
    hki_sim_destroy(s);
    assert_int_equal(differing, 0);
}

int main(int argc, char **argv)
{
    world_plans_init(&plans);
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_algorithm), cmocka_unit_test(test_inline_slots), cmocka_unit_test(test_one_seed_one_history),
        cmocka_unit_test(test_time_limits), cmocka_unit_test(test_thousand_seeds), cmocka_unit_test(test_stall),
        cmocka_unit_test(test_kill), cmocka_unit_test(test_mismatch), cmocka_unit_test(test_other_length),
        cmocka_unit_test(test_corrupt), cmocka_unit_test(test_golden_transcripts),
    };
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    world_plans_fini(&plans);
    for (uint32_t r = 0; r < RANKS; r++) {
        hki_program_fini(&sc.programs[r]);
        hki_free(sc.in[r]);
        hki_free(sc.out[r]);
    }
    return failed;
}
