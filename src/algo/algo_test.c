/* SPDX-License-Identifier: Apache-2.0
 *
 * Every registered algorithm, for every number of ranks up to 65, is proven right by the checker; what it claims to cost and to
 * keep is what the checker measures. */
#include "algo/plans_test.h"
#include "plan/check.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { RANKS = 17, THOROUGH = 0 };
#else
enum { RANKS = MOST_RANKS, THOROUGH = 1 };
#endif
enum { SHAPES = 5, SLOTS = 8 };

static world_plans plans;
static uint64_t checked;

static void complain(const hki_algo *a, const world_call *w, const char *what)
{
    const hki_call *c = &w->call;
    print_error("%s by %s: %u ranks, root %u, count %zu, shape %u%s, %s\n", hki_op_name(c->op), a->name, c->ranks, c->root,
                c->count, w->shape, c->in_place ? ", in place" : "", what);
    fail();
}

static void compare_cost(const hki_algo *a, const world_call *w, const hki_check_report *m)
{
    const hki_call *c = &w->call;
    const bool parts = c->op == HKI_ALL_REDUCE || c->op == HKI_REDUCE || c->op == HKI_BROADCAST;
    if (!a->cost || hki_op_uneven(c->op) || (c->op != HKI_BARRIER && c->count == 0) || (parts && c->count % c->ranks)) return;
    const hki_cost k = a->cost(c);
    char text[256];
    snprintf(text, sizeof text, "cost (rounds, messages, busiest, total): stated %lu %lu %lu %lu, measured %lu %lu %lu %lu",
             (unsigned long)k.rounds, (unsigned long)k.messages, (unsigned long)k.busiest, (unsigned long)k.total,
             (unsigned long)m->rounds, (unsigned long)m->messages, (unsigned long)m->busiest, (unsigned long)m->total);
    if (k.rounds != m->rounds || k.messages != m->messages || k.busiest != m->busiest || k.total != m->total)
        complain(a, w, text);
}

static void check_call(const hki_algo *a, const world_call *w)
{
    hki_check_report m;
    if (hki_algo_objection(a, &w->call)) return;
    if (world_plans_build(&plans, a, w)) complain(a, w, "a plan could not be built");
    checked++;
    if (w->call.slots > SLOTS) complain(a, w, "the test gives fewer slots than the plan may count on");
    if (hki_check(plans.at, w->call.ranks, SLOTS, &m)) complain(a, w, m.text);
    if ((a->traits & HKI_RANK_ORDER) && !w->call.red.commutes && !m.rank_order) complain(a, w, "not in rank order");
    if ((a->traits & HKI_FOLD_TWICE) && m.folds > 2) complain(a, w, "more than two folds, one after another");
    if ((a->traits & HKI_FOLD_ONCE) && !(m.rank_order && m.folds <= 1)) complain(a, w, "more than one fold");
    compare_cost(a, w, &m);
}

static bool root_matters(hki_op op, uint32_t root, uint32_t P)
{
    if (!hki_op_rooted(op)) return root == 0;
    return P <= 9 || root <= 1 || root == P / 2 || root == P - 1;
}

static void check_placed(const hki_algo *a, world_call *w)
{
    const bool in_place = w->call.op != HKI_ALL_TO_ALL && w->call.op != HKI_ALL_TO_ALL_V && w->call.op != HKI_BARRIER;
    for (uint32_t root = 0; root < w->call.ranks; root++)
        for (int placed = 0; placed <= in_place; placed++) {
            w->call.root = root;
            w->call.in_place = placed;
            w->call.slots = (w->call.ranks + placed) % 2 ? SLOTS : 0;
            if (root_matters(w->call.op, root, w->call.ranks)) check_call(a, w);
        }
}

static void check_op(const hki_algo *a, hki_op op, uint32_t P)
{
    const size_t counts[] = {64 * P, 0, 1, P, 1009, 2, P - 1, P + 1};
    const uint32_t per_host[] = {0, 2, P / 2, 1, 3, P, 4, P / 3}; /* one that does not divide P is as none */
    const bool uneven = hki_op_uneven(op);
    world_call w = {.call = {.op = op, .ranks = P, .dtype = HK_F32, .red = sum_of(P, HKI_FINISH_AVG, true), .redop = HK_AVG}};
    const size_t n = op == HKI_BARRIER ? 1 : uneven ? SHAPES : THOROUGH ? HKI_COUNT(counts) : 5;
    for (size_t i = 0; i < n; i++) {
        w.call.count = uneven ? 0 : counts[i];
        w.shape = (unsigned)i;
        w.call.per_host = per_host[i];
        w.call.dealt = (i + P) % 2;
        check_placed(a, &w);
    }
    /* Without a finish, for an operator that does not commute: only those in rank order may try. */
    w.call.count = uneven ? 0 : counts[0];
    w.shape = 2;
    w.call.red = sum_of(P, HKI_FINISH_NONE, false);
    if (hki_op_reduces(op)) check_placed(a, &w);
}

static void test_every_algorithm(void **state)
{
    for (const hki_algo *const *a = hki_algos; *a; a++)
        for (unsigned op = 0; op < HKI_COLLECTIVES; op++) {
            const clock_t start = clock();
            const uint64_t before = checked;
            if (!((*a)->ops & HKI_OP_BIT(op))) continue;
            for (uint32_t P = 2; P <= RANKS; P++) check_op(*a, (hki_op)op, P);
            if (getenv("HOCKET_TEST_VERBOSE"))
                print_message("%-16s %-20s %5lu calls %6.2f s\n", hki_op_name((hki_op)op), (*a)->name,
                              (unsigned long)(checked - before), (double)(clock() - start) / CLOCKS_PER_SEC);
        }
    assert_true(checked > 1000);
}

int main(void)
{
    world_plans_init(&plans);
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_every_algorithm)};
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    world_plans_fini(&plans);
    return failed;
}
