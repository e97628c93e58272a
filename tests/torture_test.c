/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory runs out: each allocation of a call is made to fail in turn. The call must say so, leave nothing behind (memory: LSan;
 * descriptors and address space: counted here) and succeed when tried again. Once a shape was used its calls allocate nothing. */
#include "algo/plans_test.h"
#include "base/base.h"

#include <dirent.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#if defined __SANITIZE_THREAD__ || defined __SANITIZE_ADDRESS__
enum { LIGHT = 1 };
#else
enum { LIGHT = 0 };
#endif

/* ---- One allocation after the other --------------------------------------------------------------------------------- */

/* A scene is set up before each try and torn down after it. */
typedef struct scene {
    const char *name;
    void (*before)(void);
    hk_status (*call)(void);
    void (*after)(void);
    hk_status also; /* what else a failure may be called; HK_OK: the call may succeed in a lesser way (without shared memory) */
} scene;

static unsigned complaints;

static void complain(const char *name, uint64_t k, const char *what)
{
    print_error("%s, allocation %llu fails: %s\n", name, (unsigned long long)k, what);
    complaints++;
}

static unsigned open_descriptors(void)
{
    unsigned n = 0;
    DIR *d = opendir("/proc/self/fd");
    assert_non_null(d);
    while (readdir(d)) n++;
    closedir(d);
    return n;
}

/* MiB of address space: a lost segment is gigabytes. */
static long address_space(void)
{
    long pages = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    assert_true(f && fscanf(f, "%ld", &pages) == 1);
    fclose(f);
    return pages / 256;
}

static struct { uint64_t first, k; bool hit; } armed;

static void arm(uint64_t k)
{
    armed.first = hki_alloc_count();
    armed.k = k;
    armed.hit = false;
    hki_alloc_fail_at(k);
}

/* The end of what is tortured, at the latest when the call returns. */
static void disarm(void)
{
    hki_alloc_fail_at(0);
    if (armed.k && hki_alloc_count() - armed.first >= armed.k) armed.hit = true;
    armed.k = 0;
}

/* false: the k-th allocation was never asked for, so the call has succeeded on its own. */
static bool try_one(const scene *s, uint64_t k)
{
    char text[128];
    if (s->before) s->before();
    arm(k);
    const hk_status status = s->call();
    disarm();
    const bool hit = armed.hit;
    if (hit && status != HK_NO_MEMORY && status != s->also) {
        snprintf(text, sizeof text, "%s instead of HK_NO_MEMORY", hk_status_name(status));
        complain(s->name, k, text);
    }
    if (!hit && status) complain(s->name, k, hk_status_name(status));
    if (hit && status) {
        const hk_status again = s->call();
        snprintf(text, sizeof text, "trying again gives %s", hk_status_name(again));
        if (again) complain(s->name, k, text);
    }
    if (s->after) s->after();
    return hit;
}

static void torture(const scene *s)
{
    uint64_t k = 0;
    try_one(s, UINT64_MAX / 2); /* what is opened once and kept is not this call's loss */
    const unsigned descriptors = open_descriptors();
    const long space = address_space();
    const unsigned before = complaints;
    while (k < 10000 && try_one(s, ++k)) { }
    if (complaints == before) {
        char text[96];
        snprintf(text, sizeof text, "%d descriptors lost", (int)(open_descriptors() - descriptors));
        if (open_descriptors() != descriptors) complain(s->name, 0, text);
        snprintf(text, sizeof text, "%ld MiB of address space lost", address_space() - space);
        if (address_space() > space + 500) complain(s->name, 0, text);
    }
    print_message("%s: %llu allocations\n", s->name, (unsigned long long)k - 1);
    assert_int_equal(complaints, before);
}

/* ---- Plans ---------------------------------------------------------------------------------------------------------- */

static hki_plan plan;
static hki_call plan_call;
static const hki_algo *plan_algo;

static hk_status build_plan(void)
{
    const hk_status status = hki_algo_plan(plan_algo, &plan_call, &plan);
    return status ? status : hki_plan_hazards(&plan);
}

static void plan_new(void) { hki_plan_init(&plan); }
static void plan_free(void) { hki_plan_fini(&plan); }

static void test_plans(void **state)
{
    static size_t counts[] = {3, 0, 7, 40, 1, 9, 2};
    for (const hki_algo *const *a = hki_algos; *a; a++)
        for (unsigned op = 0; op < HKI_COLLECTIVES; op++) {
            if (!((*a)->ops & HKI_OP_BIT(op))) continue;
            char name[96];
            snprintf(name, sizeof name, "%s by %s", hki_op_name((hki_op)op), (*a)->name);
            plan_algo = *a;
            plan_call = (hki_call){.op = (hki_op)op, .ranks = 7, .rank = 3, .dtype = HK_F32, .count = 1000};
            plan_call.red = sum_of(7, HKI_FINISH_AVG, true);
            if (op == HKI_REDUCE_SCATTER_V || op == HKI_ALL_TO_ALL_V) plan_call.in_counts = counts;
            if (op == HKI_ALL_GATHER_V || op == HKI_ALL_TO_ALL_V) plan_call.out_counts = counts;
            torture(&(scene){name, plan_new, build_plan, plan_free, HK_NO_MEMORY});
        }
}

/* ---- Communicators of one process ----------------------------------------------------------------------------------- */

static hk_comm *comms[3], *child;
static float values[64], results[64];

static void one_rank(void)
{
    for (int i = 0; i < 64; i++) values[i] = (float)i, results[i] = -1;
    assert_int_equal(hk_comm_create_local(comms, 1), HK_OK);
}

static void no_ranks(void)
{
    const hk_status status = hk_comm_destroy(comms[0]);
    if (status) print_error("destroy: %s\n", hk_status_name(status)), complaints++;
    comms[0] = NULL;
}

static hk_status create_three(void)
{
    const hk_status status = hk_comm_create_local(comms, 3);
    for (int r = 0; r < 3; r++) {
        if (!comms[r] != !!status) return HK_SYSTEM;
        if (hk_comm_destroy(comms[r])) return HK_ABORTED;
        comms[r] = NULL;
    }
    return status;
}

static hk_status create_three_tcp(void)
{
    hk_config config = HK_CONFIG_INIT;
    config.transport = "tcp";
    const hk_status status = hk_comm_create_local_config(comms, 3, &config);
    for (int r = 0; r < 3; r++) {
        if (!comms[r] != !!status) return HK_SYSTEM;
        if (hk_comm_destroy(comms[r])) return HK_ABORTED;
        comms[r] = NULL;
    }
    return status;
}

static void test_create_local(void **state)
{
    torture(&(scene){"hk_comm_create_local", NULL, create_three, NULL, HK_NO_MEMORY});
    torture(&(scene){"hk_comm_create_local, tcp", NULL, create_three_tcp, NULL, HK_SYSTEM});
}

/* status, or that the results are not the values. */
static hk_status reduced(hk_status status)
{
    for (int i = 0; i < 64 && !status; i++)
        if (results[i] != values[i]) return HK_CORRUPT;
    return status;
}

static hk_status first_all_reduce(void)
{
    return reduced(hk_all_reduce(values, results, 64, HK_F32, HK_SUM, comms[0], NULL, NULL));
}

static hk_status with_request(void)
{
    hk_request *r = NULL;
    const hk_status status = hk_all_reduce(values, results, 64, HK_F32, HK_SUM, comms[0], NULL, &r);
    if (status && r) return HK_SYSTEM;
    return reduced(status ? status : hk_wait(&r));
}

static hk_status in_group(void)
{
    hk_status status = hk_group_start(comms[0]);
    if (status) return status;
    const hk_status sent = hk_send(values, 64, HK_F32, 0, comms[0], NULL, NULL);
    const hk_status received = sent ? sent : hk_recv(results, 64, HK_F32, 0, comms[0], NULL, NULL);
    /* What failed was left out. A send without its receive would never end: the other half is asked for again. */
    if (!sent && received && hk_recv(results, 64, HK_F32, 0, comms[0], NULL, NULL)) return HK_SYSTEM;
    status = hk_group_end(comms[0], NULL);
    return reduced(status ? status : received);
}

static hk_status requests_to_self(void)
{
    hk_request *r[2] = {NULL, NULL};
    hk_status status = hk_recv(results, 64, HK_F32, 0, comms[0], NULL, &r[0]);
    if (status) return status;
    status = hk_send(values, 64, HK_F32, 0, comms[0], NULL, &r[1]);
    if (status && hk_send(values, 64, HK_F32, 0, comms[0], NULL, &r[1])) return HK_SYSTEM;
    const hk_status waited = hk_wait_all(r, 2);
    return reduced(status ? status : waited);
}

/* The message comes before anybody waits for it. */
static hk_status unexpected(void)
{
    hk_request *r = NULL;
    hk_status status = hk_send(values, 64, HK_F32, 0, comms[0], NULL, &r);
    if (status) return status;
    int done; /* twice: out on the lane, off the lane */
    if ((status = hk_test(&r, &done)) || (status = hk_test(&r, &done))) return status;
    status = hk_recv(results, 64, HK_F32, 0, comms[0], NULL, NULL);
    if (status && hk_recv(results, 64, HK_F32, 0, comms[0], NULL, NULL)) return HK_SYSTEM;
    const hk_status sent = hk_wait(&r);
    return reduced(status ? status : sent);
}

static void test_operations(void **state)
{
    torture(&(scene){"first all_reduce", one_rank, first_all_reduce, no_ranks, HK_NO_MEMORY});
    torture(&(scene){"first all_reduce, request", one_rank, with_request, no_ranks, HK_NO_MEMORY});
    torture(&(scene){"group of send and recv", one_rank, in_group, no_ranks, HK_NO_MEMORY});
    torture(&(scene){"send and recv, requests", one_rank, requests_to_self, no_ranks, HK_NO_MEMORY});
    /* KNOWN TO FAIL until an announcement for which there is no memory stays on its lane (src/comm/p2p.c). */
    torture(&(scene){"send before recv", one_rank, unexpected, no_ranks, HK_OK});
}

/* Plans that take the place of others in the cache and cannot be finished: calls of the plan that was there stay right. */
static void test_cache(void **state)
{
    hki_prng g = {1};
    hk_options o = HK_OPTIONS_INIT;
    complaints = 0;
    one_rank();
    for (int i = 0; i < (LIGHT ? 100 : 300); i++) {
        for (int k = 0; k < 64; k++) results[k] = -1;
        assert_int_equal(first_all_reduce(), HK_OK);
        for (uint64_t n = 100 + hki_prng_below(&g, 200); n > 0; n--) { /* other shapes: each tag is one */
            o.tag++;
            assert_int_equal(hk_broadcast(values, results, 8, HK_F32, 0, comms[0], &o, NULL), HK_OK);
        }
        for (int n = 0; n < 64; n++) {
            o.tag++;
            hki_alloc_fail_at(1);
            const hk_status status = hk_broadcast(values, results, 8, HK_F32, 0, comms[0], &o, NULL);
            hki_alloc_fail_at(0);
            assert_int_equal(status, HK_NO_MEMORY);
        }
        for (int k = 0; k < 64; k++) results[k] = -1;
        if (first_all_reduce()) complain("all_reduce after its plan was thrown out", 1, "wrong result");
    }
    no_ranks();
    assert_int_equal(complaints, 0);
}

/* The child must work, and its end must leave the parent as it was. */
static hk_status use_child(hk_status status)
{
    if (status) return child ? HK_SYSTEM : status;
    status = hk_all_reduce(values, results, 64, HK_F32, HK_SUM, child, NULL, NULL);
    const hk_status ended = hk_comm_destroy(child);
    child = NULL;
    return reduced(status ? status : ended);
}

static hk_status split(void) { return use_child(hk_comm_split(comms[0], 0, 0, &child)); }
static hk_status dup(void) { return use_child(hk_comm_dup(comms[0], &child)); }
static hk_status create_group(void) { return use_child(hk_comm_create_group(comms[0], (int[]){0}, 1, 5, &child)); }

static hk_status allocate(void)
{
    void *p = NULL;
    const hk_status status = hk_mem_alloc(comms[0], 1000, &p);
    if (status) return p ? HK_SYSTEM : status;
    return hk_mem_free(comms[0], p);
}

static void test_derived(void **state)
{
    torture(&(scene){"hk_comm_split", one_rank, split, no_ranks, HK_NO_MEMORY});
    torture(&(scene){"hk_comm_dup", one_rank, dup, no_ranks, HK_NO_MEMORY});
    torture(&(scene){"hk_comm_create_group", one_rank, create_group, no_ranks, HK_NO_MEMORY});
    torture(&(scene){"hk_mem_alloc", one_rank, allocate, no_ranks, HK_NO_MEMORY});
}

/* ---- Handles -------------------------------------------------------------------------------------------------------- */

static void nothing(void *acc, const void *src, size_t count, hk_dtype dtype, void *arg) { }

static hk_status make_op(void)
{
    hk_redop op;
    const hk_status status = hk_op_create(nothing, NULL, 1, &op);
    return status ? status : hk_op_free(op);
}

static hk_status make_premul(void)
{
    hk_redop op;
    const hk_status status = hk_op_premul_sum(0.5, &op);
    return status ? status : hk_op_free(op);
}

/* The id is used, since its sockets stay open until then. */
static hk_status make_id(void)
{
    hk_id id;
    const hk_status status = hk_id_create(&id);
    disarm();
    if (status) return status;
    hk_status made = hk_comm_create(&comms[0], 1, 0, &id, NULL);
    if (!made) made = hk_comm_destroy(comms[0]);
    comms[0] = NULL;
    return made;
}

static hk_id created;
static void id_before(void) { assert_int_equal(hk_id_create(&created), HK_OK); }

/* A failed attempt has used the id up; the next takes a new one. */
static hk_status create(void)
{
    hk_status status = hk_comm_create(&comms[0], 1, 0, &created, NULL);
    if (status) {
        disarm();
        if (comms[0]) return HK_ABORTED;
        return hk_id_create(&created) ? HK_ABORTED : status;
    }
    status = hk_comm_destroy(comms[0]);
    comms[0] = NULL;
    return status;
}

static void test_handles(void **state)
{
    torture(&(scene){"hk_op_create", NULL, make_op, NULL, HK_NO_MEMORY});
    torture(&(scene){"hk_op_premul_sum", NULL, make_premul, NULL, HK_NO_MEMORY});
    torture(&(scene){"hk_id_create", NULL, make_id, NULL, HK_NO_MEMORY});
    torture(&(scene){"hk_comm_create", id_before, create, NULL, HK_OK});
}

/* ---- Two ranks ------------------------------------------------------------------------------------------------------ */

typedef struct two { int rank; hk_comm *comm; hk_status (*body)(struct two *); hk_status status; pthread_barrier_t *meet; } two;

static void *two_body(void *arg)
{
    two *t = arg;
    t->status = t->body(t);
    return NULL;
}

/* Runs body on n ranks as threads of one process. */
static void run_ranks(int n, hk_status (*body)(two *), uint64_t timeout_us)
{
    hk_comm *c[2];
    two t[2];
    pthread_t thread[2];
    pthread_barrier_t meet;
    hk_config config = HK_CONFIG_INIT;
    config.timeout_us = timeout_us;
    assert_int_equal(hk_comm_create_local_config(c, n, &config), HK_OK);
    pthread_barrier_init(&meet, NULL, (unsigned)n);
    for (int r = 0; r < n; r++) {
        t[r] = (two){.rank = r, .comm = c[r], .body = body, .meet = &meet};
        assert_int_equal(pthread_create(&thread[r], NULL, two_body, &t[r]), 0);
    }
    for (int r = 0; r < n; r++) pthread_join(thread[r], NULL);
    pthread_barrier_destroy(&meet);
    for (int r = 0; r < n; r++)
        if (t[r].status) print_error("rank %d: %s\n", r, hk_status_name(t[r].status)), complaints++;
}

/* Rank 0 runs out of memory before anything was sent, and tries again: both ranks must mean the same communicator. */
static uint64_t fail_at;

static hk_status use_and_end(two *t, hk_status status, hk_comm *made)
{
    float x = 1, sum = 0;
    if (!status) status = hk_all_reduce(&x, &sum, 1, HK_F32, HK_SUM, made, NULL, NULL);
    if (!status && sum != 2) status = HK_CORRUPT;
    const hk_status ended = made ? hk_comm_destroy(made) : HK_OK;
    const hk_status parent = hk_comm_destroy(t->comm);
    return status ? status : ended ? ended : parent;
}

static hk_status split_after_failure(two *t)
{
    hk_comm *made = NULL;
    if (t->rank == 0) {
        hki_alloc_fail_at(fail_at);
        const hk_status status = hk_comm_split(t->comm, 0, 0, &made);
        hki_alloc_fail_at(0);
        if (status != HK_NO_MEMORY) complain("hk_comm_split on 2 ranks", fail_at, hk_status_name(status));
    }
    pthread_barrier_wait(t->meet);
    const hk_status status = hk_comm_split(t->comm, 0, t->rank, &made);
    return use_and_end(t, status, made);
}

static hk_status group_after_failure(two *t)
{
    hk_comm *made = NULL;
    const int members[] = {0, 1};
    if (t->rank == 0) {
        hki_alloc_fail_at(fail_at);
        const hk_status status = hk_comm_create_group(t->comm, members, 2, 0, &made);
        hki_alloc_fail_at(0);
        if (status != HK_NO_MEMORY) complain("hk_comm_create_group on 2 ranks", fail_at, hk_status_name(status));
    }
    pthread_barrier_wait(t->meet);
    const hk_status status = hk_comm_create_group(t->comm, members, 2, 0, &made);
    return use_and_end(t, status, made);
}

static void test_two_ranks_mean_the_same(void **state)
{
    complaints = 0;
    /* Of a split, what is allocated before anything was sent; later failures are the parent's. */
    for (fail_at = 1; fail_at <= 2; fail_at++) run_ranks(2, split_after_failure, 2000000);
    for (fail_at = 1; fail_at <= 6; fail_at++) run_ranks(2, group_after_failure, 2000000);
    assert_int_equal(complaints, 0);
}

/* ---- Nothing is allocated once a shape was used --------------------------------------------------------------------- */

enum { COUNT = 5000, SMALL = 3 };
typedef struct shape { const char *name; int count; bool requests; } shape;
static const shape *shape_now;

static hk_status finish(hk_status status, hk_request **r) { return status || !r ? status : hk_wait(r); }

static hk_status operation(two *t, float *a, float *b)
{
    const shape *s = shape_now;
    const int n = hk_comm_ranks(t->comm), other = (t->rank + 1) % n;
    hk_request *one = NULL, *back = NULL, **r = s->requests ? &one : NULL;
    const size_t c = (size_t)s->count;
    if (!strcmp(s->name, "all_reduce")) return finish(hk_all_reduce(a, b, c, HK_F32, HK_SUM, t->comm, NULL, r), r);
    if (!strcmp(s->name, "all_gather")) return finish(hk_all_gather(a, b, c, HK_F32, t->comm, NULL, r), r);
    if (!strcmp(s->name, "broadcast")) return finish(hk_broadcast(a, b, c, HK_F32, 0, t->comm, NULL, r), r);
    if (!strcmp(s->name, "barrier")) return finish(hk_barrier(t->comm, NULL, r), r);
    if (n > 1 && !s->requests && t->rank == 0) return hk_send(a, c, HK_F32, other, t->comm, NULL, NULL);
    if (n > 1 && !s->requests) return hk_recv(b, c, HK_F32, other, t->comm, NULL, NULL);
    hk_status status = hk_recv(b, c, HK_F32, other, t->comm, NULL, &one);
    if (!status) status = hk_send(a, c, HK_F32, other, t->comm, NULL, &back);
    const hk_status first = hk_wait(&one), second = hk_wait(&back);
    return status ? status : first ? first : second;
}

static hk_status repeat(two *t)
{
    float *a = hki_alloc(COUNT * sizeof *a), *b = hki_alloc(2 * COUNT * sizeof *b);
    hk_status status = a && b ? HK_OK : HK_NO_MEMORY;
    if (!status) status = operation(t, a, b);
    pthread_barrier_wait(t->meet);
    const uint64_t before = hki_alloc_count();
    pthread_barrier_wait(t->meet);
    for (int i = 0; i < (LIGHT ? 20 : 200) && !status; i++) status = operation(t, a, b);
    pthread_barrier_wait(t->meet);
    const uint64_t allocated = hki_alloc_count() - before;
    /* A send may come before its receive for the first time at any time: each rank keeps room for one. */
    if (allocated > (strcmp(shape_now->name, "send+recv") ? 0 : 2) && t->rank == 0) {
        print_error("%s of %d%s on %d ranks: %llu allocations after the first call\n", shape_now->name, shape_now->count,
                    shape_now->requests ? ", requests" : "", hk_comm_ranks(t->comm), (unsigned long long)allocated);
        complaints++;
    }
    pthread_barrier_wait(t->meet);
    hki_free(a);
    hki_free(b);
    const hk_status ended = hk_comm_destroy(t->comm);
    return status ? status : ended;
}

static void test_no_allocations(void **state)
{
    static const char *const names[] = {"all_reduce", "all_gather", "broadcast", "barrier", "send+recv"};
    complaints = 0;
    for (int n = 1; n <= 2; n++)
        for (unsigned i = 0; i < HKI_COUNT(names); i++)
            for (int variant = 0; variant < 4; variant++) {
                const shape s = {names[i], variant & 1 ? COUNT : SMALL, variant >= 2};
                shape_now = &s;
                run_ranks(n, repeat, 20000000);
            }
    assert_int_equal(complaints, 0);
}

int main(int argc, char **argv)
{
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plans), cmocka_unit_test(test_create_local), cmocka_unit_test(test_operations),
        cmocka_unit_test(test_cache), cmocka_unit_test(test_derived), cmocka_unit_test(test_handles),
        cmocka_unit_test(test_two_ranks_mean_the_same), cmocka_unit_test(test_no_allocations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
