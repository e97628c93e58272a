/* SPDX-License-Identifier: Apache-2.0
 *
 * Plans as tools see them, and `hocket plan` as a shell sees it: what it proves, what it finds in plans broken by hand, exit codes. */
#include <hocket/plan.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include <cmocka.h>

static char error[HK_TOOL_TEXT];
static char text[1 << 18], broken[1 << 18];

static hk_tool_call ring_of_4(void)
{
    return (hk_tool_call){.op = "all_reduce", .algorithm = "ring", .ranks = 4, .count = 1000, .dtype = HK_F32, .redop = HK_AVG};
}

/* Every algorithm: text of all ranks reads back as plans that are proven and cost the same. */
static void test_every_algorithm_through_text(void **state)
{
    hk_tool_algo a;
    hk_tool_report built, read;
    for (size_t i = 0; hk_tool_algo_at(i, &a); i++) {
        hk_tool_call c = {.op = a.op, .algorithm = a.name, .ranks = 5, .root = 0, .count = 400, .dtype = HK_F32, .redop = HK_SUM};
        hk_tool_plans *p = hk_tool_plans_build(&c, HK_TOOL_ALL_RANKS, error), *q;
        if (!p) fail_msg("%s", error);
        size_t len = 0;
        for (uint32_t r = 0; r < 5; r++) len += hk_tool_plans_print(p, 4 - r, 64, 2, text + len, sizeof text - len);
        assert_true(len < sizeof text);
        q = hk_tool_plans_read(text, len, error);
        if (!q) fail_msg("%s", error);
        hk_tool_plans_check(p, &built);
        hk_tool_plans_check(q, &read);
        if (built.status || read.status) fail_msg("%s by %s: %s", a.op, a.name, built.status ? built.finding : read.finding);
        assert_memory_equal(&built.cost, &read.cost, sizeof built.cost);
        assert_true(built.proven && built.proven == read.proven);
        hk_tool_plans_free(p);
        hk_tool_plans_free(q);
    }
}

static void test_refusals(void **state)
{
    hk_tool_call c = ring_of_4();
    c.algorithm = "rong";
    assert_null(hk_tool_plans_build(&c, HK_TOOL_ALL_RANKS, error));
    assert_string_equal(error, "all_reduce by rong: no such algorithm for this operation");
    c.op = "all_redux";
    assert_null(hk_tool_plans_build(&c, HK_TOOL_ALL_RANKS, error));
    assert_string_equal(error, "all_redux by rong: no such operation");
    hk_tool_algo any;
    assert_true(hk_tool_algo_at(0, &any));
    c.op = any.op, c.algorithm = any.name, c.redop = HK_SUM;
    assert_null(hk_tool_plans_build(&c, 4, error));
    assert_string_equal(error, "no rank 4 of 4");
    static const char one[] = "plan barrier x, rank 0 of 2\n", twice[] = "plan barrier x, rank 0 of 2\nplan barrier x, rank 0 of 2\n",
                      other[] = "plan barrier x, rank 0 of 2\nplan broadcast x, rank 1 of 2, 4 f32\n";
    assert_null(hk_tool_plans_read(one, strlen(one), error));
    assert_string_equal(error, "no plan of rank 1");
    assert_null(hk_tool_plans_read(twice, strlen(twice), error));
    assert_string_equal(error, "two plans of rank 0");
    assert_null(hk_tool_plans_read(other, strlen(other), error));
    assert_string_equal(error, "the plans of ranks 0 and 1 are of different calls");
}

static void test_who_holds_what(void **state)
{
    uint64_t sets[16];
    hk_tool_call c = ring_of_4();
    uint32_t steps, blocks;
    hk_tool_plans *p = hk_tool_plans_build(&c, HK_TOOL_ALL_RANKS, error);
    if (!p) skip(); /* there is no ring in this build */
    hk_tool_plans_shape(p, &c, &steps, &blocks);
    assert_int_equal(blocks, 4);
    assert_int_equal(hk_tool_plans_hold(p, 0, sets), HK_OK);
    for (int i = 0; i < 16; i++) assert_int_equal(sets[i], 0);
    assert_int_equal(hk_tool_plans_hold(p, 2, sets), HK_OK); /* one fold of rank 0's block 3 at rank 1 */
    assert_int_equal(sets[1 * 4 + 3], 3);
    assert_int_equal(sets[1 * 4 + 2], 0);
    assert_int_equal(hk_tool_plans_hold(p, steps, sets), HK_OK);
    for (int i = 0; i < 16; i++) assert_int_equal(sets[i], 15);
    hk_tool_plans_free(p);
}

/* ---- The command */

/* Exit code of `hocket ARGS`, its output in text. */
static int command(const char *args)
{
    char line[1024];
    snprintf(line, sizeof line, "%s/bin/hocket %s 2>&1", BINARY_DIR, args);
    FILE *f = popen(line, "r");
    assert_non_null(f);
    const size_t n = fread(text, 1, sizeof text - 1, f);
    text[n] = 0;
    const int status = pclose(f);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128;
}

static void expect(int code, const char *args, const char *part)
{
    const int got = command(args);
    if (got != code || !strstr(text, part)) fail_msg("hocket %s: exit code %d, without \"%s\":\n%s", args, got, part, text);
}

static void test_command(void **state)
{
    hk_tool_call c = ring_of_4();
    hk_tool_plans *p = hk_tool_plans_build(&c, 0, error);
    if (!p) skip();
    hk_tool_plans_free(p);
    expect(0, "plan all_reduce ring --ranks 4 --rank 1", "  1  out[3] = fold(from 0, in[3]), send -> 2\n");
    expect(0, "plan all_reduce ring --ranks 5 --count 7 --in-place --check", "proven: all_reduce by ring, 5 ranks");
    expect(0, "plan all_reduce ring --ranks 4 --bytes 4000 --cost", "bytes, busiest rank                6000           6000\n");
    expect(0, "plan all_reduce ring --ranks 4 --show 2", "rank 1    -         -         -         {0,1}\n");
    expect(0, "plan all_reduce --compare --ranks 8,64 --bytes 64K", "all_reduce, 64 ranks, 16384 f32 a vector\n");
    expect(2, "plan all_redux ring", "it is one of all_reduce, all_gather,");
    expect(2, "plan all_reduce rong", "ring");
    expect(2, "plan all_reduce", "algorithm is missing: it is one of");
    expect(2, "plan all_reduce ring --rank 4 --ranks 4", "no rank 4 of 4");
    expect(2, "plan all_reduce ring --ranks 4,8", "for --compare");
    expect(2, "plan all_reduce ring --frobnicate", "frobnicate");
    expect(2, "plan /nowhere/plans.txt --check", "/nowhere/plans.txt");
    expect(2, "plan all_reduce ring --ranks 65 --show 1", "64 ranks");
}

/* Writes the ring's plans with the first `from` after the header of a rank replaced, and has them checked. */
static void break_ring(uint32_t rank, const char *from, const char *to, const char *finding)
{
    char path[] = "/tmp/hocket-plans-XXXXXX", args[64], header[64];
    assert_int_equal(command("plan all_reduce ring --ranks 4"), 0);
    snprintf(header, sizeof header, "rank %u of 4", rank);
    char *at = strstr(text, header);
    if (at) at = strstr(at, from);
    assert_non_null(at);
    snprintf(broken, sizeof broken, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
    const int fd = mkstemp(path);
    FILE *f = fdopen(fd, "w");
    assert_non_null(f);
    fputs(broken, f);
    fclose(f);
    snprintf(args, sizeof args, "plan --check %s", path);
    expect(1, args, finding);
    remove(path);
}

static void test_plans_broken_by_hand(void **state)
{
    hk_tool_call c = ring_of_4();
    hk_tool_plans *p = hk_tool_plans_build(&c, 0, error);
    if (!p) skip();
    hk_tool_plans_free(p);
    break_ring(1, "  0  send in[0] -> 2\n", "", "messages: rank 2 step 6");
    break_ring(2, "  6  out[3] = from 1\n", "", "messages: rank 1 step 5");
    break_ring(0, "in[3] -> 1", "in[3] -> 2", "messages: rank 1 step 6");
    break_ring(0, "send in[3]", "send in[2]", "result: rank 0 step 4");
    break_ring(1, "fold(from 0, in[3])", "from 0", "result: rank");
    break_ring(1, "fold(from 0, in[3])", "fold(in[3], from 0, in[3])", "result: rank");
    break_ring(1, "out[3] = fold", "in[3] = fold", "buffers: rank 1 step 1");
    break_ring(3, "send in[2]", "send out[2]", "buffers: rank 3 step 0");
    break_ring(3, "send in[2] -> 0", "send in[2] -> 3", "form: rank 3 step 0");
    break_ring(3, "  6  out[0] = from 2\n", "  6  out[0] = from 2\n  7  out[0..1] = out[1..2]\n", "hazards: rank 3 step 7");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_algorithm_through_text), cmocka_unit_test(test_refusals), cmocka_unit_test(test_who_holds_what),
        cmocka_unit_test(test_command), cmocka_unit_test(test_plans_broken_by_hand),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
