/* SPDX-License-Identifier: Apache-2.0
 *
 * What the header promises besides right sums: requests in any order, groups, point to point with tags and any source, overlapping
 * buffers in issue order, split, dup and groups by members, user operators, in-place and overlap rules, errors that break nothing and
 * errors that break everything. Ranks are threads; every case runs over shared memory and over TCP. */
#include "built.h"
#include "values.h"

#include "os/os.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#define MAX 9

typedef struct seat seat;
typedef void (*body)(seat *);
struct seat {
    int rank, ranks;
    hk_comm *comm;
    body run;
    pthread_barrier_t *barrier; /* of the test itself: not a hocket operation */
    int32_t kept[4], want; /* a dropped request's buffer, in use until destroy, and what is in it then (0: unused) */
    char failure[600];
};

#define CHECK(s, x) \
    do { \
        if (!(x)) { \
            if (!*(s)->failure) \
                snprintf((s)->failure, sizeof(s)->failure, "line %d rank %d of %d: %s (last error: %s)", __LINE__, (s)->rank, (s)->ranks, #x, \
                         (s)->comm ? hk_last_error((s)->comm) : hk_last_error(NULL)); \
            return; \
        } \
    } while (0)
#define OK(s, call) CHECK(s, (call) == HK_OK)

static void *thread_body(void *arg)
{
    seat *s = arg;
    s->run(s);
    hk_comm_destroy(s->comm);
    if (s->want && s->kept[0] != s->want && !*s->failure) snprintf(s->failure, sizeof s->failure, "a dropped request was not carried out");
    return NULL;
}

static const char *transports[] = {"auto", "tcp"};

static void with_config(int ranks, body run, hk_config config)
{
    for (int t = 0; t < 2 && built_with(transports[t]); t++) {
        hk_comm *comms[MAX];
        seat seats[MAX] = {0};
        pthread_t threads[MAX];
        pthread_barrier_t barrier;
        pthread_barrier_init(&barrier, NULL, (unsigned)ranks);
        config.transport = transports[t];
        assert_int_equal(hk_comm_create_local_config(comms, ranks, &config), HK_OK);
        for (int r = 0; r < ranks; r++) {
            seats[r] = (seat){.rank = r, .ranks = ranks, .comm = comms[r], .run = run, .barrier = &barrier};
            pthread_create(&threads[r], NULL, thread_body, &seats[r]);
        }
        for (int r = 0; r < ranks; r++) pthread_join(threads[r], NULL);
        pthread_barrier_destroy(&barrier);
        for (int r = 0; r < ranks; r++)
            if (*seats[r].failure) fail_msg("%s: %s", transports[t], seats[r].failure);
    }
}

static void with(int ranks, body run)
{
    hk_config config = HK_CONFIG_INIT;
    config.timeout_us = 20000000;
    with_config(ranks, run, config);
}

/* ---- Requests ------------------------------------------------------------------------------------------------------------------ */

enum { MANY = 64, BIG = 2500000 };

/* 64 all_reduces are issued while the others have not started, in no time, and are waited for in another order on each rank. */
static void many_all_reduces(seat *s)
{
    static const size_t n = 20000;
    float *x = malloc(MANY * n * sizeof *x);
    hk_request *q[MANY];
    for (size_t i = 0; i < MANY * n; i++) x[i] = (float)(s->rank + 1) * (float)(i % 7);
    if (s->rank == 0) {
        const uint64_t begin = hki_now_us();
        for (int k = 0; k < MANY; k++) OK(s, hk_all_reduce(x + k * n, x + k * n, n, HK_F32, HK_SUM, s->comm, NULL, &q[k]));
        const uint64_t took = hki_now_us() - begin;
        pthread_barrier_wait(s->barrier);
        CHECK(s, took < 2000000); /* never waits for a peer: with a sleeping one this would not end */
    } else {
        pthread_barrier_wait(s->barrier);
        for (int k = 0; k < MANY; k++) OK(s, hk_all_reduce(x + k * n, x + k * n, n, HK_F32, HK_SUM, s->comm, NULL, &q[k]));
    }
    for (int k = 0; k < MANY; k++) OK(s, hk_wait(&q[(k * (2 * s->rank + 1) + 5) % MANY]));
    const float sum = (float)(s->ranks * (s->ranks + 1) / 2);
    for (size_t i = 0; i < MANY * n; i++) CHECK(s, x[i] == sum * (float)(i % 7));
    for (int k = 0; k < MANY; k++) CHECK(s, q[k] == NULL);
    free(x);
}

/* Opposite isend and irecv of 10 MB each way. */
static void opposite(seat *s)
{
    const int other = 1 - s->rank;
    enum { PAIRS = 8 };
    uint32_t *out = malloc((size_t)BIG * 4), *in[PAIRS];
    hk_request *q[2 * PAIRS];
    for (size_t i = 0; i < BIG; i++) out[i] = (uint32_t)(i * 2654435761u) + (uint32_t)s->rank;
    for (int k = 0; k < PAIRS; k++) {
        in[k] = calloc(BIG, 4);
        OK(s, hk_send(out, BIG, HK_U32, other, s->comm, NULL, &q[2 * k]));
        OK(s, hk_recv(in[k], BIG, HK_U32, other, s->comm, NULL, &q[2 * k + 1]));
    }
    OK(s, hk_wait_all(q, 2 * PAIRS));
    for (int k = 0; k < PAIRS; k++) {
        for (size_t i = 0; i < BIG; i++) CHECK(s, in[k][i] == (uint32_t)(i * 2654435761u) + (uint32_t)other);
        free(in[k]);
    }
    free(out);
}

static void test_and_any(seat *s)
{
    int32_t a[4] = {s->rank, 1, 2, 3}, b[4] = {1, 1, 1, 1};
    hk_request *q[3] = {NULL};
    int done = 0;
    OK(s, hk_all_reduce(a, a, 4, HK_I32, HK_SUM, s->comm, NULL, &q[0]));
    OK(s, hk_all_reduce(b, b, 4, HK_I32, HK_PROD, s->comm, NULL, &q[2]));
    size_t which = 9;
    OK(s, hk_wait_any(q, 3, &which));
    CHECK(s, which == 0 || which == 2);
    while (!done) OK(s, hk_test(&q[2 - which], &done));
    OK(s, hk_wait_any(q, 3, &which));
    CHECK(s, which == 3);
    OK(s, hk_test(&q[0], &done));
    CHECK(s, done);
    CHECK(s, a[1] == s->ranks && b[0] == 1);
    s->kept[0] = 1;
    s->want = s->ranks;
    OK(s, hk_all_reduce(s->kept, s->kept, 4, HK_I32, HK_SUM, s->comm, NULL, &q[0]));
    hk_request_free(&q[0]); /* goes on: destroy waits for it */
    CHECK(s, q[0] == NULL);
    OK(s, hk_barrier(s->comm, NULL, NULL));
}

/* An expired wait leaves everything as it was. */
static void wait_expires(seat *s)
{
    int32_t x = 1;
    hk_request *q = NULL;
    if (s->rank == 0) {
        OK(s, hk_all_reduce(&x, &x, 1, HK_I32, HK_SUM, s->comm, NULL, &q));
        CHECK(s, hk_wait_for(&q, 30000) == HK_WAIT_EXPIRED && q);
        CHECK(s, !hk_breaks(HK_WAIT_EXPIRED) && hk_breaks(HK_TIMEOUT));
        pthread_barrier_wait(s->barrier);
        OK(s, hk_wait(&q));
    } else {
        pthread_barrier_wait(s->barrier);
        OK(s, hk_all_reduce(&x, &x, 1, HK_I32, HK_SUM, s->comm, NULL, NULL));
    }
    CHECK(s, x == s->ranks);
}

static hk_status finish(hk_status status, hk_call *c)
{
    return status == HK_WAIT_EXPIRED && c->request ? hk_wait(&c->request) : status;
}

/* Operations as records do what their functions do: first and again, at once and under way. */
static void records(seat *s)
{
    enum { N = 5 };
    int32_t in[9 * N], out[9 * N];
    for (int round = 0; round < 12; round++) {
        for (int k = 0; k < s->ranks * N; k++) in[k] = 1000 * s->rank + k + round;
        const int stray = 100 * s->rank + round; /* in fields that are not the operation's */
        hk_call c = {sizeof c, in, out, N, HK_I32, HK_SUM, stray, HK_ALL_REDUCE, round % 3, s->comm, NULL, NULL};
        OK(s, finish(hk_run(&c), &c));
        CHECK(s, !c.request);
        for (int k = 0; k < N; k++) CHECK(s, out[k] == 500 * s->ranks * (s->ranks - 1) + s->ranks * (k + round));
        c.operation = HK_ALL_GATHER, c.op = (hk_redop)stray;
        OK(s, finish(hk_run(&c), &c));
        for (int k = 0; k < s->ranks * N; k++) CHECK(s, out[k] == 1000 * (k / N) + k % N + round);
        c.operation = HK_ALL_TO_ALL;
        OK(s, finish(hk_run(&c), &c));
        for (int k = 0; k < s->ranks * N; k++) CHECK(s, out[k] == 1000 * (k / N) + k % N + N * s->rank + round);
        c.operation = HK_REDUCE_SCATTER, c.op = HK_MAX;
        OK(s, finish(hk_run(&c), &c));
        for (int k = 0; k < N; k++) CHECK(s, out[k] == 1000 * (s->ranks - 1) + N * s->rank + k + round);
        c.root = s->ranks - 1, c.operation = HK_BROADCAST;
        OK(s, finish(hk_run(&c), &c));
        for (int k = 0; k < N; k++) CHECK(s, out[k] == 1000 * c.root + k + round);
        c.operation = HK_BARRIER, c.send = c.recv = NULL, c.count = (size_t)stray, c.dtype = HK_DTYPES;
        OK(s, finish(hk_run(&c), &c));
    }
    hk_call wrong = {sizeof wrong, in, out, N, HK_I32, HK_SUM, 0, HK_OPERATIONS, 1, s->comm, NULL, NULL};
    CHECK(s, hk_run(&wrong) == HK_INVALID && strstr(hk_last_error(s->comm), "operation 9"));
    wrong.size--;
    CHECK(s, hk_run(&wrong) == HK_INVALID && hk_run(NULL) == HK_INVALID);
    OK(s, hk_barrier(s->comm, NULL, NULL));
}

/* A record whose peers are not there is under way after a moment, goes on by itself and is waited for like any other; in a group it
 * is collected. */
static void record_under_way(seat *s)
{
    int32_t x = 1, y = s->rank;
    for (int round = 0; round < 3; round++) {
        hk_call c = {sizeof c, &x, &x, 1, HK_I32, HK_PROD, 0, HK_ALL_REDUCE, 1, s->comm, NULL, NULL};
        if (s->rank == 0) {
            CHECK(s, hk_run(&c) == HK_WAIT_EXPIRED && c.request);
            CHECK(s, hk_wait_for(&c.request, 0) == HK_WAIT_EXPIRED);
            pthread_barrier_wait(s->barrier);
            OK(s, hk_wait(&c.request));
        } else {
            pthread_barrier_wait(s->barrier);
            OK(s, finish(hk_run(&c), &c));
        }
        CHECK(s, x == 1);
    }
    hk_call c = {sizeof c, &y, &y, 1, HK_I32, HK_SUM, 0, HK_ALL_REDUCE, 1, s->comm, NULL, NULL};
    OK(s, hk_group_start(s->comm));
    OK(s, hk_run(&c));
    CHECK(s, !c.request && y == s->rank);
    OK(s, hk_group_end(s->comm, NULL));
    CHECK(s, y == s->ranks * (s->ranks - 1) / 2);
}

/* Each operation uses what the one before wrote: stream order, also across channels and point to point. */
static void chained_buffers(seat *s)
{
    enum { N = 5000, LINKS = 20 };
    int64_t *x = malloc(N * sizeof *x), expected = s->rank + 1;
    hk_request *q[LINKS];
    for (int i = 0; i < N; i++) x[i] = s->rank + 1;
    for (int k = 0; k < LINKS; k++) OK(s, hk_all_reduce(x, x, N, HK_I64, k % 2 ? HK_MAX : HK_SUM, s->comm, NULL, &q[k]));
    OK(s, hk_wait_all(q, LINKS));
    expected = (int64_t)s->ranks * (s->ranks + 1) / 2;
    for (int k = 2; k < LINKS; k += 2) expected *= s->ranks;
    for (int i = 0; i < N; i++) CHECK(s, x[i] == expected);
    free(x);
}

/* ---- Point to point ------------------------------------------------------------------------------------------------------------- */

static void tags(seat *s)
{
    hk_options o = HK_OPTIONS_INIT;
    int32_t v[3] = {10, 20, 30}, got[3] = {0};
    hk_request *q[3];
    if (s->rank == 0)
        for (int k = 0; k < 3; k++) {
            o.tag = k == 1 ? 7 : 5;
            OK(s, hk_send(&v[k], 1, HK_I32, 1, s->comm, &o, &q[k]));
        }
    else if (s->rank == 1) { /* the other tag first; equal tags in order */
        o.tag = 7;
        OK(s, hk_recv(&got[1], 1, HK_I32, 0, s->comm, &o, NULL));
        o.tag = 5;
        OK(s, hk_recv(&got[0], 1, HK_I32, HK_ANY_SOURCE, s->comm, &o, NULL));
        OK(s, hk_recv(&got[2], 1, HK_I32, 0, s->comm, &o, NULL));
        CHECK(s, got[0] == 10 && got[1] == 20 && got[2] == 30);
    }
    if (s->rank == 0) OK(s, hk_wait_all(q, 3));
}

/* Many messages of one tag: each receive takes the oldest, also while new ones arrive, and also when an earlier receive is held back
 * by an operation that still uses its buffer. */
static void in_order(seat *s)
{
    enum { N = 400 };
    int32_t v[N], got[N], x = 0, y = 0, held[1000] = {0};
    hk_request *q[N], *first[3];
    hk_options other = HK_OPTIONS_INIT;
    other.tag = 9;
    if (s->rank == 0) {
        for (int k = 0; k < N; k++) {
            v[k] = k;
            OK(s, hk_send(&v[k], 1, HK_I32, 1, s->comm, NULL, &q[k]));
            if (k % 16 == 15) OK(s, hk_wait(&q[k]));
        }
        OK(s, hk_wait_all(q, N));
        for (int k = 0; k < 2; k++) OK(s, hk_send(&v[k + 1], 1, HK_I32, 1, s->comm, NULL, &q[k]));
        OK(s, hk_send(held, 1000, HK_I32, 1, s->comm, &other, &q[2]));
        OK(s, hk_wait_all(q, 3));
    } else if (s->rank == 1) {
        for (int k = 0; k < N; k += 2) {
            OK(s, hk_recv(&got[k], 1, HK_I32, k % 3 ? 0 : HK_ANY_SOURCE, s->comm, NULL, NULL));
            OK(s, hk_recv(&got[k + 1], 1, HK_I32, 0, s->comm, NULL, NULL));
        }
        for (int k = 0; k < N; k++) CHECK(s, got[k] == k);
        OK(s, hk_recv(held, 1000, HK_I32, 0, s->comm, &other, &first[0]));
        OK(s, hk_recv(held + 5, 1, HK_I32, 0, s->comm, NULL, &first[1])); /* waits for the one before */
        OK(s, hk_recv(&y, 1, HK_I32, 0, s->comm, NULL, &first[2]));
        const hk_status status = hk_wait_for(&first[2], 200000);
        CHECK(s, status == HK_OK || status == HK_WAIT_EXPIRED);
        OK(s, hk_wait_all(first, 3));
        x = held[5];
        CHECK(s, x == 1 && y == 2);
    }
}

static void any_source(seat *s)
{
    int64_t sum = 0, mine = 1;
    for (int k = 0; k < s->rank; k++) mine *= 10;
    if (s->rank) {
        OK(s, hk_send(&mine, 1, HK_I64, 0, s->comm, NULL, NULL));
        return;
    }
    for (int k = 1; k < s->ranks; k++) {
        int64_t v = 0, of_source = 1;
        int source = -1;
        hk_options o = HK_OPTIONS_INIT;
        o.source = &source;
        OK(s, hk_recv(&v, 1, HK_I64, HK_ANY_SOURCE, s->comm, &o, NULL));
        for (int r = 0; r < source; r++) of_source *= 10;
        CHECK(s, v == of_source);
        sum += v;
    }
    int64_t expected = 0;
    for (int64_t k = 1, p = 10; k < s->ranks; k++, p *= 10) expected += p;
    CHECK(s, sum == expected);
}

static void ring_group(seat *s)
{
    static const size_t sizes[] = {1, 10000, 1000000};
    const int right = (s->rank + 1) % s->ranks, left = (s->rank + s->ranks - 1) % s->ranks;
    for (int k = 0; k < 3; k++) {
        const size_t n = sizes[k];
        float *out = malloc(n * 4), *in = calloc(n, 4), sum = 1;
        for (size_t i = 0; i < n; i++) out[i] = (float)s->rank + (float)(i % 1000);
        hk_request *q;
        OK(s, hk_group_start(s->comm));
        OK(s, hk_group_start(s->comm)); /* nests */
        OK(s, hk_send(out, n, HK_F32, right, s->comm, NULL, NULL));
        OK(s, hk_all_reduce(&sum, &sum, 1, HK_F32, HK_SUM, s->comm, NULL, NULL));
        CHECK(s, hk_recv(in, n, HK_F32, 99, s->comm, NULL, NULL) == HK_INVALID); /* left out, the rest goes on */
        OK(s, hk_group_end(s->comm, NULL));
        OK(s, hk_recv(in, n, HK_F32, left, s->comm, NULL, NULL));
        OK(s, hk_group_end(s->comm, &q));
        OK(s, hk_wait(&q));
        CHECK(s, sum == (float)s->ranks);
        for (size_t i = 0; i < n; i++) CHECK(s, in[i] == (float)left + (float)(i % 1000));
        free(out);
        free(in);
    }
    CHECK(s, hk_group_end(s->comm, NULL) == HK_INVALID);
    OK(s, hk_group_start(s->comm));
    OK(s, hk_group_end(s->comm, NULL)); /* an empty one */
}

static void to_oneself(seat *s)
{
    enum { N = 1000000 };
    int32_t *out = malloc(N * 4), *in = calloc(N, 4);
    for (int i = 0; i < N; i++) out[i] = i ^ s->rank;
    OK(s, hk_group_start(s->comm));
    OK(s, hk_send(out, N, HK_I32, s->rank, s->comm, NULL, NULL));
    OK(s, hk_recv(in, N, HK_I32, s->rank, s->comm, NULL, NULL));
    OK(s, hk_group_end(s->comm, NULL));
    CHECK(s, !memcmp(in, out, N * 4));
    CHECK(s, hk_send(out, 1, HK_I32, s->rank, s->comm, NULL, NULL) == HK_INVALID); /* nobody could ever receive it */
    free(out);
    free(in);
}

static void p2p_mismatch(seat *s)
{
    int32_t x[8] = {0};
    const hk_status status = s->rank == 0 ? hk_send(x, 5, HK_I32, 1, s->comm, NULL, NULL) : hk_recv(x, 4, HK_I32, 0, s->comm, NULL, NULL);
    CHECK(s, status == HK_MISMATCH);
    CHECK(s, strstr(hk_last_error(s->comm), "i32[5]") && strstr(hk_last_error(s->comm), "i32[4]"));
}

/* ---- Derived communicators ------------------------------------------------------------------------------------------------------- */

static void splits(seat *s)
{
    hk_comm *sub, *dup, *none;
    int32_t x = 1 << s->rank;
    OK(s, hk_comm_split(s->comm, s->rank % 2, -s->rank, &sub));
    OK(s, hk_comm_dup(s->comm, &dup));
    OK(s, hk_comm_split(s->comm, s->rank == 0 ? -1 : 3, 0, &none));
    CHECK(s, (s->rank == 0) == (none == NULL));
    int members = 0, sum = 0, before = 0;
    for (int r = s->rank % 2; r < s->ranks; r += 2) members++, sum += 1 << r, before += r > s->rank;
    CHECK(s, hk_comm_ranks(sub) == members && hk_comm_rank(sub) == before); /* key -rank: reversed */
    int32_t y = 0;
    OK(s, hk_all_reduce(&x, &y, 1, HK_I32, HK_SUM, sub, NULL, NULL));
    CHECK(s, y == sum);
    OK(s, hk_all_reduce(&x, &y, 1, HK_I32, HK_SUM, dup, NULL, NULL));
    CHECK(s, y == (1 << s->ranks) - 1);
    OK(s, hk_comm_destroy(sub));
    OK(s, hk_comm_destroy(none));
    OK(s, hk_all_reduce(&x, &y, 1, HK_I32, HK_SUM, s->comm, NULL, NULL));
    OK(s, hk_comm_destroy(dup));
}

/* {0,3} and {1,2} are made in the same statement, many times: a group is its members, not the order of calls. */
static void groups_by_members(seat *s)
{
    const int outer[] = {0, 3}, inner[] = {1, 2};
    int64_t mine = 1;
    for (int k = 0; k < s->rank; k++) mine *= 10;
    for (int k = 0; k < 50; k++) {
        hk_comm *g;
        int64_t sum = 0;
        OK(s, hk_comm_create_group(s->comm, s->rank == 0 || s->rank == 3 ? outer : inner, 2, 1, &g));
        OK(s, hk_all_reduce(&mine, &sum, 1, HK_I64, HK_SUM, g, NULL, NULL));
        CHECK(s, sum == (s->rank == 0 || s->rank == 3 ? 1001 : 110));
        OK(s, hk_comm_destroy(g));
    }
    hk_comm *g;
    CHECK(s, hk_comm_create_group(s->comm, (int[]){(s->rank + 1) % 4}, 1, 0, &g) == HK_INVALID);
    CHECK(s, hk_comm_create_group(s->comm, (int[]){s->rank, s->rank}, 2, 0, &g) == HK_INVALID);
}

/* Rank 3 alone, then everyone: different communicators are independent, whoever waits on one pumps the others too. */
static void two_at_once(seat *s)
{
    hk_comm *other;
    int32_t a = 1, b = 2;
    hk_request *q;
    OK(s, hk_comm_dup(s->comm, &other));
    if (s->rank == 0) {
        OK(s, hk_all_reduce(&b, &b, 1, HK_I32, HK_SUM, other, NULL, &q));
        OK(s, hk_all_reduce(&a, &a, 1, HK_I32, HK_SUM, s->comm, NULL, NULL));
        OK(s, hk_wait(&q));
    } else {
        OK(s, hk_all_reduce(&b, &b, 1, HK_I32, HK_SUM, other, NULL, NULL));
        OK(s, hk_all_reduce(&a, &a, 1, HK_I32, HK_SUM, s->comm, NULL, NULL));
    }
    CHECK(s, a == s->ranks && b == 2 * s->ranks);
    OK(s, hk_comm_destroy(other));
}

/* ---- Operators -------------------------------------------------------------------------------------------------------------------- */

/* Composition of maps i -> (a i + b) mod 251, packed as a | b << 8: associative, and it does not commute. */
static uint32_t compose(uint32_t f, uint32_t g)
{
    const uint32_t a = (f & 255) * (g & 255) % 251, b = ((g & 255) * (f >> 8 & 255) + (g >> 8 & 255)) % 251;
    return a | b << 8;
}

static void composed(void *acc, const void *src, size_t count, hk_dtype dtype, void *arg)
{
    uint32_t *f = acc;
    const uint32_t *g = src;
    for (size_t i = 0; i < count; i++) f[i] = compose(f[i], g[i]);
    (void)dtype, (void)arg;
}

static void ordered_operator(seat *s)
{
    hk_redop op;
    OK(s, hk_op_create(composed, NULL, 0, &op));
    enum { N = 3000 };
    uint32_t x[N], y[N];
    for (int root = 0; root < s->ranks; root++)
        for (int n = 1; n <= N; n += 1499) {
            for (int i = 0; i < n; i++) x[i] = (uint32_t)((s->rank * 7 + i) % 250 + 1) | (uint32_t)((s->rank * 13 + i * 3) % 251) << 8;
            OK(s, hk_all_reduce(x, y, (size_t)n, HK_U32, op, s->comm, NULL, NULL));
            for (int i = 0; i < n; i++) {
                uint32_t want = (uint32_t)(i % 250 + 1) | (uint32_t)(i * 3 % 251) << 8;
                for (int r = 1; r < s->ranks; r++) want = compose(want, (uint32_t)((r * 7 + i) % 250 + 1) | (uint32_t)((r * 13 + i * 3) % 251) << 8);
                CHECK(s, y[i] == want);
                x[i] = want;
            }
            for (int i = 0; i < n; i++) y[i] = (uint32_t)((s->rank * 7 + i) % 250 + 1) | (uint32_t)((s->rank * 13 + i * 3) % 251) << 8;
            OK(s, hk_reduce(y, y, (size_t)n, HK_U32, op, root, s->comm, NULL, NULL));
            if (s->rank == root) CHECK(s, !memcmp(x, y, (size_t)n * 4));
        }
    hk_options o = HK_OPTIONS_INIT;
    o.algorithm = "ring";
    if (s->ranks > 1 && can(HKI_ALL_REDUCE, "ring")) {
        CHECK(s, hk_all_reduce(x, y, 1, HK_U32, op, s->comm, &o, NULL) == HK_UNSUPPORTED);
        CHECK(s, strstr(hk_last_error(s->comm), "; use ")); /* names one that can */
    }
    OK(s, hk_op_free(op));
}

static void scaled(seat *s)
{
    hk_redop op;
    OK(s, hk_op_premul_sum(0.5, &op));
    double x[2] = {2, 4}, y[2];
    OK(s, hk_all_reduce(x, y, 2, HK_F64, op, s->comm, NULL, NULL));
    CHECK(s, y[0] == s->ranks && y[1] == 2 * s->ranks);
    int32_t i = 1;
    CHECK(s, hk_all_reduce(&i, &i, 1, HK_I32, op, s->comm, NULL, NULL) == HK_UNSUPPORTED);
    OK(s, hk_op_free(op));
    /* An average that overflows the type on the way, and a sum that wraps. */
    int8_t a[3] = {100, -100, 7}, b[3];
    OK(s, hk_all_reduce(a, b, 3, HK_I8, HK_AVG, s->comm, NULL, NULL));
    CHECK(s, b[0] == 100 && b[1] == -100 && b[2] == 7);
    OK(s, hk_all_reduce(a, b, 1, HK_I8, HK_SUM, s->comm, NULL, NULL));
    CHECK(s, b[0] == (int8_t)(uint8_t)(100 * s->ranks));
}

static void doubled(void *acc, const void *src, size_t count, hk_dtype dtype, void *arg)
{
    int32_t *a = acc;
    const int32_t *b = src;
    for (size_t i = 0; i < count; i++) a[i] = a[i] + *(const int32_t *)arg * b[i];
    (void)dtype;
}

/* A new operator is never taken for a freed one, though its calls look the same; what is no operator is told so. */
static void fresh_operators(seat *s)
{
    for (int32_t k = 1; k <= 20; k++) {
        hk_redop op;
        int32_t factor = k, x = 1, y = 0;
        OK(s, hk_op_create(doubled, &factor, 0, &op));
        OK(s, hk_all_reduce(&x, &y, 1, HK_I32, op, s->comm, NULL, NULL));
        CHECK(s, y == 1 + k * (s->ranks - 1));
        OK(s, hk_op_free(op));
        CHECK(s, hk_op_free(op) == HK_INVALID && hk_op_free(4096) == HK_INVALID && hk_op_free(HK_SUM) == HK_INVALID);
        CHECK(s, hk_all_reduce(&x, &y, 1, HK_I32, op, s->comm, NULL, NULL) == HK_INVALID);
    }
    hk_comm *sub;
    OK(s, hk_group_start(s->comm));
    CHECK(s, hk_comm_split(s->comm, 0, 0, &sub) == HK_INVALID && hk_comm_destroy(s->comm) == HK_INVALID);
    OK(s, hk_group_end(s->comm, NULL));
}

/* A send that waits for its buffer (a receive still fills it) does not hold back one to another peer, or with another tag. */
static void independent_sends(seat *s)
{
    hk_options other = HK_OPTIONS_INIT;
    hk_request *q[3] = {NULL};
    int32_t a = 0, b = 7;
    other.tag = 4;
    if (s->rank == 0) {
        OK(s, hk_recv(&a, 1, HK_I32, 1, s->comm, NULL, &q[0]));
        OK(s, hk_send(&a, 1, HK_I32, s->ranks - 1, s->comm, NULL, &q[1]));
        OK(s, hk_send(&b, 1, HK_I32, 1, s->comm, &other, &q[2]));
        OK(s, hk_wait_all(q, 3));
        CHECK(s, a == 70);
    } else {
        if (s->rank == 1) {
            OK(s, hk_recv(&b, 1, HK_I32, 0, s->comm, &other, NULL));
            a = b * 10;
            OK(s, hk_send(&a, 1, HK_I32, 0, s->comm, NULL, &q[0]));
        }
        if (s->rank == s->ranks - 1) {
            OK(s, hk_recv(&b, 1, HK_I32, 0, s->comm, NULL, NULL));
            CHECK(s, b == 70);
        }
        OK(s, hk_wait(&q[0]));
    }
}

static void without_limit(seat *s)
{
    hk_options o = HK_OPTIONS_INIT;
    int32_t x = 1;
    o.timeout_us = UINT64_MAX;
    OK(s, hk_all_reduce(&x, &x, 1, HK_I32, HK_SUM, s->comm, &o, NULL));
    CHECK(s, x == s->ranks);
}

static void test_no_limit(void **state)
{
    hk_config config = HK_CONFIG_INIT;
    config.timeout_us = config.init_timeout_us = UINT64_MAX;
    with_config(2, without_limit, config);
}

/* reduce_scatter then all_gather gives all_reduce's very bits. */
static void halves_meet(seat *s)
{
    static const char *const families[][3] = {{"ring", "ring", "ring"}, {"direct", "direct", "direct"}, {"circulant", "circulant", "bruck"},
                                              {"halving_doubling", "recursive_halving", "recursive_doubling"}, {"two_level", "two_level", "two_level"},
                                              {"two_level_direct", "two_level_direct", "two_level"}};
    for (size_t f = 0; f < HKI_COUNT(families); f++)
        for (size_t each = 1; each < 4000 && can(HKI_ALL_REDUCE, families[f][0]) && can(HKI_REDUCE_SCATTER, families[f][1]) &&
                              can(HKI_ALL_GATHER, families[f][2]); each = each * 7 + 3) {
            const size_t n = each * (size_t)s->ranks;
            float *x = malloc(n * 4), *a = malloc(n * 4), *b = malloc(n * 4);
            for (size_t i = 0; i < n; i++) x[i] = (float)((i * 7919 + (size_t)s->rank * 104729) % 100003) * 1.2345e-3f;
            hk_options o = HK_OPTIONS_INIT;
            o.algorithm = families[f][0];
            OK(s, hk_all_reduce(x, a, n, HK_F32, HK_SUM, s->comm, &o, NULL));
            o.algorithm = families[f][1];
            OK(s, hk_reduce_scatter(x, b + (size_t)s->rank * each, each, HK_F32, HK_SUM, s->comm, &o, NULL));
            o.algorithm = families[f][2];
            OK(s, hk_all_gather(b + (size_t)s->rank * each, b, each, HK_F32, s->comm, &o, NULL));
            CHECK(s, !memcmp(a, b, n * 4));
            free(x);
            free(a);
            free(b);
        }
}

/* ---- Errors ------------------------------------------------------------------------------------------------------------------------- */

static void bad_arguments(seat *s)
{
    float x[8] = {0}, y[8] = {0};
    hk_comm *c = s->comm;
    CHECK(s, hk_all_reduce(NULL, y, 4, HK_F32, HK_SUM, c, NULL, NULL) == HK_INVALID);
    CHECK(s, strstr(hk_last_error(c), "send is NULL"));
    CHECK(s, hk_all_reduce(x, NULL, 4, HK_F32, HK_SUM, c, NULL, NULL) == HK_INVALID);
    CHECK(s, hk_all_reduce(x, y, 4, (hk_dtype)99, HK_SUM, c, NULL, NULL) == HK_INVALID);
    CHECK(s, hk_all_reduce(x, y, 4, HK_F32, 1234, c, NULL, NULL) == HK_INVALID);
    CHECK(s, hk_all_reduce(x, y, 4, HK_F32, HK_BAND, c, NULL, NULL) == HK_UNSUPPORTED);
    CHECK(s, hk_all_reduce(x, x + 1, 4, HK_F32, HK_SUM, c, NULL, NULL) == HK_INVALID);
    CHECK(s, strstr(hk_last_error(c), "overlap"));
    CHECK(s, hk_all_reduce((char *)x + 1, y, 4, HK_F32, HK_SUM, c, NULL, NULL) == HK_INVALID);
    CHECK(s, hk_all_reduce(x, y, SIZE_MAX / 2, HK_F32, HK_SUM, c, NULL, NULL) == HK_INVALID);
    CHECK(s, hk_broadcast(x, y, 4, HK_F32, s->ranks, c, NULL, NULL) == HK_INVALID);
    CHECK(s, hk_broadcast(x, y, 4, HK_F32, -1, c, NULL, NULL) == HK_INVALID);
    CHECK(s, strstr(hk_last_error(c), "root -1"));
    CHECK(s, hk_all_to_all(x, x, 1, HK_F32, c, NULL, NULL) == HK_INVALID);
    CHECK(s, hk_send(x, 4, HK_F32, s->ranks, c, NULL, NULL) == HK_INVALID);
    CHECK(s, hk_all_gather_v(x, y, NULL, NULL, HK_F32, c, NULL, NULL) == HK_INVALID);
    hk_options o = HK_OPTIONS_INIT;
    o.algorithm = "nosuch";
    CHECK(s, hk_all_reduce(x, y, 4, HK_F32, HK_SUM, c, &o, NULL) == HK_INVALID);
    o.size = 3;
    CHECK(s, hk_all_reduce(x, y, 4, HK_F32, HK_SUM, c, &o, NULL) == HK_INVALID);
    CHECK(s, hk_all_reduce(x, y, 4, HK_F32, HK_SUM, NULL, NULL, NULL) == HK_INVALID);
    /* Nothing of that has broken anything. */
    OK(s, hk_all_reduce(x, y, 4, HK_F32, HK_SUM, c, NULL, NULL));
    OK(s, hk_all_reduce(NULL, NULL, 0, HK_F32, HK_SUM, c, NULL, NULL));
}

static void late(seat *s)
{
    float x = 1;
    hk_options o = HK_OPTIONS_INIT;
    o.timeout_us = 300000;
    if (s->rank == s->ranks - 1) { /* never calls */
        pthread_barrier_wait(s->barrier);
        hk_status status = HK_OK; /* what the others had sent may still meet the first call; then it is the same story */
        for (int k = 0; k < 3 && !status; k++) status = hk_all_reduce(&x, &x, 1, HK_F32, HK_SUM, s->comm, NULL, NULL);
        CHECK(s, status == HK_TIMEOUT);
        return;
    }
    const uint64_t begin = hki_now_us();
    const hk_status status = hk_all_reduce(&x, &x, 1, HK_F32, HK_SUM, s->comm, &o, NULL);
    const uint64_t took = hki_now_us() - begin;
    pthread_barrier_wait(s->barrier);
    CHECK(s, status == HK_TIMEOUT && took >= 250000 && took < 5000000);
    CHECK(s, hk_all_reduce(&x, &x, 1, HK_F32, HK_SUM, s->comm, NULL, NULL) == HK_TIMEOUT); /* sticky */
    char missing[32];
    snprintf(missing, sizeof missing, "rank %d (", s->ranks - 1);
    CHECK(s, s->ranks > 2 || strstr(hk_last_error(s->comm), missing));
}

static void aborted(seat *s)
{
    float x = 1;
    if (s->rank == 0) {
        hk_request *q;
        OK(s, hk_all_reduce(&x, &x, 1, HK_F32, HK_SUM, s->comm, NULL, &q));
        OK(s, hk_comm_abort(s->comm));
        pthread_barrier_wait(s->barrier);
        CHECK(s, hk_wait(&q) == HK_ABORTED);
    } else {
        pthread_barrier_wait(s->barrier); /* not in the library when it happens */
        hk_status status = HK_OK;
        for (int k = 0; k < 3 && !status; k++) status = hk_all_reduce(&x, &x, 1, HK_F32, HK_SUM, s->comm, NULL, NULL);
        CHECK(s, status == HK_ABORTED);
    }
}

static void leaver(seat *s)
{
    float x = 1;
    OK(s, hk_all_reduce(&x, &x, 1, HK_F32, HK_SUM, s->comm, NULL, NULL));
    if (s->rank == 0) return; /* destroys */
    const uint64_t begin = hki_now_us();
    hk_status status = HK_OK;
    for (int k = 0; k < 3 && !status; k++) status = hk_all_reduce(&x, &x, 1, HK_F32, HK_SUM, s->comm, NULL, NULL);
    CHECK(s, status == HK_PEER_LEFT && hki_now_us() - begin < 5000000);
    CHECK(s, strstr(hk_last_error(s->comm), "rank 0 ("));
}

/* Bytes really sent equal the formula: 2(P-1)/P of the vector for the ring, P-1 messages of Bruck's rounds. */
static void counted(seat *s)
{
    if (!can(HKI_ALL_REDUCE, "ring") || !can(HKI_ALL_GATHER, "bruck")) return;
    const size_t n = (size_t)64 * (size_t)s->ranks * 10;
    float *x = calloc(n, 4), *y = calloc(n, 4);
    hk_options o = HK_OPTIONS_INIT;
    hk_stats_t a = {.size = sizeof a}, b = {.size = sizeof b};
    o.algorithm = "ring";
    OK(s, hk_stats(s->comm, &a));
    OK(s, hk_all_reduce(x, y, n, HK_F32, HK_SUM, s->comm, &o, NULL));
    OK(s, hk_stats(s->comm, &b));
    const uint64_t sent = b.shm.bytes_sent + b.tcp.bytes_sent - a.shm.bytes_sent - a.tcp.bytes_sent;
    CHECK(s, sent == 2 * ((uint64_t)s->ranks - 1) * (n / (size_t)s->ranks) * 4 && b.operations == a.operations + 1);
    o.algorithm = "bruck";
    OK(s, hk_all_gather(x, y, n / (size_t)s->ranks, HK_F32, s->comm, &o, NULL));
    OK(s, hk_stats(s->comm, &a));
    uint64_t rounds = 0;
    while (1 << rounds < s->ranks) rounds++;
    CHECK(s, a.shm.messages_sent + a.tcp.messages_sent - b.shm.messages_sent - b.tcp.messages_sent == rounds);
    free(x);
    free(y);
}

static void memory(seat *s)
{
    float *p;
    void *q;
    OK(s, hk_mem_alloc(s->comm, 1000 * sizeof *p, (void **)&p));
    CHECK(s, (uintptr_t)p % 64 == 0 && p[999] == 0);
    for (int i = 0; i < 1000; i++) p[i] = (float)s->rank;
    OK(s, hk_all_reduce(p, p, 1000, HK_F32, HK_SUM, s->comm, NULL, NULL));
    CHECK(s, p[500] == (float)(s->ranks * (s->ranks - 1) / 2));
    OK(s, hk_mem_free(s->comm, p));
    CHECK(s, hk_mem_free(s->comm, p) == HK_INVALID);
    CHECK(s, hk_mem_alloc(s->comm, SIZE_MAX / 2, &q) == HK_NO_MEMORY && q == NULL);
}

#define CASE(name, body, ...) \
    static void name(void **state) \
    { \
        static const int ranks[] = {__VA_ARGS__}; \
        for (size_t i = 0; i < sizeof ranks / sizeof *ranks; i++) with(ranks[i], body); \
    }
CASE(test_many, many_all_reduces, 2, 3, 4)
CASE(test_opposite, opposite, 2)
CASE(test_test_and_any, test_and_any, 1, 2, 4)
CASE(test_wait_expires, wait_expires, 2, 3)
CASE(test_records, records, 1, 2, 3, 4, 9)
CASE(test_record_under_way, record_under_way, 2, 3)
CASE(test_chained, chained_buffers, 1, 2, 3)
CASE(test_tags, tags, 2, 3)
CASE(test_in_order, in_order, 2, 3)
CASE(test_any_source, any_source, 2, 5, 9)
CASE(test_ring_group, ring_group, 2, 5)
CASE(test_to_oneself, to_oneself, 1, 2)
CASE(test_p2p_mismatch, p2p_mismatch, 2)
CASE(test_splits, splits, 2, 5, 8)
CASE(test_groups, groups_by_members, 4)
CASE(test_two_at_once, two_at_once, 2, 3)
CASE(test_ordered, ordered_operator, 1, 2, 3, 5, 8)
CASE(test_fresh, fresh_operators, 1, 2, 3)
CASE(test_independent, independent_sends, 2, 3)
CASE(test_scaled, scaled, 1, 2, 4, 7)
CASE(test_halves, halves_meet, 2, 3, 4, 5, 8)
CASE(test_bad, bad_arguments, 2)
CASE(test_late, late, 2, 4)
CASE(test_aborted, aborted, 2, 4)
CASE(test_leaver, leaver, 2, 4)
CASE(test_counted, counted, 2, 3, 5, 8)
CASE(test_memory, memory, 1, 2, 3)

int main(void)
{
    setenv("HOCKET_DEBUG", "VERSION", 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_many),    cmocka_unit_test(test_opposite),  cmocka_unit_test(test_test_and_any), cmocka_unit_test(test_wait_expires),
        cmocka_unit_test(test_records), cmocka_unit_test(test_record_under_way),
        cmocka_unit_test(test_chained), cmocka_unit_test(test_tags),      cmocka_unit_test(test_any_source),   cmocka_unit_test(test_ring_group),
        cmocka_unit_test(test_to_oneself), cmocka_unit_test(test_p2p_mismatch), cmocka_unit_test(test_splits), cmocka_unit_test(test_groups),
        cmocka_unit_test(test_two_at_once), cmocka_unit_test(test_ordered), cmocka_unit_test(test_scaled),     cmocka_unit_test(test_halves),
        cmocka_unit_test(test_bad),     cmocka_unit_test(test_late),      cmocka_unit_test(test_aborted),      cmocka_unit_test(test_leaver),
        cmocka_unit_test(test_in_order), cmocka_unit_test(test_fresh), cmocka_unit_test(test_independent), cmocka_unit_test(test_no_limit), cmocka_unit_test(test_counted), cmocka_unit_test(test_memory)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
