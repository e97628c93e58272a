/* SPDX-License-Identifier: Apache-2.0
 *
 * Calls that differ between ranks: every rank must learn of it, with HK_MISMATCH, at the call, at the next one or at destroy, within
 * the time limit of the watchdog below. {operation, type, count, reduction, root, order} x transports x algorithms x sizes x ranks;
 * many communicators at a time, since most of each is waiting. */
#include "built.h"
#include "os/os.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#if defined __SANITIZE_THREAD__ || defined __SANITIZE_ADDRESS__
#define LIGHT 1
#else
#define LIGHT 0
#endif

typedef enum kind { OTHER_OP, OTHER_TYPE, OTHER_COUNT, NO_COUNT, OTHER_REDOP, OTHER_ROOT, OTHER_ORDER, KINDS } kind;
static const char *const kinds[KINDS] = {"operation", "type", "count", "count 0", "reduction", "root", "order"};

typedef struct trial {
    kind kind;
    const hki_algo *algo;
    hki_op op;
    const char *transport;
    int ranks, odd; /* odd: the rank that differs */
    size_t count;
} trial;

typedef struct seat {
    const trial *t;
    hk_comm *comm;
    int rank;
    void *in, *out;
    hk_status status;
    uint64_t took_us;
    char text[512];
} seat;

static hk_status call(seat *s, hki_op op, const char *algo, size_t count, hk_dtype dtype, hk_redop redop, int root)
{
    hk_options o = HK_OPTIONS_INIT;
    o.algorithm = algo;
    switch (op) {
    case HKI_ALL_REDUCE: return hk_all_reduce(s->in, s->out, count, dtype, redop, s->comm, &o, NULL);
    case HKI_ALL_GATHER: return hk_all_gather(s->in, s->out, count, dtype, s->comm, &o, NULL);
    case HKI_REDUCE_SCATTER: return hk_reduce_scatter(s->in, s->out, count, dtype, redop, s->comm, &o, NULL);
    case HKI_BROADCAST: return hk_broadcast(s->in, s->out, count, dtype, root, s->comm, &o, NULL);
    case HKI_REDUCE: return hk_reduce(s->in, s->out, count, dtype, redop, root, s->comm, &o, NULL);
    case HKI_GATHER: return hk_gather(s->in, s->out, count, dtype, root, s->comm, &o, NULL);
    case HKI_SCATTER: return hk_scatter(s->in, s->out, count, dtype, root, s->comm, &o, NULL);
    case HKI_ALL_TO_ALL: return hk_all_to_all(s->in, s->out, count, dtype, s->comm, &o, NULL);
    default: return hk_barrier(s->comm, NULL, NULL);
    }
}

static hk_status odd_call(seat *s)
{
    const trial *t = s->t;
    const char *algo = t->algo->name;
    switch (t->kind) {
    case OTHER_OP: return call(s, t->op == HKI_ALL_REDUCE ? HKI_ALL_GATHER : HKI_ALL_REDUCE, NULL, t->count, HK_F32, HK_SUM, 0);
    case OTHER_TYPE: return call(s, t->op, algo, t->count, HK_I32, HK_SUM, 0);
    case OTHER_COUNT: return call(s, t->op, algo, t->count + 1, HK_F32, HK_SUM, 0);
    case NO_COUNT: return call(s, t->op, algo, 0, HK_F32, HK_SUM, 0);
    case OTHER_REDOP: return call(s, t->op, algo, t->count, HK_F32, HK_MAX, 0);
    case OTHER_ROOT: return call(s, t->op, algo, t->count, HK_F32, HK_SUM, 1);
    default: {
        const hk_status status = call(s, HKI_BARRIER, NULL, 0, HK_F32, HK_SUM, 0);
        return status ? status : call(s, t->op, algo, t->count, HK_F32, HK_SUM, 0);
    }
    }
}

static void *rank_body(void *arg)
{
    seat *s = arg;
    const trial *t = s->t;
    const uint64_t begin = hki_now_us();
    s->status = s->rank == t->odd ? odd_call(s) : call(s, t->op, t->algo->name, t->count, HK_F32, HK_SUM, 0);
    if (!s->status && !(s->rank == t->odd && t->kind == OTHER_ORDER)) s->status = hk_barrier(s->comm, NULL, NULL);
    snprintf(s->text, sizeof s->text, "%s", s->status ? hk_last_error(s->comm) : "");
    const hk_status end = hk_comm_destroy(s->comm);
    if (!s->status) s->status = end;
    s->took_us = hki_now_us() - begin;
    return NULL;
}

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static long trials, bad;
static char first_bad[900];

static void judge(const trial *t, const seat *seats)
{
    pthread_mutex_lock(&lock);
    trials++;
    for (int r = 0; r < t->ranks; r++) {
        const seat *s = &seats[r];
        const bool late = !LIGHT && s->took_us > 15000000;
        if (s->status == HK_MISMATCH && !late) continue;
        if (bad++ == 0)
            snprintf(first_bad, sizeof first_bad, "%s differs on rank %d of %d: %s by %s count %zu over %s: rank %d got %s after %.1f s: %s", kinds[t->kind], t->odd,
                     t->ranks, hki_op_name(t->op), t->algo->name, t->count, t->transport, r, hk_status_name(s->status), (double)s->took_us / 1e6, s->text);
    }
    pthread_mutex_unlock(&lock);
}

static void run(const trial *t)
{
    hk_comm *comms[8];
    pthread_t threads[8];
    seat seats[8] = {0};
    hk_config config = HK_CONFIG_INIT;
    config.transport = t->transport;
    config.timeout_us = 20000000;
    const size_t bytes = (t->count + 1) * 8 * (size_t)t->ranks;
    if (hk_comm_create_local_config(comms, t->ranks, &config)) {
        pthread_mutex_lock(&lock);
        if (bad++ == 0) snprintf(first_bad, sizeof first_bad, "create: %s", hk_last_error(NULL));
        pthread_mutex_unlock(&lock);
        return;
    }
    for (int r = 0; r < t->ranks; r++) {
        seats[r] = (seat){.t = t, .comm = comms[r], .rank = r, .in = calloc(1, bytes), .out = calloc(1, bytes)};
        pthread_create(&threads[r], NULL, rank_body, &seats[r]);
    }
    for (int r = 0; r < t->ranks; r++) {
        pthread_join(threads[r], NULL);
        free(seats[r].in);
        free(seats[r].out);
    }
    judge(t, seats);
}

/* ---- The matrix, dealt to workers ------------------------------------------------------------------------------------------------ */

static trial *list;
static size_t listed, taken;

static bool makes_sense(const trial *t)
{
    const bool reduces = hki_op_reduces(t->op), rooted = hki_op_rooted(t->op);
    if (t->op == HKI_BARRIER || hki_op_uneven(t->op)) return false;
    if (t->kind == OTHER_REDOP && !reduces) return false;
    if (t->kind == OTHER_ROOT && !rooted) return false;
    return true;
}

static void build(const char *transport)
{
    static const size_t counts[] = {1, 1000, 262144};
    listed = taken = 0;
    list = calloc(20000, sizeof *list);
    for (unsigned op = 0; op < HKI_COLLECTIVES; op++)
        for (const hki_algo *const *a = hki_algos; *a; a++)
            for (int k = 0; k < KINDS; k++)
                for (int ranks = 2; ranks <= 5; ranks++)
                    for (int n = 0; n < 3; n++) {
                        trial t = {.kind = (kind)k, .algo = *a, .op = (hki_op)op, .transport = transport, .ranks = ranks, .count = counts[n]};
                        t.odd = (int)((listed * 7 + (unsigned)n) % (unsigned)ranks);
                        const unsigned h = (unsigned)(op * 31 + (unsigned)k * 17 + (unsigned)ranks * 5 + (unsigned)n * 3 + (unsigned)listed);
                        if (!((*a)->ops & HKI_OP_BIT(op)) || !makes_sense(&t) || (LIGHT && h % 12) || (!LIGHT && n == 2 && ranks % 3 && h % 3)) continue;
                        list[listed++] = t;
                    }
}

static void *worker(void *arg)
{
    for (;;) {
        pthread_mutex_lock(&lock);
        const size_t mine = taken < listed ? taken++ : SIZE_MAX;
        pthread_mutex_unlock(&lock);
        if (mine == SIZE_MAX) return NULL;
        run(&list[mine]);
    }
}

static void matrix(const char *transport)
{
    enum { WORKERS = LIGHT ? 6 : 24 };
    pthread_t threads[WORKERS];
    if (!built_with(transport)) skip();
    trials = bad = 0;
    build(transport);
    for (int i = 0; i < WORKERS; i++) pthread_create(&threads[i], NULL, worker, NULL);
    for (int i = 0; i < WORKERS; i++) pthread_join(threads[i], NULL);
    free(list);
    print_message("%s: %ld trials\n", transport, trials);
    if (bad) fail_msg("%ld bad; first: %s", bad, first_bad);
}

static void shm(void **state) { matrix("auto"); }
static void tcp(void **state) { matrix("tcp"); }

int main(void)
{
    setenv("HOCKET_DEBUG", "VERSION", 1); /* quiet: hundreds of expected WARN lines */
    const struct CMUnitTest tests[] = {cmocka_unit_test(shm), cmocka_unit_test(tcp)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
