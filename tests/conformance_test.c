/* SPDX-License-Identifier: Apache-2.0
 *
 * Every operation by every registered algorithm, over every transport and executor: types, reductions, counts round the edges, in and
 * out of place, every root. Ranks are threads. Each buffer stands between guard bytes; send buffers are compared afterwards. */
#include "built.h"
#include "values.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#if defined __SANITIZE_THREAD__ || defined __SANITIZE_ADDRESS__
#define LIGHT 1
#else
#define LIGHT 0
#endif

#define GUARD 64

typedef struct job {
    int ranks, rank;
    hk_comm *comm;
    const char *transport, *executor;
    uint8_t *send, *recv, *want, *copy;
    int again; /* only calls of several windows, each so often: what depends on when messages come */
    bool plain; /* only small calls that repeat the one before, without options: the shortest way through the library */
    bool lends; /* buffers from hk_mem_alloc: of rank 0, 3, ... both, of 1, 4, ... recv, of 2, 5, ... send */
    size_t capacity;
    long calls, wrong;
    char first[256];
} job;

typedef struct shot {
    const hki_algo *algo; /* NULL: the library's choice, and no options */
    hki_op op;
    hk_dtype dtype;
    hk_redop redop;
    size_t count;
    int root, salt;
    bool in_place;
    size_t counts[64], displs[64], counts2[64], displs2[64]; /* uneven: blocks; all_to_all_v: what is sent, what is received */
} shot;

static void complain(job *j, const shot *s, const char *what)
{
    if (j->wrong++ == 0)
        snprintf(j->first, sizeof j->first, "rank %d of %d %s/%s: %s by %s %s op %d count %zu root %d%s: %s", j->rank, j->ranks, j->transport,
                 j->executor, hki_op_name(s->op), s->algo ? s->algo->name : "choice", hk_dtype_name(s->dtype), (int)s->redop, s->count, s->root,
                 s->in_place ? " in place" : "", what);
}

/* Number of elements that rank r gives to / gets from rank q in all_to_all_v. */
static size_t pair_count(const shot *s, int r, int q) { return (size_t)((r * 5 + q * 3) % 4) * s->count; }

/* Element i of block b of rank r's input. */
static int64_t given(const shot *s, int r, int b, size_t i) { return value_at(r, i + (size_t)b * 131 + (size_t)s->salt * 977, s->redop); }

static int64_t reduced(const job *j, const shot *s, int b, size_t i)
{
    int64_t v = given(s, 0, b, i);
    for (int r = 1; r < j->ranks; r++) v = combine(s->redop, v, given(s, r, b, i));
    return v;
}

static size_t block_count(const shot *s, int b) { return hki_op_uneven(s->op) ? s->counts[b] : s->count; }

/* Fills blocks [from, to) of rank r's input at `at`, at the shot's offsets. */
static void fill(const shot *s, int r, int from, int to, uint8_t *at)
{
    const size_t e = hk_dtype_size(s->dtype);
    for (int b = from; b < to; b++) {
        const size_t off = to - from == 1 ? 0 : hki_op_uneven(s->op) ? s->displs[b] : (size_t)b * s->count;
        for (size_t i = 0; i < block_count(s, b); i++) store(at + (off + i) * e, s->dtype, given(s, r, b, i), 0);
    }
}

/* What must be in recv afterwards. */
static void expect(const job *j, const shot *s, uint8_t *want)
{
    const size_t e = hk_dtype_size(s->dtype);
    const int P = j->ranks, me = j->rank, divisor = s->redop == HK_AVG ? P : 0;
    for (int b = 0; b < P; b++) {
        const bool whole = s->op == HKI_ALL_REDUCE || s->op == HKI_REDUCE || s->op == HKI_BROADCAST;
        const bool own = s->op == HKI_REDUCE_SCATTER || s->op == HKI_REDUCE_SCATTER_V || s->op == HKI_SCATTER;
        if ((whole && b) || (own && b != me)) continue;
        const size_t off = whole || own ? 0 : s->op == HKI_ALL_TO_ALL_V ? s->displs2[b] : hki_op_uneven(s->op) ? s->displs[b] : (size_t)b * s->count;
        const size_t n = s->op == HKI_ALL_TO_ALL_V ? s->counts2[b] : block_count(s, b);
        for (size_t i = 0; i < n; i++) {
            int64_t v;
            switch (s->op) {
            case HKI_ALL_REDUCE: case HKI_REDUCE: v = reduced(j, s, 0, i); break;
            case HKI_REDUCE_SCATTER: case HKI_REDUCE_SCATTER_V: v = reduced(j, s, me, i); break;
            case HKI_BROADCAST: v = given(s, s->root, 0, i); break;
            case HKI_SCATTER: v = given(s, s->root, me, i); break;
            case HKI_ALL_TO_ALL: case HKI_ALL_TO_ALL_V: v = given(s, b, me, i); break;
            default: v = given(s, b, b, i); break; /* gathers: rank b's own block */
            }
            store(want + (off + i) * e, s->dtype, v, hki_op_reduces(s->op) ? divisor : 0);
        }
    }
}

static hk_status call(const job *j, const shot *s, const void *in, void *out)
{
    hk_options options = HK_OPTIONS_INIT, *o = s->algo ? &options : NULL;
    if (o) o->algorithm = s->algo->name;
    switch (s->op) {
    case HKI_ALL_REDUCE: return hk_all_reduce(in, out, s->count, s->dtype, s->redop, j->comm, o, NULL);
    case HKI_ALL_GATHER: return hk_all_gather(in, out, s->count, s->dtype, j->comm, o, NULL);
    case HKI_REDUCE_SCATTER: return hk_reduce_scatter(in, out, s->count, s->dtype, s->redop, j->comm, o, NULL);
    case HKI_BROADCAST: return hk_broadcast(in, out, s->count, s->dtype, s->root, j->comm, o, NULL);
    case HKI_REDUCE: return hk_reduce(in, out, s->count, s->dtype, s->redop, s->root, j->comm, o, NULL);
    case HKI_GATHER: return hk_gather(in, out, s->count, s->dtype, s->root, j->comm, o, NULL);
    case HKI_SCATTER: return hk_scatter(in, out, s->count, s->dtype, s->root, j->comm, o, NULL);
    case HKI_ALL_TO_ALL: return hk_all_to_all(in, out, s->count, s->dtype, j->comm, o, NULL);
    case HKI_ALL_GATHER_V: return hk_all_gather_v(in, out, s->counts, s->displs, s->dtype, j->comm, o, NULL);
    case HKI_REDUCE_SCATTER_V: return hk_reduce_scatter_v(in, out, s->counts, s->displs, s->dtype, s->redop, j->comm, o, NULL);
    case HKI_ALL_TO_ALL_V:
        return hk_all_to_all_v(in, s->counts, s->displs, out, s->counts2, s->displs2, s->dtype, j->comm, o, NULL);
    default: return hk_barrier(j->comm, o, NULL);
    }
}

static void lay_out(const job *j, shot *s)
{
    size_t at = 0, at2 = 0;
    for (int b = 0; b < j->ranks; b++) {
        s->counts[b] = s->op == HKI_ALL_TO_ALL_V ? pair_count(s, j->rank, b) : s->count * (size_t)((b * 7 + 2) % 4);
        s->counts2[b] = pair_count(s, b, j->rank);
        s->displs[b] = at + (size_t)(b % 2); /* with gaps */
        s->displs2[b] = at2 + (size_t)(b % 3);
        at = s->displs[b] + s->counts[b];
        at2 = s->displs2[b] + s->counts2[b];
    }
}

/* Where this rank's own block stands in the larger buffer when in place. */
static size_t own_offset(const job *j, const shot *s)
{
    if (s->op == HKI_ALL_GATHER || s->op == HKI_REDUCE_SCATTER || s->op == HKI_GATHER || s->op == HKI_SCATTER) return (size_t)j->rank * s->count;
    if (s->op == HKI_ALL_GATHER_V || s->op == HKI_REDUCE_SCATTER_V) return s->displs[j->rank];
    return 0;
}

static bool guarded(const uint8_t *p, size_t bytes)
{
    for (size_t i = 0; i < GUARD; i++)
        if (p[-1 - (long)i] != 0xa5 || p[bytes + i] != 0xa5) return false;
    return true;
}

static void shoot(job *j, shot *s)
{
    const size_t e = hk_dtype_size(s->dtype), blocks = (size_t)j->ranks * (hki_op_uneven(s->op) ? 3 : 1);
    const size_t room = hki_round_up((s->count * blocks + 3 * (size_t)j->ranks + 2) * e, 8);
    j->capacity = room + 2 * GUARD;
    const bool root = !hki_op_rooted(s->op) || j->rank == s->root, many_in = s->op == HKI_REDUCE_SCATTER || s->op == HKI_SCATTER ||
        s->op == HKI_ALL_TO_ALL || s->op == HKI_REDUCE_SCATTER_V || s->op == HKI_ALL_TO_ALL_V;
    const bool has_in = root || (s->op != HKI_BROADCAST && s->op != HKI_SCATTER), has_out = root || (s->op != HKI_REDUCE && s->op != HKI_GATHER);
    if (s->in_place && hki_op_rooted(s->op) && s->op != HKI_BROADCAST && !root) s->in_place = false;
    if (hki_op_uneven(s->op)) lay_out(j, s);
    memset(j->send, 0xa5, j->capacity);
    memset(j->recv, 0xa5, j->capacity);
    memset(j->want, 0xa5, j->capacity);
    uint8_t *in = j->send + GUARD + e, *out = j->recv + GUARD + e, *want = j->want + GUARD + e;
    const size_t own = own_offset(j, s) * e;
    if (s->in_place && many_in) out = in + own;
    else if (s->in_place) in = out + own;
    const int block = many_in || s->op == HKI_ALL_REDUCE || s->op == HKI_REDUCE || s->op == HKI_BROADCAST ? 0 : j->rank;
    if (has_in) fill(s, j->rank, block, many_in ? j->ranks : block + 1, in);
    memcpy(j->copy, j->send, j->capacity);
    if (s->in_place && !many_in) memcpy(j->want, j->recv, j->capacity); /* parts that stay */
    if (has_out) expect(j, s, want);
    const hk_status status = call(j, s, in, out);
    j->calls++;
    if (status) {
        complain(j, s, hk_last_error(j->comm));
        return;
    }
    if (s->in_place && many_in) { /* only the own block of send may have changed */
        const size_t n = block_count(s, j->rank) * e;
        if (memcmp(out, want, n)) complain(j, s, "wrong result");
        if (!guarded(j->send + GUARD, room)) complain(j, s, "guard bytes were written");
        return;
    }
    if (memcmp(j->recv, j->want, j->capacity)) complain(j, s, has_out ? "wrong result, or written where nothing belongs" : "recv was written");
    if (!s->in_place && memcmp(j->send, j->copy, j->capacity)) complain(j, s, "send was changed");
}

static bool right(const shot *s, int ranks)
{
    hki_call c = {.op = s->op, .ranks = (uint32_t)ranks, .dtype = s->dtype, .redop = s->redop, .red.commutes = true};
    if (s->redop == HK_AVG) c.red.finish = HKI_FINISH_AVG;
    if (hki_op_reduces(s->op) && s->redop >= HK_BAND && hki_dtype_is_float(s->dtype)) return false;
    return !hki_algo_objection(s->algo, &c);
}

static void repeat(job *j, const hki_algo *a, hki_op op)
{
    shot s = {.algo = a, .op = op, .dtype = HK_F32, .redop = HK_SUM, .count = 65537};
    for (int k = 0; op != HKI_BARRIER && k < j->again && right(&s, j->ranks); k++) shoot(j, &s);
}

static void sweep_algorithm(job *j, const hki_algo *a, hki_op op)
{
    static const size_t counts[] = {0, 1, 2, 7, 64, 1000, 65537};
    const int redops = hki_op_reduces(op) ? HK_REDOPS : 1, roots = hki_op_rooted(op) ? j->ranks : 1;
    const bool places = op != HKI_ALL_TO_ALL && op != HKI_ALL_TO_ALL_V && op != HKI_BARRIER;
    for (size_t n = 0; n < sizeof counts / sizeof *counts; n++)
        for (int t = 0; t < HK_DTYPES; t++)
            for (int r = 0; r < redops; r++)
                for (int in_place = 0; in_place <= places; in_place++)
                    for (int root = 0; root < roots; root++) {
                        shot s = {.algo = a, .op = op, .dtype = (hk_dtype)t, .redop = (hk_redop)r, .count = counts[n], .root = root, .in_place = in_place};
                        if (counts[n] > 1000 && (t != HK_F32 || r > HK_PROD || root > 1 || LIGHT)) continue;
                        if (counts[n] > 64 && (t != HK_F32 && t != HK_BF16 && t != HK_U8)) continue;
                        if (LIGHT && ((t + r + (int)n) % 5 || root > 1)) continue;
                        if (op == HKI_BARRIER && (n || t)) continue;
                        if (right(&s, j->ranks)) shoot(j, &s);
                    }
}

/* Bytes of a message round the edges of what travels in one way or another. */
static void sweep_plain(job *j, hki_op op)
{
    static const size_t bytes[] = {4, 8, 44, 48, 52, 64, 128, 132, 1020, 1024, 1028, 2048};
    const bool places = op != HKI_ALL_TO_ALL;
    if (op == HKI_BARRIER || hki_op_uneven(op)) return;
    for (size_t n = 0; n < sizeof bytes / sizeof *bytes; n++)
        for (int t = 0; t < 2; t++)
            for (int in_place = 0; in_place <= places; in_place++)
                for (int k = 0; k < (LIGHT ? 6 : 40); k++) { /* more than a lane has lines */
                    shot s = {.op = op, .dtype = t ? HK_F32 : HK_U8, .redop = HK_SUM, .count = bytes[n] / (t ? 4 : 1), .in_place = in_place, .salt = k};
                    shoot(j, &s);
                }
}

static uint8_t *buffer(job *j, bool lent)
{
    void *p = NULL;
    if (!lent) return malloc(j->capacity);
    if (hk_mem_alloc(j->comm, j->capacity, &p)) abort();
    return p;
}

static void *rank_body(void *arg)
{
    job *j = arg;
    j->capacity = (size_t)65537 * 4 * (size_t)j->ranks * 3 + 4096;
    const bool lent_send = j->lends && j->rank % 3 != 1, lent_recv = j->lends && j->rank % 3 != 2;
    j->send = buffer(j, lent_send);
    j->recv = buffer(j, lent_recv);
    j->want = malloc(j->capacity);
    j->copy = malloc(j->capacity);
    for (unsigned op = 0; j->plain && op < HKI_COLLECTIVES; op++) sweep_plain(j, (hki_op)op);
    for (unsigned op = 0; !j->plain && op < HKI_COLLECTIVES; op++)
        for (const hki_algo *const *a = hki_algos; *a; a++)
            if ((*a)->ops & HKI_OP_BIT(op)) (j->again ? repeat : sweep_algorithm)(j, *a, (hki_op)op);
    if (hk_comm_destroy(j->comm) && !j->wrong) j->wrong = 1, snprintf(j->first, sizeof j->first, "destroy failed on rank %d", j->rank);
    if (!lent_send) free(j->send);
    if (!lent_recv) free(j->recv);
    free(j->want);
    free(j->copy);
    return NULL;
}

static long run(int ranks, const char *transport, const char *executor, bool lends, int again, bool plain)
{
    hk_comm *comms[64];
    pthread_t threads[64];
    job jobs[64] = {0};
    hk_config config = HK_CONFIG_INIT;
    config.transport = transport;
    config.executor = executor;
    config.timeout_us = 60000000;
    assert_int_equal(hk_comm_create_local_config(comms, ranks, &config), HK_OK);
    for (int r = 0; r < ranks; r++) {
        jobs[r].lends = lends, jobs[r].again = again, jobs[r].plain = plain, jobs[r].ranks = ranks, jobs[r].rank = r, jobs[r].comm = comms[r], jobs[r].transport = transport, jobs[r].executor = executor;
        assert_int_equal(pthread_create(&threads[r], NULL, rank_body, &jobs[r]), 0);
    }
    long calls = 0;
    for (int r = 0; r < ranks; r++) {
        pthread_join(threads[r], NULL);
        calls += jobs[r].calls;
    }
    for (int r = 0; r < ranks; r++)
        if (jobs[r].wrong) fail_msg("%ld wrong; first: %s", jobs[r].wrong, jobs[r].first);
    return calls;
}

static void sweep(const char *transport, const char *executor, bool lends, const int *ranks)
{
    if (!built_with(transport)) skip();
    for (; *ranks; ranks++)
        print_message("%s/%s%s %d ranks: %ld calls\n", transport, executor, lends ? "/lending" : "", *ranks, run(*ranks, transport, executor, lends, 0, false));
}

static void shm_auto(void **state) { sweep("auto", "auto", false, LIGHT ? (int[]){1, 2, 3, 5, 0} : (int[]){1, 2, 3, 4, 5, 6, 7, 8, 9, 0}); }
static void shm_event(void **state) { sweep("auto", "event", false, LIGHT ? (int[]){2, 4, 0} : (int[]){1, 2, 3, 5, 8, 0}); }
static void shm_inline(void **state) { sweep("auto", "inline", false, LIGHT ? (int[]){3, 0} : (int[]){2, 5, 0}); }
static void lent_auto(void **state) { sweep("auto", "auto", true, LIGHT ? (int[]){2, 3, 0} : (int[]){2, 3, 4, 5, 8, 0}); }
static void lent_event(void **state) { sweep("auto", "event", true, LIGHT ? (int[]){4, 0} : (int[]){2, 3, 5, 0}); }
static void tcp_auto(void **state) { sweep("tcp", "auto", false, LIGHT ? (int[]){2, 3, 0} : (int[]){1, 2, 3, 4, 5, 9, 0}); }
static void tcp_event(void **state) { sweep("tcp", "event", false, LIGHT ? (int[]){3, 0} : (int[]){2, 4, 0}); }

static void plain(void **state)
{
    for (int ranks = 2; ranks <= 5; ranks++)
        print_message("plain %d ranks: %ld calls\n", ranks, run(ranks, "auto", "auto", ranks % 2, 0, true));
}

static void tcp_again(void **state)
{
    if (!built_with("tcp")) skip();
    print_message("tcp/auto 5 ranks, again and again: %ld calls\n", run(5, "tcp", "auto", false, LIGHT ? 3 : 24, false));
}

static void tcp_sockets(void **state)
{
    setenv("HOCKET_SOCKETS", "3", 1); /* as between hosts, where large messages go on several */
    sweep("tcp", "auto", false, LIGHT ? (int[]){2, 0} : (int[]){2, 4, 0});
    unsetenv("HOCKET_SOCKETS");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(shm_auto), cmocka_unit_test(shm_event), cmocka_unit_test(shm_inline), cmocka_unit_test(plain),
                                       cmocka_unit_test(lent_auto), cmocka_unit_test(lent_event),
                                       cmocka_unit_test(tcp_auto), cmocka_unit_test(tcp_event),
                                       cmocka_unit_test(tcp_sockets), cmocka_unit_test(tcp_again)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
