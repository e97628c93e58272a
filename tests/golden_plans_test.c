/* SPDX-License-Identifier: Apache-2.0
 *
 * The plans of every algorithm as text, against tests/golden/plans/OPERATION_ALGORITHM_RANKS.txt. BLESS=1 writes the files anew:
 * the diff is the review. An algorithm without a file is only reported, a file without its algorithm is not looked at. */
#include "algo/plans_test.h"
#include "plan/text.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static world_plans plans;
static char now[1 << 18], golden[1 << 18];
static unsigned compared, differing, missing;

static size_t print_all(const hki_algo *a, hki_op op, uint32_t ranks)
{
    world_call w = {.call = {.op = op, .ranks = ranks, .dtype = HK_F32, .redop = HK_SUM}, .shape = 2};
    const bool parts = op == HKI_ALL_REDUCE || op == HKI_REDUCE || op == HKI_BROADCAST;
    size_t len = 0;
    w.call.count = hki_op_uneven(op) || op == HKI_BARRIER ? 0 : parts ? 250 * ranks : 250;
    w.call.red = sum_of(ranks, HKI_FINISH_NONE, true);
    assert_int_equal(world_plans_build(&plans, a, &w), HK_OK);
    for (uint32_t r = 0; r < ranks; r++) {
        if (r) now[len++] = '\n';
        len += hki_plan_print(&plans.plan[r], now + len, sizeof now - len);
        assert_true(len + 2 < sizeof now);
    }
    return len;
}

static void write_file(const char *path, size_t len)
{
    FILE *f = fopen(path, "w");
    if (!f || fwrite(now, 1, len, f) != len || fclose(f)) fail_msg("%s cannot be written", path);
}

static void compare(const hki_algo *a, hki_op op, uint32_t ranks)
{
    char path[512];
    const size_t len = print_all(a, op, ranks);
    snprintf(path, sizeof path, "%s/tests/golden/plans/%s_%s_%u.txt", SOURCE_DIR, hki_op_name(op), a->name, ranks);
    if (getenv("BLESS")) write_file(path, len);
    FILE *f = fopen(path, "r");
    if (!f) {
        print_message("no golden file %s; BLESS=1 writes it\n", path);
        missing++;
        return;
    }
    const size_t had = fread(golden, 1, sizeof golden, f);
    fclose(f);
    compared++;
    if (had == len && !memcmp(golden, now, len)) return;
    size_t line = 1;
    for (size_t i = 0; i < had && i < len && golden[i] == now[i]; i++) line += now[i] == '\n';
    print_error("%s:%zu: the plan has changed; BLESS=1 accepts it\n", path, line);
    differing++;
}

static bool also_at_5(const char *name)
{
    return !strcmp(name, "circulant") || !strcmp(name, "bruck") || !strcmp(name, "halving_doubling");
}

static void test_golden_plans(void **state)
{
    for (const hki_algo *const *a = hki_algos; *a; a++)
        for (unsigned op = 0; op < HKI_COLLECTIVES; op++) {
            if (!((*a)->ops & HKI_OP_BIT(op))) continue;
            compare(*a, (hki_op)op, 4);
            if (also_at_5((*a)->name)) compare(*a, (hki_op)op, 5);
        }
    print_message("%u plans compared, %u differ, %u without a file\n", compared, differing, missing);
    assert_int_equal(differing, 0);
}

int main(void)
{
    world_plans_init(&plans);
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_golden_plans)};
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    world_plans_fini(&plans);
    return failed;
}
