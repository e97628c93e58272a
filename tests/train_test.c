/* SPDX-License-Identifier: Apache-2.0
 *
 * Gradient buckets: the same order on all ranks for every order of marks, unused parameters named in the step in which they are missing,
 * accumulation, bad input, failures. Ranks are threads; every case runs over shared memory and over TCP. */
#include "built.h"
#include "values.h"

#include <hocket/train.h>

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

enum { RANKS_MAX = 4 };

typedef struct seat seat;
struct seat {
    int rank, ranks;
    hk_comm *comm;
    void (*run)(seat *);
    pthread_barrier_t *barrier; /* of the test itself: not a hocket operation */
    char failure[1600];
};

#define CHECK(s, x) \
    do { \
        if (!(x)) { \
            if (!*(s)->failure) \
                snprintf((s)->failure, sizeof(s)->failure, "line %d rank %d of %d: %s (last errors: %s | %s)", __LINE__, (s)->rank, (s)->ranks, #x, \
                         hk_buckets_last_error(), hk_last_error((s)->comm)); \
            return; \
        } \
    } while (0)
#define OK(s, call) CHECK(s, (call) == HK_OK)
/* The call is HK_INVALID and its sentence has the text. */
#define REFUSED(s, call, text) \
    do { \
        CHECK(s, (call) == HK_INVALID); \
        CHECK(s, strstr(hk_buckets_last_error(), text)); \
    } while (0)

static void *thread_body(void *arg)
{
    seat *s = arg;
    s->run(s);
    hk_comm_destroy(s->comm);
    return NULL;
}

static const char *const transports[] = {"auto", "tcp"};

static void with(int ranks, void (*run)(seat *))
{
    for (int t = 0; t < 2 && built_with(transports[t]); t++) {
        hk_comm *comms[RANKS_MAX];
        seat seats[RANKS_MAX];
        pthread_t threads[RANKS_MAX];
        pthread_barrier_t barrier;
        hk_config config = HK_CONFIG_INIT;
        config.timeout_us = 30000000;
        config.transport = transports[t];
        pthread_barrier_init(&barrier, NULL, (unsigned)ranks);
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

static hk_buckets *buckets_of(seat *s, const hk_param *params, size_t n, const hk_buckets_config *config)
{
    hk_buckets *b = NULL;
    if (hk_buckets_create(s->comm, params, n, config, &b) && !*s->failure)
        snprintf(s->failure, sizeof s->failure, "rank %d: create: %s", s->rank, hk_buckets_last_error());
    return b;
}

static hk_buckets_info_t info_of(hk_buckets *b)
{
    hk_buckets_info_t i = {.size = sizeof i};
    return hk_buckets_info(b, &i) ? (hk_buckets_info_t){0} : i;
}

/* ---- Order ----------------------------------------------------------------------------------------------------------------------- */

/* Two parameters of one shape, ready in opposite orders: each is averaged with itself. */
static void opposite_orders(seat *s)
{
    static const hk_param params[] = {{4, HK_F32, "A"}, {4, HK_F32, "B"}};
    static const size_t sizes[] = {16, 1 << 20};
    for (int k = 0; k < 2; k++) {
        hk_buckets_config c = HK_BUCKETS_INIT;
        c.bucket_bytes = sizes[k];
        hk_buckets *b = buckets_of(s, params, 2, &c);
        if (!b) return;
        CHECK(s, info_of(b).buckets == (k ? 1 : 2));
        float *A = hk_buckets_gradient(b, 0), *B = hk_buckets_gradient(b, 1);
        for (int i = 0; i < 4; i++) CHECK(s, A[i] == 0 && B[i] == 0);
        for (int step = 0; step < 3; step++) {
            for (int i = 0; i < 4; i++) A[i] = (float)(1 + s->rank), B[i] = (float)(10 * (1 + s->rank));
            OK(s, hk_buckets_ready(b, s->rank ? 1 : 0));
            OK(s, hk_buckets_ready(b, s->rank ? 0 : 1));
            OK(s, hk_buckets_finish(b));
            for (int i = 0; i < 4; i++) CHECK(s, A[i] == 1.5f && B[i] == 15);
        }
        CHECK(s, info_of(b).launched == (k ? 3 : 6) && info_of(b).steps == 3);
        OK(s, hk_buckets_free(b));
    }
}

static void test_opposite_orders(void **state) { with(2, opposite_orders); }

enum { MIXED = 61, WORKERS = 3 };

static size_t mixed_count(size_t i) { return i == 7 ? 0 : i == 20 ? 70000 : 1 + i * i * 37 % 2500; }

typedef struct worker { hk_buckets *b; const size_t *order; size_t first; seat *s; int step; } worker;

/* Writes and marks every WORKERS-th parameter of its rank's order. */
static void *work(void *arg)
{
    worker *w = arg;
    for (size_t k = w->first; k < MIXED; k += WORKERS) {
        const size_t i = w->order[k];
        const hk_dtype t = (hk_dtype)(i % HK_DTYPES);
        uint8_t *g = hk_buckets_gradient(w->b, i);
        for (size_t e = 0; e < mixed_count(i); e++)
            store(g + e * hk_dtype_size(t), t, value_at(w->s->rank, e + 31 * i + (size_t)w->step, HK_SUM), 1);
        if (hk_buckets_ready(w->b, i) && !*w->s->failure) snprintf(w->s->failure, sizeof w->s->failure, "ready: %s", hk_buckets_last_error());
    }
    return NULL;
}

static void shuffled(size_t *order, size_t n, hki_prng *g)
{
    for (size_t i = 0; i < n; i++) {
        const size_t k = hki_prng_below(g, i + 1);
        order[i] = order[k];
        order[k] = i;
    }
}

static void check_sums(seat *s, hk_buckets *b, int step)
{
    for (size_t i = 0; i < MIXED; i++) {
        const hk_dtype t = (hk_dtype)(i % HK_DTYPES);
        const uint8_t *g = hk_buckets_gradient(b, i);
        CHECK(s, (uintptr_t)g % 64 == 0);
        for (size_t e = 0; e < mixed_count(i); e++) {
            uint8_t want[8];
            int64_t sum = 0;
            for (int r = 0; r < s->ranks; r++) sum += value_at(r, e + 31 * i + (size_t)step, HK_SUM);
            store(want, t, sum, 1);
            CHECK(s, !memcmp(g + e * hk_dtype_size(t), want, hk_dtype_size(t)));
        }
    }
}

/* All types, an order of its own for each rank and step, marked by several threads at once. */
static void any_order(seat *s)
{
    hk_param params[MIXED];
    for (size_t i = 0; i < MIXED; i++) params[i] = (hk_param){mixed_count(i), (hk_dtype)(i % HK_DTYPES), NULL};
    hki_prng g = {(uint64_t)s->rank + 77};
    for (int small = 0; small < 2; small++) {
        hk_buckets_config c = HK_BUCKETS_INIT;
        c.bucket_bytes = small ? 3000 : 20000;
        c.op = HK_SUM;
        c.check_hash = small;
        hk_buckets *b = buckets_of(s, params, MIXED, &c);
        if (!b) return;
        for (int step = 0; step < 6 && !*s->failure; step++) {
            size_t order[MIXED];
            pthread_t threads[WORKERS];
            worker workers[WORKERS];
            shuffled(order, MIXED, &g);
            for (size_t k = 0; k < WORKERS; k++) {
                workers[k] = (worker){b, order, k, s, step};
                pthread_create(&threads[k], NULL, work, &workers[k]);
            }
            for (size_t k = 0; k < WORKERS; k++) pthread_join(threads[k], NULL);
            OK(s, hk_buckets_finish(b));
            check_sums(s, b, step);
        }
        OK(s, hk_buckets_free(b));
    }
}

static void test_any_order(void **state)
{
    for (int n = 1; n <= RANKS_MAX; n++) with(n, any_order);
}

/* Rank 0 marks everything before the others have begun: marking waits for nobody. */
static void early(seat *s)
{
    hk_param params[6];
    for (size_t i = 0; i < 6; i++) params[i] = (hk_param){300000, HK_F32, NULL};
    hk_buckets *b = buckets_of(s, params, 6, NULL);
    if (!b) return;
    for (int step = 0; step < 3; step++) {
        if (s->rank) pthread_barrier_wait(s->barrier);
        for (size_t i = 6; i-- > 0;) {
            ((float *)hk_buckets_gradient(b, i))[299999] = (float)(s->rank + (int)i + step);
            OK(s, hk_buckets_ready(b, i));
        }
        CHECK(s, info_of(b).launched == (uint64_t)(step + 1) * info_of(b).buckets);
        if (!s->rank) pthread_barrier_wait(s->barrier);
        OK(s, hk_buckets_finish(b));
        for (size_t i = 0; i < 6; i++)
            CHECK(s, ((float *)hk_buckets_gradient(b, i))[299999] == (float)((int)i + step) + (float)(s->ranks - 1) / 2);
    }
    OK(s, hk_buckets_free(b));
}

static void test_early(void **state)
{
    with(2, early);
    with(4, early);
}

/* ---- Layout ---------------------------------------------------------------------------------------------------------------------- */

/* Many small tensors make few operations, and a lone one is launched when it is ready, not later. */
static void fused(seat *s)
{
    enum { N = 200 };
    hk_param params[N];
    for (int types = 1; types <= 2; types++) {
        static const size_t caps[] = {64 << 10, 256 << 10, 1 << 20, 4 << 20};
        for (size_t k = 0; k < HKI_COUNT(caps); k++) {
            size_t total = 0;
            for (size_t i = 0; i < N; i++) {
                const hk_dtype t = types == 2 && i % 3 ? HK_BF16 : HK_F32;
                params[i] = (hk_param){(1000 + i * 7919 % 99000) / hk_dtype_size(t), t, NULL};
                total += params[i].count * hk_dtype_size(t);
            }
            hk_buckets_config c = HK_BUCKETS_INIT;
            c.bucket_bytes = caps[k];
            hk_buckets *b = buckets_of(s, params, N, &c);
            if (!b) return;
            for (size_t i = N; i-- > 0;) OK(s, hk_buckets_ready(b, i));
            OK(s, hk_buckets_finish(b));
            CHECK(s, info_of(b).launched == info_of(b).buckets);
            CHECK(s, info_of(b).launched <= (total + caps[k] - 1) / caps[k] + (size_t)types);
            OK(s, hk_buckets_free(b));
        }
    }
    hk_buckets *b = buckets_of(s, (hk_param[]){{1, HK_F32, "lone"}}, 1, NULL);
    if (!b) return;
    OK(s, hk_buckets_ready(b, 0));
    CHECK(s, info_of(b).launched == 1);
    OK(s, hk_buckets_finish(b));
    OK(s, hk_buckets_free(b));
}

static void test_fused(void **state)
{
    with(1, fused);
    with(2, fused);
}

/* Every parameter is in one bucket, of its type, which is full once; the one launched last holds the first parameters. */
static void sizes(seat *s)
{
    static const hk_param params[] = {{10, HK_F32, "a"}, {6, HK_F32, "b"}, {5, HK_F32, "c"},    {100, HK_F16, "d"},
                                      {9, HK_F32, "e"},  {8, HK_F32, "f"}, {500, HK_F32, "big"}, {7, HK_F32, "g"}};
    hk_buckets_config c = HK_BUCKETS_INIT;
    c.bucket_bytes = 100;
    c.first_bytes = 64;
    hk_buckets *b = buckets_of(s, params, HKI_COUNT(params), &c);
    if (!b) return;
    /* g f e (28 + 32 + 36), no: 96 < 100, so c too: closed at c. big is alone, done when it is reached. d is over 100 bytes. */
    static const size_t want[][5] = {{6}, {3}, {7, 5, 4, 2}, {1, 0}}, n[] = {1, 1, 4, 2};
    CHECK(s, info_of(b).buckets == 4 && info_of(b).parameters == 8);
    uint64_t bytes = 0;
    for (size_t k = 0; k < 4; k++) {
        hk_bucket_info_t u = {.size = sizeof u};
        OK(s, hk_buckets_bucket(b, k, &u));
        CHECK(s, u.parameters == n[k] && !memcmp(u.list, want[k], n[k] * sizeof(size_t)) && u.dtype == params[want[k][0]].dtype);
        bytes += u.bytes;
    }
    CHECK(s, bytes == 545 * 4 + 200 && info_of(b).bytes >= bytes);
    REFUSED(s, hk_buckets_bucket(b, 4, &(hk_bucket_info_t){.size = sizeof(hk_bucket_info_t)}), "no bucket 4: there are 4");
    OK(s, hk_buckets_set_bytes(b, 1, 0));
    CHECK(s, info_of(b).buckets == 8);
    OK(s, hk_buckets_set_bytes(b, 0, 0));
    CHECK(s, info_of(b).buckets == 3); /* f32, f16, and a to c: the first parameters of one type */
    for (size_t i = 0; i < 8; i++) {
        const uint8_t *g = hk_buckets_gradient(b, i);
        for (size_t e = 0; e < params[i].count * hk_dtype_size(params[i].dtype); e++) CHECK(s, g[e] == 0);
    }
    if (s->ranks > 1) REFUSED(s, hk_buckets_set_bytes(b, s->rank ? 64 : 128, 0), "rank 1's settings or sizes of buckets differ");
    CHECK(s, info_of(b).buckets == 3);
    for (size_t i = 0; i < 8; i++) OK(s, hk_buckets_ready(b, i));
    REFUSED(s, hk_buckets_set_bytes(b, 64, 0), "training has begun");
    OK(s, hk_buckets_finish(b));
    OK(s, hk_buckets_free(b));
}

static void test_sizes(void **state)
{
    with(1, sizes);
    with(2, sizes);
}

/* ---- Unused parameters ------------------------------------------------------------------------------------------------------------- */

static const hk_dtype flags[] = {HK_F32, HK_F16, HK_BF16, HK_F64, HK_I8}; /* of the bucket that is launched last */

/* Marks all but the parameters of `skip` (a mask), which get a gradient all the same; the others' is 1 + rank. */
static hk_status step_without(hk_buckets *b, seat *s, size_t n, unsigned skip)
{
    for (size_t i = 1; i < n; i++)
        for (int e = 0; e < 8; e++) ((float *)hk_buckets_gradient(b, i))[e] = (float)(1 + s->rank);
    for (size_t i = n; i-- > 0;)
        if (!(skip >> i & 1) && hk_buckets_ready(b, i)) return HK_SYSTEM;
    return hk_buckets_finish(b);
}

static void unused(seat *s)
{
    enum { N = 8 };
    hk_param params[N] = {{8, HK_F32, "zero"}, {8, HK_F32, "one"},  {8, HK_F32, "two"}, {8, HK_F32, "three"},
                          {8, HK_F32, "four"}, {8, HK_F32, "five"}, {8, HK_F32, NULL},  {8, HK_F32, "seven"}};
    const float mean = (float)(s->ranks + 1) / 2, without_1 = mean - (s->ranks > 1 ? 2.0f / (float)s->ranks : 0);
    const int other = s->ranks > 1;
    char text[80];
    for (size_t f = 0; f < HKI_COUNT(flags); f++) {
        params[0].dtype = flags[f];
        hk_buckets_config c = HK_BUCKETS_INIT;
        c.bucket_bytes = f % 2 ? 64 : 0;
        c.first_bytes = 1;
        hk_buckets *b = buckets_of(s, params, N, &c);
        if (!b) return;
        const float *two = hk_buckets_gradient(b, 2), *five = hk_buckets_gradient(b, 5);
        /* on one rank only, in the first step */
        snprintf(text, sizeof text, "step 0: never marked ready: 'two' (parameter 2) on rank %d.", other);
        REFUSED(s, step_without(b, s, N, s->rank == other ? 1 << 2 : 0), text);
        if (s->ranks > 1) CHECK(s, two[7] > without_1 - 1e-5f && two[7] < without_1 + 1e-5f);
        else CHECK(s, two[7] == 0);
        CHECK(s, five[0] > mean - 1e-5f && five[0] < mean + 1e-5f);
        /* on all, and another one on the first rank, then none, then too many to name, without a name among them */
        snprintf(text, sizeof text, "'one' (parameter 1) on %s; 'seven' (parameter 7) on rank 0.", s->ranks > 1 ? "all ranks" : "rank 0");
        REFUSED(s, step_without(b, s, N, 1 << 1 | (s->rank == 0 ? 1 << 7 : 0)), text);
        OK(s, step_without(b, s, N, 0));
        CHECK(s, two[7] > mean - 1e-5f && two[7] < mean + 1e-5f);
        REFUSED(s, step_without(b, s, N, s->rank == 0 ? 0xff : 0), "'three' (parameter 3) on rank 0; and 4 more.");
        REFUSED(s, step_without(b, s, N, s->rank == 0 ? 1 << 6 : 0), "ready: parameter 6 on rank 0.");
        OK(s, step_without(b, s, N, 0));
        CHECK(s, info_of(b).steps == 6 && info_of(b).launched == 6 * info_of(b).buckets);
        OK(s, hk_buckets_free(b));
        c.allow_unused = 1;
        b = buckets_of(s, params, N, &c);
        if (!b) return;
        two = hk_buckets_gradient(b, 2);
        OK(s, step_without(b, s, N, s->rank == other ? 1 << 2 : 0));
        if (s->ranks > 1) CHECK(s, two[7] > without_1 - 1e-5f && two[7] < without_1 + 1e-5f);
        OK(s, hk_buckets_finish(b)); /* nobody marked anything */
        CHECK(s, two[7] == 0);
        OK(s, hk_buckets_free(b));
    }
}

static void test_unused(void **state)
{
    for (int n = 1; n <= RANKS_MAX; n++) with(n, unused);
}

/* ---- Accumulation -------------------------------------------------------------------------------------------------------------------- */

static const hk_param weight[] = {{3, HK_F32, "w"}};

static hk_status micro(hk_buckets *b, float gradient)
{
    float *g = hk_buckets_gradient(b, 0);
    for (int i = 0; i < 3; i++) g[i] += gradient;
    const hk_status status = hk_buckets_ready(b, 0);
    return status ? status : hk_buckets_finish(b);
}

/* Two micro-batches: 1 and 3 on rank 0, 2 and 5 on rank 1. */
static void micro_batches(seat *s)
{
    static const float gradients[2][2] = {{1, 3}, {2, 5}};
    const float *mine = gradients[s->rank];
    hk_buckets *b = buckets_of(s, weight, 1, NULL);
    if (!b) return;
    const float *g = hk_buckets_gradient(b, 0);
    OK(s, hk_buckets_no_sync(b, 1));
    OK(s, micro(b, mine[0]));
    CHECK(s, g[2] == mine[0] && info_of(b).launched == 0);
    OK(s, hk_buckets_no_sync(b, 0));
    OK(s, micro(b, mine[1]));
    CHECK(s, g[2] == 5.5f && info_of(b).launched == 1);
    OK(s, hk_buckets_check(b));
    /* no micro-batch is reduced */
    OK(s, hk_buckets_zero(b));
    OK(s, hk_buckets_no_sync(b, 1));
    OK(s, micro(b, mine[0]));
    OK(s, micro(b, mine[1]));
    CHECK(s, g[2] == (s->rank ? 7.0f : 4.0f));
    REFUSED(s, hk_buckets_check(b), "rank 1's gradients differ from rank 0's (unsynchronised?)");
    /* the first one is, the last is not */
    OK(s, hk_buckets_zero(b));
    OK(s, hk_buckets_no_sync(b, 0));
    OK(s, micro(b, mine[0]));
    OK(s, hk_buckets_no_sync(b, 1));
    OK(s, micro(b, mine[1]));
    CHECK(s, g[2] == (s->rank ? 6.5f : 4.5f));
    REFUSED(s, hk_buckets_check(b), "rank 1's gradients differ from rank 0's (unsynchronised?)");
    OK(s, hk_buckets_free(b));
}

static void test_micro_batches(void **state) { with(2, micro_batches); }

enum { LAYERS = 9, LAYER = 5000 };

/* What one optimiser step of k micro-batches sends, and its first gradients. */
static void optimiser_step(seat *s, hk_buckets *b, int k, uint64_t *bytes, uint64_t *operations, float *first)
{
    hk_stats_t before = {.size = sizeof before}, after = {.size = sizeof after};
    OK(s, hk_stats(s->comm, &before));
    OK(s, hk_buckets_zero(b));
    for (int m = 0; m < k; m++) {
        OK(s, hk_buckets_no_sync(b, m + 1 < k));
        for (size_t i = LAYERS; i-- > 0;) {
            float *g = hk_buckets_gradient(b, i);
            for (int e = 0; e < LAYER; e++) g[e] += (float)(value_at(s->rank, (size_t)e + i, HK_SUM) * 4 / k);
            if (i % 4 != (size_t)m || k == 1) OK(s, hk_buckets_ready(b, i)); /* what the others marked is not unused */
        }
        OK(s, hk_buckets_finish(b));
    }
    OK(s, hk_stats(s->comm, &after));
    *bytes = after.shm.bytes_sent + after.tcp.bytes_sent - before.shm.bytes_sent - before.tcp.bytes_sent;
    *operations = after.operations - before.operations;
    for (size_t i = 0; i < LAYERS; i++) memcpy(first + i * LAYER, hk_buckets_gradient(b, i), LAYER * sizeof(float));
}

static void accumulate(seat *s)
{
    hk_param params[LAYERS];
    for (size_t i = 0; i < LAYERS; i++) params[i] = (hk_param){LAYER, HK_F32, NULL};
    hk_buckets_config c = HK_BUCKETS_INIT;
    c.bucket_bytes = 50000;
    c.check_hash = 0;
    hk_buckets *b = buckets_of(s, params, LAYERS, &c);
    float *one = malloc(LAYERS * LAYER * sizeof *one), *four = malloc(LAYERS * LAYER * sizeof *four);
    uint64_t bytes[2], operations[2];
    if (!b) return;
    optimiser_step(s, b, 1, &bytes[0], &operations[0], one);
    optimiser_step(s, b, 4, &bytes[1], &operations[1], four);
    CHECK(s, bytes[0] == bytes[1] && bytes[0] > 0 && operations[0] == operations[1] && operations[0] == info_of(b).buckets);
    CHECK(s, !memcmp(one, four, LAYERS * LAYER * sizeof *one) && one[1] != 0);
    free(one), free(four);
    OK(s, hk_buckets_free(b));
}

static void test_accumulate(void **state)
{
    with(2, accumulate);
    with(3, accumulate);
}

/* ---- Bad input, failures, resources ------------------------------------------------------------------------------------------------- */

static void refused_creations(seat *s)
{
    hk_buckets *b = (hk_buckets *)s;
    hk_buckets_config c = HK_BUCKETS_INIT;
    const hk_param two[] = {{4, HK_F32, "w"}, {5, HK_F32, s->rank == 1 ? "gain" : "bias"}};
    const hk_param odd[] = {{4, HK_F32, "w"}, {4, (hk_dtype)99, "odd"}}, huge[] = {{SIZE_MAX / 8, HK_F64, "huge"}};
    REFUSED(s, hk_buckets_create(NULL, two, 2, NULL, &b), "comm is NULL");
    CHECK(s, !b);
    REFUSED(s, hk_buckets_create(s->comm, two, 2, NULL, NULL), "buckets is NULL");
    REFUSED(s, hk_buckets_create(s->comm, NULL, 2, NULL, &b), "params is NULL");
    REFUSED(s, hk_buckets_create(s->comm, two, 0, NULL, &b), "n is 0");
    REFUSED(s, hk_buckets_create(s->comm, odd, 2, NULL, &b), "parameter 1 'odd' has no known type (99)");
    REFUSED(s, hk_buckets_create(s->comm, huge, 1, NULL, &b), "parameter 0 'huge' of");
    c.op = HK_MAX;
    REFUSED(s, hk_buckets_create(s->comm, two, 2, &c, &b), "neither HK_AVG nor HK_SUM");
    c.size = 0;
    REFUSED(s, hk_buckets_create(s->comm, two, 2, &c, &b), "HK_BUCKETS_INIT");
    if (s->ranks == 1) return;
    /* wrong on one rank, or different */
    c = (hk_buckets_config)HK_BUCKETS_INIT;
    REFUSED(s, hk_buckets_create(s->comm, s->rank == 1 ? NULL : two, 2, NULL, &b),
            s->rank == 1 ? "params is NULL" : "rank 1 could not make its buckets (HK_INVALID)");
    REFUSED(s, hk_buckets_create(s->comm, two, 2, NULL, &b), "rank 1's parameter 1 differs from rank 0's (here it is '");
    CHECK(s, strstr(hk_buckets_last_error(), two[1].name));
    REFUSED(s, hk_buckets_create(s->comm, two, s->rank == 1 ? 1 : 2, NULL, &b), "rank 1 has 1 parameters, rank 0 has 2");
    c.allow_unused = s->rank == 1;
    REFUSED(s, hk_buckets_create(s->comm, two, 1, &c, &b), "rank 1's settings or sizes of buckets differ from rank 0's");
    CHECK(s, !b);
}

/* What one rank does wrong costs nobody anything. */
static void refused_calls(seat *s)
{
    static const hk_param params[] = {{4, HK_F32, "w"}, {4, HK_F32, "bias"}, {4, HK_F32, NULL}};
    char text[80];
    hk_buckets *b = buckets_of(s, params, 3, NULL);
    if (!b) return;
    for (size_t i = 0; i < 3; i++)
        for (int e = 0; e < 4; e++) ((float *)hk_buckets_gradient(b, i))[e] = (float)((i + 1) * (size_t)(s->rank + 1));
    OK(s, hk_buckets_ready(b, 1));
    if (s->rank == 0) {
        snprintf(text, sizeof text, "rank %d: hk_buckets_ready: parameter 1 'bias' was already marked", s->rank);
        REFUSED(s, hk_buckets_ready(b, 1), text);
        REFUSED(s, hk_buckets_ready(b, 3), "parameter 3 does not exist");
        REFUSED(s, hk_buckets_no_sync(b, 1), "in the middle of a micro-batch");
        REFUSED(s, hk_buckets_zero(b), "in the middle of a step");
        REFUSED(s, hk_buckets_check(b), "in the middle of a step");
        CHECK(s, !hk_buckets_gradient(b, 3));
        REFUSED(s, hk_buckets_info(b, NULL), "info.size");
    }
    OK(s, hk_buckets_ready(b, 0));
    OK(s, hk_buckets_ready(b, 2));
    if (s->rank == 0) REFUSED(s, hk_buckets_ready(b, 2), "parameter 2 was already marked");
    OK(s, hk_buckets_finish(b));
    for (size_t i = 0; i < 3; i++) CHECK(s, ((float *)hk_buckets_gradient(b, i))[3] == (float)(i + 1) * (float)(s->ranks + 1) / 2);
    OK(s, hk_buckets_free(b));
    OK(s, hk_buckets_free(NULL));
    REFUSED(s, hk_buckets_ready(NULL, 0), "b is NULL");
    REFUSED(s, hk_buckets_finish(NULL), "b is NULL");
    REFUSED(s, hk_buckets_no_sync(NULL, 0), "b is NULL");
    REFUSED(s, hk_buckets_check(NULL), "b is NULL");
    REFUSED(s, hk_buckets_set_bytes(NULL, 0, 0), "b is NULL");
}

static void test_refused(void **state)
{
    for (int n = 1; n <= 3; n++) {
        with(n, refused_creations);
        with(n, refused_calls);
    }
}

/* A rank aborts in the middle of a step: every rank's finish tells, and all can be freed. */
static void aborted(seat *s)
{
    hk_param params[] = {{100000, HK_F32, "w"}, {100000, HK_F32, "v"}};
    hk_buckets_config c = HK_BUCKETS_INIT;
    c.bucket_bytes = 1000;
    hk_buckets *b = buckets_of(s, params, 2, &c);
    if (!b) return;
    pthread_barrier_wait(s->barrier);
    if (s->rank == 0) {
        CHECK(s, hk_comm_abort(s->comm) == HK_OK);
    } else {
        const hk_status first = hk_buckets_ready(b, 1);
        CHECK(s, first == HK_OK || first == HK_ABORTED);
    }
    CHECK(s, hk_buckets_finish(b) == HK_ABORTED);
    CHECK(s, strstr(hk_buckets_last_error(), "abort") && *hk_last_error(s->comm));
    CHECK(s, hk_buckets_finish(b) == HK_ABORTED);
    OK(s, hk_buckets_free(b));
}

/* Freed with a step under way. */
static void freed_early(seat *s)
{
    hk_buckets *b = buckets_of(s, weight, 1, NULL);
    if (!b) return;
    OK(s, hk_buckets_ready(b, 0));
    OK(s, hk_buckets_free(b));
}

static void test_ends(void **state)
{
    with(2, aborted);
    with(3, aborted);
    with(2, freed_early);
}

/* After the first step nothing is allocated, whichever order parameters come in. (Over TCP links are: each is made when a message first
 * needs it, and which step that is in is a matter of luck.) */
static void steady(seat *s)
{
    enum { N = 40 };
    hk_param params[N];
    hki_prng g = {(uint64_t)s->rank + 5};
    for (size_t i = 0; i < N; i++) params[i] = (hk_param){100 + 61 * i, i % 5 ? HK_F32 : HK_BF16, NULL};
    hk_buckets_config c = HK_BUCKETS_INIT;
    c.bucket_bytes = 20000;
    c.check_hash = 1;
    hk_buckets *b = buckets_of(s, params, N, &c);
    uint64_t before = 0;
    if (!b) return;
    for (int step = 0; step < 50; step++) {
        size_t order[N];
        shuffled(order, N, &g);
        for (size_t k = 0; k < N; k++) OK(s, hk_buckets_ready(b, order[k]));
        OK(s, hk_buckets_finish(b));
        if (step > 0) continue;
        pthread_barrier_wait(s->barrier);
        before = hki_alloc_count();
        pthread_barrier_wait(s->barrier);
    }
    pthread_barrier_wait(s->barrier);
    const uint64_t allocated = hki_alloc_count() - before;
    pthread_barrier_wait(s->barrier);
    hk_stats_t stats = {.size = sizeof stats};
    OK(s, hk_stats(s->comm, &stats));
    OK(s, hk_buckets_free(b));
    CHECK(s, allocated == 0 || stats.tcp.bytes_sent);
}

static void test_steady(void **state)
{
    with(1, steady);
    with(2, steady);
    with(4, steady);
}

/* Whichever allocation fails, creation either says so or does without memory that peers see, and loses nothing. */
static void test_no_memory(void **state)
{
    hk_comm *comm;
    int refused = 0, plain = 0;
    assert_int_equal(hk_comm_create_local(&comm, 1), HK_OK);
    for (uint64_t k = 1;; k++) {
        hk_buckets *b = NULL;
        hk_bucket_info_t u = {.size = sizeof u};
        const uint64_t before = hki_alloc_count();
        hki_alloc_fail_at(k);
        const hk_status status = hk_buckets_create(comm, weight, 1, NULL, &b);
        const bool all = hki_alloc_count() - before < k;
        hki_alloc_fail_at(0);
        if (status) {
            assert_int_equal(status, HK_NO_MEMORY);
            assert_null(b);
            refused++;
            continue;
        }
        assert_int_equal(hk_buckets_bucket(b, 0, &u), HK_OK);
        plain += !u.shared;
        ((float *)hk_buckets_gradient(b, 0))[1] = 4;
        assert_int_equal(hk_buckets_ready(b, 0), HK_OK);
        assert_int_equal(hk_buckets_finish(b), HK_OK);
        assert_true(((float *)hk_buckets_gradient(b, 0))[1] == 4);
        assert_int_equal(hk_buckets_free(b), HK_OK);
        if (all) break;
    }
    assert_true(refused >= 5 && plain == 1);
    assert_int_equal(hk_comm_destroy(comm), HK_OK);
}

/* A bucket that cannot be launched for want of memory is tried again: by finish, which says so and may be called again. */
static void test_no_memory_to_launch(void **state)
{
    hk_comm *comm;
    hk_buckets *b;
    assert_int_equal(hk_comm_create_local(&comm, 1), HK_OK);
    assert_int_equal(hk_buckets_create(comm, weight, 1, NULL, &b), HK_OK);
    float *g = hk_buckets_gradient(b, 0);
    g[2] = 7;
    hki_alloc_fail_at(1);
    assert_int_equal(hk_buckets_ready(b, 0), HK_OK);
    assert_int_equal(info_of(b).launched, 0);
    hki_alloc_fail_at(1);
    assert_int_equal(hk_buckets_finish(b), HK_NO_MEMORY);
    assert_non_null(strstr(hk_buckets_last_error(), "call again"));
    hki_alloc_fail_at(0);
    assert_int_equal(hk_buckets_ready(b, 0), HK_INVALID); /* still marked */
    assert_int_equal(hk_buckets_finish(b), HK_OK);
    assert_true(g[2] == 7 && info_of(b).launched == 1 && info_of(b).steps == 1);
    assert_int_equal(hk_buckets_free(b), HK_OK);
    assert_int_equal(hk_comm_destroy(comm), HK_OK);
}

static void end_inside(void *arg, hk_status status)
{
    (void)status;
    if (!(hk_buckets_finish(arg) == HK_INVALID)) abort();
    if (!(hk_buckets_free(arg) == HK_INVALID)) abort();
}

/* A callback cannot wait: to end a step there loses nothing of it. */
static void test_ended_in_callback(void **state)
{
    (void)state;
    hk_comm *comm = NULL;
    hk_buckets *b = NULL;
    hk_request *request = NULL;
    const hk_param param = {4, HK_F32, "w"};
    hk_buckets_info_t info = {.size = sizeof info};
    hk_options o = HK_OPTIONS_INIT;
    float v = 1;
    assert_int_equal(hk_comm_create_local(&comm, 1), HK_OK);
    assert_int_equal(hk_buckets_create(comm, &param, 1, NULL, &b), HK_OK);
    assert_int_equal(hk_buckets_ready(b, 0), HK_OK);
    o.done = end_inside;
    o.done_arg = b;
    assert_int_equal(hk_all_reduce(&v, &v, 1, HK_F32, HK_SUM, comm, &o, &request), HK_OK);
    assert_int_equal(hk_wait(&request), HK_OK);
    assert_int_equal(hk_buckets_finish(b), HK_OK);
    assert_int_equal(hk_buckets_info(b, &info), HK_OK);
    assert_int_equal(info.steps, 1);
    assert_int_equal(info.launched, 1);
    assert_int_equal(hk_buckets_free(b), HK_OK);
    hk_comm_destroy(comm);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_opposite_orders), cmocka_unit_test(test_any_order),  cmocka_unit_test(test_early),       cmocka_unit_test(test_fused),
        cmocka_unit_test(test_sizes),           cmocka_unit_test(test_unused),     cmocka_unit_test(test_micro_batches),
        cmocka_unit_test(test_accumulate),      cmocka_unit_test(test_refused),    cmocka_unit_test(test_ends),
        cmocka_unit_test(test_steady),          cmocka_unit_test(test_no_memory),
        cmocka_unit_test(test_no_memory_to_launch), cmocka_unit_test(test_ended_in_callback),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
