/* SPDX-License-Identifier: Apache-2.0
 *
 * parse(print(p)) is p for every algorithm; malformed texts are refused in words that name the line. */
#include "algo/plans_test.h"
#include "plan/check.h"
#include "plan/text.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static world_plans plans;
static hki_plan parsed;
static char text[1 << 20], error[HKI_TEXT_ERROR];
static unsigned long compared;

static void round_trip(const hki_plan *p)
{
    size_t used = 0;
    const size_t len = hki_plan_print(p, text, sizeof text);
    assert_true(len < sizeof text);
    assert_int_equal(strlen(text), len);
    if (hki_plan_parse(text, len, &used, &parsed, error)) fail_msg("%s in:\n%s", error, text);
    assert_int_equal(used, len);
    if (!hki_plan_equal(p, &parsed)) fail_msg("not the same plan once read back:\n%s", text);
    compared++;
}

static void round_trips(const hki_algo *a, world_call *w)
{
    static const size_t counts[] = {64, 1009, 3, 0};
    const bool uneven = hki_op_uneven(w->call.op), reduces = hki_op_reduces(w->call.op);
    const bool places = w->call.op != HKI_BARRIER && w->call.op != HKI_ALL_TO_ALL && w->call.op != HKI_ALL_TO_ALL_V;
    for (unsigned k = 0; k < 4; k++)
        for (unsigned finish = 0; finish <= (reduces ? HKI_FINISH_SCALE : 0); finish++)
            for (unsigned place = 0; place <= places; place++) {
                w->shape = k + 1;
                w->call.count = uneven ? 0 : counts[k] * (k ? 1 : w->call.ranks);
                w->call.root = hki_op_rooted(w->call.op) ? w->call.ranks / 2 : 0;
                w->call.in_place = place;
                w->call.red = sum_of(w->call.ranks, (hki_finish)finish, !(a->traits & HKI_RANK_ORDER) || finish || k % 2);
                assert_int_equal(world_plans_build(&plans, a, w), HK_OK);
                for (uint32_t r = 0; r < w->call.ranks; r++) round_trip(&plans.plan[r]);
            }
}

static void test_every_algorithm_reads_back(void **state)
{
    static const uint32_t ranks[] = {1, 2, 3, 5, 8, 13};
    for (const hki_algo *const *a = hki_algos; *a; a++)
        for (unsigned op = 0; op < HKI_COLLECTIVES; op++)
            for (size_t i = 0; i < HKI_COUNT(ranks) && ((*a)->ops & HKI_OP_BIT(op)); i++) {
                world_call w = {.call = {.op = (hki_op)op, .ranks = ranks[i], .dtype = HK_BF16, .redop = HK_SUM}};
                round_trips(*a, &w);
            }
    assert_true(compared > 1000);
}

/* Displacements, operators of all kinds, what the checker has found. */
static void test_rare_things_read_back(void **state)
{
    static const size_t counts[] = {5, 0, 7}, displs[] = {0, 9, 100};
    static const hki_reduction reductions[] = {
        {.op = HKI_USER, .commutes = true}, {.op = HKI_USER}, {.op = HKI_BXOR, .commutes = true},
        {.op = HKI_SUM, .finish = HKI_FINISH_SCALE, .scale = 1.0 / 3, .commutes = true},
        {.op = HKI_SUM, .finish = HKI_FINISH_SCALE, .scale = -1e-300, .commutes = true},
    };
    hki_plan *p = &plans.plan[0];
    hki_call c = {.op = HKI_ALL_TO_ALL_V, .ranks = 3, .rank = 1, .dtype = HK_F32, .in_counts = counts, .in_displs = displs,
                  .out_counts = counts};
    hki_plan_begin(p, &c, "by_hand", 2);
    hki_plan_send(p, 0, hki_in_parts(&c, 2, 2)); /* wraps around */
    hki_plan_copy(p, hki_out_part(&c, 3, 1), hki_in_part(&c, 3, 1));
    hki_plan_post(p, 3, 2);
    hki_plan_await(p, 70, 0);
    assert_int_equal(hki_plan_end(p), HK_OK);
    round_trip(p);
    assert_non_null(strstr(text, "in   3 blocks: 5@0 0@9 7@100\n"));
    assert_non_null(strstr(text, "send in[2..0] -> 0\n"));

    c = (hki_call){.op = HKI_ALL_REDUCE, .ranks = 2, .rank = 1, .dtype = HK_F64, .count = 32};
    for (size_t i = 0; i < HKI_COUNT(reductions); i++) {
        c.red = reductions[i];
        hki_plan_begin(p, &c, "by_hand", 2);
        hki_plan_reduce_recv(p, 0, hki_out(&c), hki_in(&c));
        hki_plan_finish(p);
        hki_plan_multicast(p, (const uint32_t[]){0}, 1, hki_out(&c));
        assert_int_equal(hki_plan_end(p), HK_OK);
        p->inline_slots = 4;
        round_trip(p);
        hki_plan_fuse(p);
        round_trip(p);
    }
}

static void test_texts_are_for_reading(void **state)
{
    hki_plan *p = &plans.plan[0];
    hki_call c = {.op = HKI_REDUCE, .ranks = 4, .rank = 3, .root = 3, .dtype = HK_F32, .count = 1002, .in_place = true, .per_host = 2, .dealt = true,
                  .red = {.finish = HKI_FINISH_AVG, .divisor = 4, .commutes = true}};
    hki_plan_begin(p, &c, "example", 4);
    const hki_slice t = hki_plan_temp(p, hki_in_parts(&c, 3, 2));
    hki_plan_send_all(p, hki_in(&c));
    hki_plan_recv(p, 1, t);
    hki_plan_send(p, 0, t);
    hki_plan_reduce(p, hki_out(&c), (hki_slice[]){hki_from(0), hki_in(&c), hki_from(2)}, 3);
    hki_plan_post(p, 0, 2);
    hki_plan_await(p, 0, 2);
    assert_int_equal(hki_plan_end(p), HK_OK);
    hki_plan_fuse(p);
    hki_plan_print_windows(p, 100, 2, text, sizeof text);
    assert_string_equal(text, "plan reduce example, rank 3 of 4, 1002 f32 avg, root 3, in place, per host 2 dealt, span 4\n"
                              "windows 3 of 100, depth 2\n"
                              "in   4 blocks: 256 256 240 250\n"
                              "out  4 blocks: 256 256 240 250\n"
                              "temp 2 blocks: 250 256\n"
                              "  0  send out -> 0, 1, 2\n"
                              "  1  temp = from 1, send -> 0\n"
                              "  2  out = fold(from 0, out, from 2), finish\n"
                              "  3  post t0 -> 2\n"
                              "  4  await t0 <- 2\n");
    size_t used = 0;
    assert_int_equal(hki_plan_parse(text, strlen(text), &used, &parsed, error), HK_OK);
    assert_true(hki_plan_equal(p, &parsed));
}

static void test_print_reports_what_it_needs(void **state)
{
    char small[20];
    world_call w = {.call = {.op = HKI_BARRIER, .ranks = 3}};
    const hki_algo *a = hki_algo_find(HKI_BARRIER, "dissemination");
    if (!a) skip();
    assert_int_equal(world_plans_build(&plans, a, &w), HK_OK);
    const size_t len = hki_plan_print(&plans.plan[0], text, sizeof text);
    assert_int_equal(hki_plan_print(&plans.plan[0], NULL, 0), len);
    assert_int_equal(hki_plan_print(&plans.plan[0], small, sizeof small), len);
    assert_int_equal(strlen(small), sizeof small - 1);
    assert_memory_equal(small, text, sizeof small - 1);
}

/* ---- Several plans, and what people write ---- */

static void test_several_plans_in_one_text(void **state)
{
    static const char two[] = "# Two ranks that swap.\n\n"
                              "plan all_gather by_hand, rank 0 of 2, 8 u8, span 1   # numbers of steps may be left out\n"
                              "out[0] = in\n"
                              "send in -> 1\n"
                              "out[1] = from 1\n"
                              "  plan all_gather by_hand, rank 1 of 2, 8 u8, span 1\r\n"
                              "7 out[1] = in\r\n"
                              "7 send in[0] -> 0\r\n"
                              "7 out[0..0] = from 0\n\n# the end";
    hki_check_report report;
    size_t used = 0;
    for (uint32_t r = 0; r < 2; r++)
        if (hki_plan_parse(two, strlen(two), &used, &plans.plan[r], error)) fail_msg("%s", error);
    assert_int_equal(used, strlen(two));
    assert_int_equal(plans.plan[1].nsteps, 3);
    if (hki_check(plans.at, 2, 2, &report)) fail_msg("%s", report.text);
    assert_int_equal(hki_plan_parse(two, strlen(two), &used, &parsed, error), HK_INVALID);
    assert_string_equal(error, "line 11: there is no plan here");
}

#define RING "plan all_reduce ring, rank 1 of 4, 1000 f32 sum, span 1\nin 4 blocks of 250\n"

static const struct { const char *text, *error; } malformed[] = {
    {"", "line 1: there is no plan here"},
    {"hello", "line 1: 'plan OPERATION ALGORITHM, rank R of P, ...' expected, not 'hello'"},
    {"\n# ring\nplan all_redux ring, rank 0 of 2", "line 3: no operation 'all_redux' has plans"},
    {"plan send ring, rank 0 of 2", "line 1: no operation 'send' has plans"},
    {"plan all_reduce ring, rank 4 of 4, 1 f32 sum", "line 1: no rank 4 of 4"},
    {"plan all_reduce ring, rank 0 of 4097, 1 f32 sum", "line 1: the number of ranks is more than 4096"},
    {"plan all_reduce ring, rank 0 of 4, f32 sum", "line 1: the count expected, not 'f32 sum'"},
    {"plan all_reduce ring, rank 0 of 4, 1 f31 sum", "line 1: an element type expected, not 'f31 sum'"},
    {"plan all_reduce ring, rank 0 of 4, 1 f32 summa", "line 1: a reduction expected, not 'summa'"},
    {"plan all_reduce ring, rank 0 of 4, 1 f32 sum, per host 3", "line 1: hosts of 3 do not make up 4 ranks"},
    {"plan all_reduce ring, rank 0 of 4, 1 f32 sum, per host 0", "line 1: hosts of 0 do not make up 4 ranks"},
    {"plan all_reduce ring, rank 0 of 4, 1 f32 sum, root 1", "line 1: 'span' expected, not 'root 1'"},
    {"plan reduce binomial, rank 0 of 4, 1 f32 sum, root 4", "line 1: the root is more than 3"},
    {"plan all_reduce an_algorithm_of_the_longest_name, rank 0 of 4", "line 1: the algorithm's name has more than 31 letters"},
    {"plan all_reduce ring, rank 1 of 4, 1 f32 sum\nin 3 blocks of 1", "line 2: 3 blocks, where this operation has 4"},
    {RING "temp 70000 blocks of 1", "line 3: the number of blocks is more than 65536"},
    {RING "out 4 blocks: 250 250 250", "line 3: a length expected at the end"},
    {RING "0 send in[4] -> 2", "line 3: the block is more than 3"},
    {RING "0 send in[0] -> 2\n1 send in[1]", "line 4: '->' expected at the end"},
    {RING "0 send in[0] -> 4", "line 3: a rank is more than 3"},
    {RING "0 send temp -> 2", "line 3: that buffer has no blocks"},
    {RING "temp 3 blocks of 1\n0 send temp[2..1] -> 2", "line 4: temp does not wrap around"},
    {RING "0 out[3] = fold()", "line 3: in, out or temp expected, not ')'"},
    {RING "0 out[3] = from 0 from 1", "line 3: the end of the line expected, not 'from 1'"},
    {RING "0 out[3] = fold(from 0, in[3]), fin", "line 3: 'send' expected, not 'fin'"},
    {RING "0 post 1 -> 2", "line 3: a token such as t0 expected, not '1 -> 2'"},
    {RING "0 await t99999 <- 2", "line 3: the token is more than 65535"},
    {RING "0 juggle in[0]\x01\xff", "line 3: in, out or temp expected, not 'juggle in[0]?\?'"},
    {RING "0 send in -> 0\nout 4 blocks of 3", "line 4: blocks must be told before the first step"},
    {RING "windows 2 of 100, depth 2", "line 3: 2 windows of 100 are not what blocks of 250 have"},
};

static void test_malformed_texts(void **state)
{
    for (size_t i = 0; i < HKI_COUNT(malformed); i++) {
        size_t used = 0;
        if (hki_plan_parse(malformed[i].text, strlen(malformed[i].text), &used, &parsed, error) != HK_INVALID)
            fail_msg("taken for a plan: %s", malformed[i].text);
        assert_string_equal(error, malformed[i].error);
        assert_int_equal(parsed.status, HK_INVALID);
    }
}

/* Cut anywhere, or with any byte changed: a plan or an error, and what is read prints and reads back. */
static void test_damaged_texts(void **state)
{
    hki_prng chance = {7};
    static char good[1024];
    world_call w = {.call = {.op = HKI_ALL_REDUCE, .ranks = 5, .dtype = HK_F32, .count = 1000, .red = sum_of(5, HKI_FINISH_AVG, true)}};
    const hki_algo *a = hki_algo_find(HKI_ALL_REDUCE, "circulant");
    if (!a) skip();
    assert_int_equal(world_plans_build(&plans, a, &w), HK_OK);
    const size_t len = hki_plan_print(&plans.plan[2], good, sizeof good);
    assert_true(len < sizeof good);
    for (unsigned k = 0; k < 20000; k++) {
        static char spoilt[1024];
        static hki_plan read; /* round_trip uses the other */
        const size_t n = k < len ? k : len;
        size_t used = 0;
        memcpy(spoilt, good, n);
        if (k >= len) spoilt[hki_prng_below(&chance, n)] = good[hki_prng_below(&chance, n)];
        if (k >= len && k % 2) spoilt[hki_prng_below(&chance, n)] = (char)hki_prng_below(&chance, 256);
        if (!hki_plan_parse(spoilt, n, &used, &read, error) && used == n) round_trip(&read);
        if (k == 19999) hki_plan_fini(&read);
    }
}

static void test_no_memory(void **state)
{
    static const char large[] = RING "temp 9 blocks of 3\n0 out = fold(in, from 0), send -> 0, 2\n";
    for (uint64_t k = 1;; k++) {
        hki_plan p;
        size_t used = 0;
        hki_plan_init(&p);
        hki_alloc_fail_at(k);
        const hk_status status = hki_plan_parse(large, strlen(large), &used, &p, error);
        hki_alloc_fail_at(0);
        hki_plan_fini(&p);
        if (!status) break;
        assert_int_equal(status, HK_NO_MEMORY);
        assert_non_null(strstr(error, "no memory"));
    }
}

/* ---- The builder's finish ---- */

static void test_finish_of_a_dropped_step(void **state)
{
    hki_plan *p = &plans.plan[0];
    hki_call c = {.op = HKI_ALL_REDUCE, .ranks = 4, .rank = 1, .dtype = HK_F32, .count = 3, .red = sum_of(4, HKI_FINISH_AVG, true)};
    hki_plan_begin(p, &c, "by_hand", 4);
    hki_plan_reduce_recv(p, 0, hki_out_part(&c, 4, 3), hki_in_part(&c, 4, 3)); /* all three elements */
    hki_plan_reduce_recv(p, 0, hki_out_part(&c, 4, 2), hki_in_part(&c, 4, 2)); /* nothing: dropped */
    hki_plan_finish(p);
    assert_int_equal(p->status, HK_OK);
    assert_int_equal(p->nsteps, 1);
    assert_false(p->steps[0].finish);
    hki_plan_send(p, 0, hki_out_part(&c, 4, 3));
    hki_plan_finish(p);
    assert_int_equal(p->status, HK_INVALID);
}

int main(void)
{
    world_plans_init(&plans);
    hki_plan_init(&parsed);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_algorithm_reads_back), cmocka_unit_test(test_rare_things_read_back),
        cmocka_unit_test(test_texts_are_for_reading),      cmocka_unit_test(test_print_reports_what_it_needs),
        cmocka_unit_test(test_several_plans_in_one_text),  cmocka_unit_test(test_malformed_texts),
        cmocka_unit_test(test_damaged_texts),              cmocka_unit_test(test_no_memory),
        cmocka_unit_test(test_finish_of_a_dropped_step),
    };
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    world_plans_fini(&plans);
    hki_plan_fini(&parsed);
    return failed;
}
