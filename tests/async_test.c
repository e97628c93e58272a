/* SPDX-License-Identifier: Apache-2.0
 *
 * Operations that go on without their caller: the progress thread, several under way, a bounded pool, callbacks, events. Ranks are threads. */
#include "built.h"
#include "values.h"

#include <hocket/hocket.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#if defined __SANITIZE_THREAD__ || defined __SANITIZE_ADDRESS__
#define LIGHT 1
#else
#define LIGHT 0
#endif

/* Said by rank threads, who must not longjmp into cmocka. */
#define MUST(x)                                                                             \
    do {                                                                                    \
        if (!(x)) fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #x), abort();          \
    } while (0)

typedef struct job {
    int rank, ranks;
    hk_comm *comm;
    void (*body)(struct job *);
} job;

static void *start(void *arg)
{
    job *j = arg;
    j->body(j);
    hk_comm_destroy(j->comm);
    return NULL;
}

static void run(int ranks, const char *transport, void (*body)(job *))
{
    hk_comm *comms[16];
    pthread_t threads[16];
    job jobs[16];
    hk_config config = HK_CONFIG_INIT;
    config.transport = transport;
    config.timeout_us = 60000000;
    assert_int_equal(hk_comm_create_local_config(comms, ranks, &config), HK_OK);
    for (int r = 0; r < ranks; r++) {
        jobs[r] = (job){r, ranks, comms[r], body};
        assert_int_equal(pthread_create(&threads[r], NULL, start, &jobs[r]), 0);
    }
    for (int r = 0; r < ranks; r++) pthread_join(threads[r], NULL);
}

static void everywhere(void (*body)(job *))
{
    for (int ranks = 1; ranks <= 4; ranks++) run(ranks, "auto", body);
    if (!built_with("tcp")) return;
    run(2, "tcp", body);
    run(3, "tcp", body);
}

static float summed(const job *j, size_t i, int salt)
{
    float v = 0;
    for (int r = 0; r < j->ranks; r++) v += (float)value_at(r, i + (size_t)salt * 977, HK_SUM);
    return v;
}

static void fill(const job *j, float *at, size_t n, int salt)
{
    for (size_t i = 0; i < n; i++) at[i] = (float)value_at(j->rank, i + (size_t)salt * 977, HK_SUM);
}

static void check(const job *j, const float *at, size_t n, int salt)
{
    for (size_t i = 0; i < n; i++) MUST(at[i] == summed(j, i, salt));
}

/* ---- Progress without the caller: nobody but the thread drives, as hk_event_wait sleeps outside the library. */
static void unattended_body(job *j)
{
    static const size_t sizes[] = {1, 1000, 300000};
    for (int k = 0; k < 3; k++) {
        const size_t n = sizes[k];
        float *v = malloc(n * sizeof *v);
        hk_request *request = NULL;
        hk_event *over = NULL;
        fill(j, v, n, k);
        MUST(hk_all_reduce(v, v, n, HK_F32, HK_SUM, j->comm, NULL, &request) == HK_OK);
        MUST(hk_request_event(request, &over) == HK_OK);
        MUST(hk_event_wait(over, UINT64_MAX) == HK_OK);
        int done = 0;
        MUST(hk_test(&request, &done) == HK_OK && done && !request);
        check(j, v, n, k);
        hk_event_destroy(over);
        free(v);
    }
}

static void unattended(void **state) { everywhere(unattended_body); }

/* ---- Several under way, waited for in another order on each rank, blocking calls between them. */
enum { MANY = 24 };

static void orders_body(job *j)
{
    float *v[MANY];
    hk_request *request[MANY];
    size_t n[MANY];
    for (int k = 0; k < MANY; k++) {
        n[k] = (size_t)(k * k * 37 + 1) * (k % 5 == 0 ? 40 : 1);
        v[k] = malloc(n[k] * sizeof(float));
        fill(j, v[k], n[k], k);
        MUST(hk_all_reduce(v[k], v[k], n[k], HK_F32, HK_SUM, j->comm, NULL, &request[k]) == HK_OK);
        if (k % 7 == 3) {
            float one = 1;
            MUST(hk_all_reduce(&one, &one, 1, HK_F32, HK_SUM, j->comm, NULL, NULL) == HK_OK && one == (float)j->ranks);
        }
    }
    for (int k = 0; k < MANY; k++) {
        const int at = (k * 7 + j->rank * 5) % MANY;
        MUST(hk_wait(&request[at]) == HK_OK);
        check(j, v[at], n[at], at);
        free(v[at]);
    }
}

static void orders(void **state) { everywhere(orders_body); }

/* ---- Three at once, round after round, over sockets with small buffers, ranks out of step: results must not meet one another. */
static void back_to_back_body(job *j)
{
    enum { AT_ONCE = 3, MOST = 6000 };
    float *v = malloc(sizeof(float) * AT_ONCE * MOST);
    uint64_t chance = (uint64_t)j->rank * 0x9e3779b97f4a7c15u + 1;
    for (int k = 0; k < (LIGHT ? 20 : 500); k++) {
        hk_request *request[AT_ONCE];
        for (int i = 0; i < AT_ONCE; i++) {
            const size_t n = 1 + (size_t)(k * 131 + i * 977) % MOST;
            fill(j, v + i * MOST, n, k * AT_ONCE + i);
            MUST(hk_all_reduce(v + i * MOST, v + i * MOST, n, HK_F32, HK_SUM, j->comm, NULL, &request[i]) == HK_OK);
        }
        chance = chance * 6364136223846793005u + 1442695040888963407u;
        if (chance >> 62 == 0) usleep(chance >> 33 & 255); /* a rank that computes */
        for (int i = 0; i < AT_ONCE; i++) {
            const int at = (i + j->rank) % AT_ONCE;
            MUST(hk_wait(&request[at]) == HK_OK);
            check(j, v + at * MOST, 1 + (size_t)(k * 131 + at * 977) % MOST, k * AT_ONCE + at);
        }
    }
    free(v);
}

static void back_to_back(void **state)
{
    if (!built_with("tcp")) skip();
    setenv("HOCKET_SOCKBUF", "4096", 1);
    run(3, "tcp", back_to_back_body);
    run(4, "tcp", back_to_back_body);
    unsetenv("HOCKET_SOCKBUF");
}

/* ---- More outstanding than the pool holds: the caller is held, the engine is not. */
static size_t resident_bytes(void)
{
    unsigned long pages = 0, skipped;
    FILE *f = fopen("/proc/self/statm", "r");
    if (!f || fscanf(f, "%lu %lu", &skipped, &pages) != 2) pages = 0;
    if (f) fclose(f);
    return pages * (size_t)sysconf(_SC_PAGESIZE);
}

static void pool_body(job *j)
{
    enum { N = 20000, ELEMS = 16 };
    float *v = malloc(sizeof(float) * ELEMS * N);
    hk_request **request = malloc(sizeof *request * N);
    for (int k = 0; k < N; k++) {
        fill(j, v + k * ELEMS, ELEMS, k);
        request[k] = NULL;
    }
    const size_t before = resident_bytes();
    for (int k = 0; k < N; k++) MUST(hk_all_reduce(v + k * ELEMS, v + k * ELEMS, ELEMS, HK_F32, HK_SUM, j->comm, NULL, &request[k]) == HK_OK);
    const size_t after = resident_bytes();
    if (!LIGHT && after > before + ((size_t)16 << 20) * (size_t)j->ranks) /* all ranks are in this process */
        fprintf(stderr, "%zu bytes for %d requests of %d ranks\n", after - before, N, j->ranks), abort();
    MUST(hk_wait_all(request, N) == HK_OK);
    for (int k = 0; k < N; k++) check(j, v + k * ELEMS, ELEMS, k);
    free(v);
    free(request);
}

static void pool(void **state)
{
    run(2, "auto", pool_body);
    if (!LIGHT) run(3, "auto", pool_body);
}

/* ---- Threads: each with a communicator of its own; all on one. */
typedef struct worker { pthread_t id; hk_comm *comm; int ranks, calls; } worker;

static void *count_up(void *arg)
{
    worker *w = arg;
    for (int k = 0; k < w->calls; k++) {
        int32_t one = 1, sum = 0;
        MUST(hk_all_reduce(&one, &sum, 1, HK_I32, HK_SUM, w->comm, NULL, NULL) == HK_OK);
        MUST(sum == w->ranks);
    }
    return NULL;
}

static void workers(job *j, int n, int calls, bool own)
{
    worker w[10];
    for (int k = 0; k < n; k++) {
        w[k] = (worker){.comm = j->comm, .ranks = j->ranks, .calls = calls};
        if (own) MUST(hk_comm_dup(j->comm, &w[k].comm) == HK_OK);
    }
    for (int k = 0; k < n; k++) MUST(pthread_create(&w[k].id, NULL, count_up, &w[k]) == 0);
    for (int k = 0; k < n; k++) pthread_join(w[k].id, NULL);
    for (int k = 0; own && k < n; k++) MUST(hk_comm_destroy(w[k].comm) == HK_OK);
}

static void own_body(job *j) { workers(j, 10, LIGHT ? 100 : 3000, true); }
static void shared_body(job *j) { workers(j, 4, LIGHT ? 100 : 1000, false); }
static void threads_own(void **state) { run(2, "auto", own_body); }
static void threads_shared(void **state) { run(2, "auto", shared_body); }

/* ---- Callbacks */
typedef struct caller {
    const job *j;
    hk_request *next;
    _Atomic int called;
    float v, w;
    hk_status status;
} caller;

static void submit_more(void *arg, hk_status status)
{
    caller *c = arg;
    c->status = status;
    float blocked = 1;
    int done = 0;
    hk_request *none = NULL;
    MUST(hk_all_reduce(&c->w, &c->w, 1, HK_F32, HK_SUM, c->j->comm, NULL, &c->next) == HK_OK);
    MUST(hk_all_reduce(&blocked, &blocked, 1, HK_F32, HK_SUM, c->j->comm, NULL, NULL) == HK_INVALID);
    MUST(hk_wait(&c->next) == HK_INVALID && c->next); /* nothing is lost by asking */
    MUST(hk_comm_destroy(c->j->comm) == HK_INVALID);
    MUST(hk_test(&none, &done) == HK_OK && done);
    atomic_fetch_add(&c->called, 1);
}

static void callbacks_body(job *j)
{
    for (int k = 0; k < 20; k++) {
        caller c = {.j = j, .v = (float)(j->rank + 1), .w = 1};
        hk_options o = HK_OPTIONS_INIT;
        o.done = submit_more;
        o.done_arg = &c;
        hk_request *request = NULL;
        MUST(hk_all_reduce(&c.v, &c.v, 1, HK_F32, HK_SUM, j->comm, &o, k % 2 ? &request : NULL) == HK_OK);
        MUST(hk_wait(&request) == HK_OK);
        MUST(atomic_load(&c.called) == 1 && c.status == HK_OK); /* before the wait returned */
        MUST(hk_wait(&c.next) == HK_OK);
        MUST(c.v == (float)(j->ranks * (j->ranks + 1) / 2) && c.w == (float)j->ranks);
    }
}

static void callbacks(void **state) { everywhere(callbacks_body); }

static void note(void *arg, hk_status status)
{
    caller *c = arg;
    c->status = status;
    atomic_fetch_add(&c->called, 1);
}

/* What never finishes is called back when the communicator ends it; destroy waits for that. */
static void aborted_body(job *j)
{
    caller c = {.j = j};
    hk_options o = HK_OPTIONS_INIT;
    o.done = note;
    o.done_arg = &c;
    hk_request *request = NULL;
    if (j->rank == 0) {
        MUST(hk_recv(&c.v, 1, HK_F32, j->ranks - 1, j->comm, &o, &request) == HK_OK);
        MUST(hk_comm_abort(j->comm) == HK_OK);
        MUST(hk_wait(&request) == HK_ABORTED);
        MUST(atomic_load(&c.called) == 1 && c.status == HK_ABORTED);
    }
}

static void callback_aborted(void **state) { run(2, "auto", aborted_body); }

/* ---- Events */
enum { CHUNKS = 64, CHUNK = 500 };
typedef struct chain {
    job *j;
    float *v;
    hk_event *ready[CHUNKS], *reduced[CHUNKS];
    _Atomic int order;
} chain;

static void *produce(void *arg)
{
    chain *c = arg;
    for (int k = 0; k < CHUNKS; k++) {
        fill(c->j, c->v + k * CHUNK, CHUNK, k);
        MUST(hk_event_record(c->ready[k]) == HK_OK);
    }
    return NULL;
}

static void *consume(void *arg)
{
    chain *c = arg;
    for (int k = 0; k < CHUNKS; k++) {
        MUST(hk_event_wait(c->reduced[k], UINT64_MAX) == HK_OK);
        check(c->j, c->v + k * CHUNK, CHUNK, k);
        MUST(atomic_fetch_add(&c->order, 1) == k);
    }
    return NULL;
}

/* Compute, all_reduce, compute: three stages over 64 chunks, issued at once, and nobody waits in between. */
static void chain_body(job *j)
{
    chain c = {.j = j, .v = malloc(sizeof(float) * CHUNKS * CHUNK)};
    hk_request *request[CHUNKS];
    pthread_t producer, consumer;
    for (int k = 0; k < CHUNKS; k++) {
        MUST(hk_event_create(&c.ready[k]) == HK_OK);
        hk_options o = HK_OPTIONS_INIT;
        o.after = &c.ready[k];
        o.after_count = 1;
        float *at = c.v + k * CHUNK;
        MUST(hk_all_reduce(at, at, CHUNK, HK_F32, HK_SUM, j->comm, &o, &request[k]) == HK_OK);
        MUST(hk_request_event(request[k], &c.reduced[k]) == HK_OK);
    }
    int recorded = 1;
    MUST(hk_event_query(c.reduced[CHUNKS - 1], &recorded) == HK_OK && !recorded);
    MUST(hk_event_reset(c.ready[CHUNKS - 1]) == HK_INVALID); /* an operation waits for it */
    MUST(hk_event_wait(c.reduced[0], 1000) == HK_WAIT_EXPIRED);
    MUST(pthread_create(&producer, NULL, produce, &c) == 0 && pthread_create(&consumer, NULL, consume, &c) == 0);
    pthread_join(producer, NULL);
    pthread_join(consumer, NULL);
    MUST(hk_wait_all(request, CHUNKS) == HK_OK);
    for (int k = 0; k < CHUNKS; k++) {
        MUST(hk_event_reset(c.ready[k]) == HK_OK);
        hk_event_destroy(c.ready[k]);
        hk_event_destroy(c.reduced[k]);
    }
    free(c.v);
}

static void events(void **state) { everywhere(chain_body); }

/* Keeps callbacks from returning until it is set. */
static _Atomic int released, entered, called;

static void held_up(void *arg, hk_status status)
{
    MUST(status == HK_OK);
    atomic_fetch_add(&entered, 1);
    while (arg && !atomic_load(&released)) usleep(100);
    atomic_fetch_add(&called, 1);
}

static pthread_barrier_t both;

/* An operation after one that failed fails; handles may go before what they stand for. */
static void failed_event_body(job *j)
{
    hk_comm *other = NULL;
    float v = 1;
    hk_request *lost = NULL, *after = NULL;
    hk_event *event = NULL;
    hk_options o = HK_OPTIONS_INIT;
    MUST(hk_comm_dup(j->comm, &other) == HK_OK);
    if (j->rank == 0) {
        MUST(hk_recv(&v, 1, HK_F32, 1, j->comm, NULL, &lost) == HK_OK);
        MUST(hk_request_event(lost, &event) == HK_OK);
        o.after = &event;
        o.after_count = 1;
        MUST(hk_all_reduce(&v, &v, 1, HK_F32, HK_SUM, other, &o, &after) == HK_OK);
        hk_event_destroy(event);
        pthread_barrier_wait(&both);
        MUST(hk_comm_abort(j->comm) == HK_OK);
        MUST(hk_wait(&lost) == HK_ABORTED);
    } else {
        MUST(hk_all_reduce(&v, &v, 1, HK_F32, HK_SUM, other, NULL, &after) == HK_OK);
        pthread_barrier_wait(&both); /* from here on both communicators end */
    }
    MUST(hk_wait(&after) == HK_ABORTED);
    hk_comm_destroy(other);
}

static void failed_event(void **state)
{
    pthread_barrier_init(&both, NULL, 2);
    run(2, "auto", failed_event_body);
    pthread_barrier_destroy(&both);
}

/* A group is over when the callbacks of its members have returned, whoever runs them. */
static void group_callbacks(void **state)
{
    hk_comm *comm = NULL;
    hk_request *request = NULL;
    float v[2] = {1, 2};
    int done = 1;
    hk_options o = HK_OPTIONS_INIT;
    o.done = held_up;
    atomic_store(&called, 0);
    atomic_store(&released, 0);
    atomic_store(&entered, 0);
    assert_int_equal(hk_comm_create_local(&comm, 1), HK_OK);
    assert_int_equal(hk_group_start(comm), HK_OK);
    for (int k = 0; k < 2; k++) assert_int_equal(hk_all_reduce(&v[k], &v[k], 1, HK_F32, HK_SUM, comm, &o, NULL), HK_OK);
    assert_int_equal(hk_group_end(comm, NULL), HK_OK);
    assert_int_equal(atomic_load(&called), 2);
    o.done_arg = &released;
    assert_int_equal(hk_group_start(comm), HK_OK);
    assert_int_equal(hk_all_reduce(v, v, 1, HK_F32, HK_SUM, comm, &o, NULL), HK_OK);
    assert_int_equal(hk_group_end(comm, &request), HK_OK);
    while (atomic_load(&entered) < 3) usleep(100); /* on the progress thread */
    assert_int_equal(hk_test(&request, &done), HK_OK);
    assert_false(done);
    assert_int_equal(hk_comm_abort(comm), HK_OK); /* does not end it either */
    assert_int_equal(hk_wait_for(&request, 1000), HK_WAIT_EXPIRED);
    atomic_store(&released, 1);
    assert_int_equal(hk_wait(&request), HK_OK);
    assert_int_equal(atomic_load(&called), 3);
    hk_comm_destroy(comm);
}

/* A group that nobody waits for ends with its last member, a send, and what was refused before is not taken for one that follows it. */
static void group_let_go(void **state)
{
    static int out[100], in[100];
    hk_comm *c[2];
    hk_request *sent[2], *got[2], *group, *none = NULL;
    hk_event *nothing[1] = {NULL};
    int refused = 42;
    hk_options o = HK_OPTIONS_INIT;
    assert_int_equal(hk_comm_create_local(c, 2), HK_OK);
    for (o.tag = 0; o.tag < 2; o.tag++) assert_int_equal(hk_send(out, 100, HK_I32, 1, c[0], &o, &sent[o.tag]), HK_OK);
    o.tag = 7;
    o.after = nothing;
    o.after_count = 1;
    assert_int_equal(hk_send(&refused, 1, HK_I32, 1, c[0], &o, &none), HK_INVALID);
    o = (hk_options)HK_OPTIONS_INIT;
    for (o.tag = 0; o.tag < 2; o.tag++) assert_int_equal(hk_recv(in, 100, HK_I32, 0, c[1], &o, &got[o.tag]), HK_OK);
    assert_int_equal(hk_wait_all(sent, 2), HK_OK);
    assert_int_equal(hk_wait_all(got, 2), HK_OK);
    o.tag = 3;
    assert_int_equal(hk_group_start(c[0]), HK_OK);
    assert_int_equal(hk_send(out, 100, HK_I32, 1, c[0], &o, NULL), HK_OK);
    assert_int_equal(hk_group_end(c[0], &group), HK_OK);
    hk_request_free(&group);
    assert_int_equal(hk_recv(in, 100, HK_I32, 0, c[1], &o, &got[0]), HK_OK);
    assert_int_equal(hk_wait(&got[0]), HK_OK);
    o.tag = 7;
    int theirs = 0;
    assert_int_equal(hk_recv(&theirs, 1, HK_I32, 0, c[1], &o, &got[0]), HK_OK);
    assert_int_equal(hk_wait_for(&got[0], 100000), HK_WAIT_EXPIRED);
    assert_int_equal(hk_send(&out[1], 1, HK_I32, 1, c[0], &o, &sent[0]), HK_OK);
    assert_int_equal(hk_wait(&got[0]), HK_OK);
    assert_int_equal(theirs, out[1]);
    assert_int_equal(hk_wait(&sent[0]), HK_OK);
    for (int r = 0; r < 2; r++) assert_int_equal(hk_send(out, 0, HK_I32, 1 - r, c[r], &o, &sent[r]), HK_OK);
    for (int r = 0; r < 2; r++) assert_int_equal(hk_recv(in, 0, HK_I32, 1 - r, c[r], &o, &got[r]), HK_OK);
    assert_int_equal(hk_wait_all(sent, 2) | hk_wait_all(got, 2), HK_OK);
    hk_comm_destroy(c[0]);
    hk_comm_destroy(c[1]);
}

static void *record(void *event)
{
    MUST(hk_event_record(event) == HK_OK);
    return NULL;
}

/* Whoever waited for an event may destroy it, though the call that recorded it has not returned. */
static void event_gone(void **state)
{
    for (int k = 0; k < (LIGHT ? 300 : 3000); k++) {
        hk_event *event = NULL;
        pthread_t other;
        assert_int_equal(hk_event_create(&event), HK_OK);
        assert_int_equal(pthread_create(&other, NULL, record, event), 0);
        assert_int_equal(hk_event_wait(event, UINT64_MAX), HK_OK);
        hk_event_destroy(event);
        pthread_join(other, NULL);
    }
}

typedef struct late { job *j; float v; _Atomic int inside; hk_status ended; } late;

static void late_ended(void *arg, hk_status status) { ((late *)arg)->ended = status; }

static void issue_late(void *arg, hk_status status)
{
    late *l = arg;
    hk_request *request = NULL;
    hk_options o = HK_OPTIONS_INIT;
    MUST(status == HK_OK);
    atomic_store(&l->inside, 1);
    usleep(50000); /* for hk_comm_destroy to find nothing but this callback */
    o.done = late_ended;
    o.done_arg = l;
    MUST(hk_all_reduce(&l->v, &l->v, 1, HK_F32, HK_SUM, l->j->comm, &o, &request) == HK_OK);
    hk_request_free(&request);
}

/* hk_comm_destroy waits for what a callback issues meanwhile. */
static void late_body(job *j)
{
    late l = {.j = j, .v = 1, .ended = HK_INVALID};
    float v = 1;
    hk_request *request = NULL;
    hk_options o = HK_OPTIONS_INIT;
    o.done = issue_late;
    o.done_arg = &l;
    MUST(hk_all_reduce(&v, &v, 1, HK_F32, HK_SUM, j->comm, &o, &request) == HK_OK);
    hk_request_free(&request);
    while (!atomic_load(&l.inside)) usleep(100);
    if (j->rank == 1) usleep(100000);
    MUST(hk_comm_destroy(j->comm) == HK_OK);
    j->comm = NULL;
    MUST(l.ended == HK_OK && l.v == (float)j->ranks);
}

static void issued_while_leaving(void **state) { everywhere(late_body); }

static void *wait_alone(void *request)
{
    MUST(hk_wait(request) == HK_OK);
    return NULL;
}

/* Two threads that sleep do not wake each other for ever after one ring of the bell that brought nothing. */
static void asleep_together(void **state)
{
    hk_comm *c[2];
    hk_event *events[2];
    hk_request *request[3], *sent;
    pthread_t threads[2];
    int got[2], five = 5;
    float v = 1, w = 1;
    hk_stats_t before = {.size = sizeof before}, after = {.size = sizeof after};
    assert_int_equal(hk_comm_create_local(c, 2), HK_OK);
    for (int k = 0; k < 2; k++) {
        hk_options o = HK_OPTIONS_INIT;
        o.tag = k;
        assert_int_equal(hk_event_create(&events[k]), HK_OK);
        assert_int_equal(hk_recv(&got[k], 1, HK_I32, 1, c[0], &o, &request[k]), HK_OK);
    }
    hk_options o = HK_OPTIONS_INIT;
    o.after = events;
    o.after_count = 2;
    assert_int_equal(hk_all_reduce(&v, &v, 1, HK_F32, HK_SUM, c[0], &o, &request[2]), HK_OK);
    for (int k = 0; k < 2; k++) assert_int_equal(pthread_create(&threads[k], NULL, wait_alone, &request[k]), 0);
    usleep(200000);
    assert_int_equal(hk_event_record(events[0]), HK_OK);
    assert_int_equal(hk_stats(c[0], &before), HK_OK);
    usleep(300000);
    assert_int_equal(hk_stats(c[0], &after), HK_OK);
    assert_true(after.sleeps - before.sleeps < 200);
    o = (hk_options)HK_OPTIONS_INIT;
    for (o.tag = 0; o.tag < 2; o.tag++) {
        assert_int_equal(hk_send(&five, 1, HK_I32, 0, c[1], &o, &sent), HK_OK);
        assert_int_equal(hk_wait(&sent), HK_OK);
        pthread_join(threads[o.tag], NULL);
    }
    assert_int_equal(hk_event_record(events[1]), HK_OK);
    assert_int_equal(hk_all_reduce(&w, &w, 1, HK_F32, HK_SUM, c[1], NULL, &sent), HK_OK);
    assert_int_equal(hk_wait(&request[2]) | hk_wait(&sent), HK_OK);
    for (int k = 0; k < 2; k++) hk_event_destroy(events[k]);
    hk_comm_destroy(c[0]);
    hk_comm_destroy(c[1]);
}

/* What is issued after an operation that waits for an event starts after it, on whichever channel. */
static void after_one_that_waits(void **state)
{
    hk_comm *comm = NULL;
    hk_event *event = NULL;
    hk_request *request[3];
    float in[3] = {1, 1, 1}, out[3] = {0};
    int done;
    hk_options o = HK_OPTIONS_INIT;
    assert_int_equal(hk_comm_create_local(&comm, 1), HK_OK);
    assert_int_equal(hk_event_create(&event), HK_OK);
    o.after = &event;
    o.after_count = 1;
    for (int k = 0; k < 3; k++) assert_int_equal(hk_all_reduce(&in[k], &out[k], 1, HK_F32, HK_SUM, comm, k ? NULL : &o, &request[k]), HK_OK);
    for (int k = 0; k < 3; k++) {
        assert_int_equal(hk_test(&request[k], &done), HK_OK);
        assert_false(done);
        in[k] = 2;
    }
    assert_int_equal(hk_event_record(event), HK_OK);
    assert_int_equal(hk_wait_all(request, 3), HK_OK);
    for (int k = 0; k < 3; k++) assert_true(out[k] == 2);
    hk_event_destroy(event);
    hk_comm_destroy(comm);
}

static void until_released(void *arg, hk_status status)
{
    MUST(status == HK_OK);
    for (int k = 0; k < 20000 && !atomic_load((_Atomic int *)arg); k++) usleep(100);
    MUST(atomic_load((_Atomic int *)arg));
}

static void release_it(void *arg, hk_status status)
{
    MUST(status == HK_OK);
    atomic_store((_Atomic int *)arg, 1);
}

/* While a caller that waits runs a callback, the progress thread moves the rest. */
static void beside_body(job *j)
{
    _Atomic int other = 0;
    hk_request *request[2];
    float one = 1, *v = calloc(1000000, sizeof *v);
    hk_options o = HK_OPTIONS_INIT;
    o.done_arg = &other;
    o.done = until_released;
    MUST(hk_all_reduce(&one, &one, 1, HK_F32, HK_SUM, j->comm, &o, &request[0]) == HK_OK);
    o.done = release_it;
    MUST(hk_all_reduce(v, v, 1000000, HK_F32, HK_SUM, j->comm, &o, &request[1]) == HK_OK);
    MUST(hk_wait_all(request, 2) == HK_OK);
    free(v);
}

static void beside_a_callback(void **state) { run(2, "auto", beside_body); }

/* In a forked child the parent's communicator is none. */
static void abort_in_child(void **state)
{
    hk_comm *comm = NULL;
    int how = 0;
    assert_int_equal(hk_comm_create_local(&comm, 1), HK_OK);
    const pid_t child = fork();
    if (child == 0) _exit(hk_comm_abort(comm) == HK_FORKED ? 0 : 1);
    assert_int_equal(waitpid(child, &how, 0), child);
    assert_int_equal(how, 0);
    hk_comm_destroy(comm);
}

static void bad_body(job *j)
{
    hk_event *event = NULL, *list[2] = {NULL, NULL};
    float v = 1;
    int recorded;
    hk_options o = HK_OPTIONS_INIT;
    MUST(hk_event_create(NULL) == HK_INVALID && hk_event_record(NULL) == HK_INVALID && hk_event_wait(NULL, 0) == HK_INVALID);
    MUST(hk_event_reset(NULL) == HK_INVALID && hk_event_query(NULL, &recorded) == HK_INVALID && hk_request_event(NULL, &event) == HK_INVALID);
    hk_event_destroy(NULL);
    MUST(hk_event_create(&event) == HK_OK && hk_event_record(event) == HK_OK);
    list[0] = event;
    o.after = list;
    o.after_count = 2;
    MUST(hk_all_reduce(&v, &v, 1, HK_F32, HK_SUM, j->comm, &o, NULL) == HK_INVALID); /* names options.after[1]; nothing was sent */
    MUST(hk_send(&v, 1, HK_F32, 0, j->comm, &o, NULL) == HK_INVALID);
    o.after_count = 1;
    MUST(hk_all_reduce(&v, &v, 1, HK_F32, HK_SUM, j->comm, &o, NULL) == HK_OK && v == (float)j->ranks);
    hk_event_destroy(event);
}

static void bad_events(void **state) { run(2, "auto", bad_body); }

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(unattended), cmocka_unit_test(orders), cmocka_unit_test(back_to_back), cmocka_unit_test(pool), cmocka_unit_test(threads_own),
        cmocka_unit_test(threads_shared), cmocka_unit_test(callbacks), cmocka_unit_test(callback_aborted), cmocka_unit_test(events),
        cmocka_unit_test(failed_event), cmocka_unit_test(bad_events), cmocka_unit_test(abort_in_child), cmocka_unit_test(beside_a_callback), cmocka_unit_test(after_one_that_waits), cmocka_unit_test(asleep_together), cmocka_unit_test(issued_while_leaving), cmocka_unit_test(event_gone), cmocka_unit_test(group_let_go), cmocka_unit_test(group_callbacks)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
