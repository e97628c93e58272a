/* SPDX-License-Identifier: Apache-2.0
 * Pipeline and data parallelism together: a model of two stages on one or more replicas, 2 x replicas ranks. In GPipe's order
 * (Huang et al., NeurIPS 2019) a replica passes all micro-batches forward, then all backward; activations and their gradients
 * travel by send and recv. Gradients of weights are reduce-scattered over the replicas of a stage, each updates its shard,
 * all-gather hands it round.
 *     hocket run -n 4 -- pipeline */
#include <hocket/hocket.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MICRO = 8, ROWS = 24, IN = 40, MID = 64, OUT = 24, STEPS = 5, STAGES = 2 }; /* ROWS: of a micro-batch */
#define RATE 0.05

static hk_comm *comm, *replicas; /* all ranks; those of my stage */
static double waited;            /* seconds in recv */

static void check(hk_status status, const hk_comm *c, const char *what)
{
    if (!status) return;
    fprintf(stderr, "pipeline: %s: %s\n", what, hk_last_error(c));
    exit(3);
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void *take(size_t n)
{
    void *p = calloc(n, sizeof(double));
    if (p) return p;
    fprintf(stderr, "pipeline: out of memory\n");
    exit(3);
}

/* Any number that depends on i alone: every rank makes the same data and the same first weights. */
static double number(long i) { return sin(0.37 * (double)i + 0.0011 * (double)i * (double)i); }

/* c (m x n) = a (m x k) b (k x n) */
static void multiply(double *c, const double *a, const double *b, int m, int k, int n)
{
    memset(c, 0, (size_t)m * (size_t)n * sizeof *c);
    for (int i = 0; i < m; i++)
        for (int p = 0; p < k; p++)
            for (int j = 0; j < n; j++) c[i * n + j] += a[i * k + p] * b[p * n + j];
}

/* g (k x n) += a^T (k x m) d (m x n) */
static void add_outer(double *g, const double *a, const double *d, int m, int k, int n)
{
    for (int i = 0; i < m; i++)
        for (int p = 0; p < k; p++)
            for (int j = 0; j < n; j++) g[p * n + j] += a[i * k + p] * d[i * n + j];
}

/* ---- The model: h = tanh(x w0), y = h w1, loss = half the squared distance to a target, averaged over all rows --- */

static void make_input(double *x, int micro)
{
    for (int i = 0; i < ROWS * IN; i++) x[i] = number((long)micro * ROWS * IN + i);
}

static void forward0(double *h, const double *x, const double *w0)
{
    multiply(h, x, w0, ROWS, IN, MID);
    for (int i = 0; i < ROWS * MID; i++) h[i] = tanh(h[i]);
}

/* y, then the gradients of w1 and, if wanted, of h. */
static void last_stage(double *dw1, double *dh, const double *h, const double *w1, int micro, int rows)
{
    double y[ROWS * OUT];
    multiply(y, h, w1, ROWS, MID, OUT);
    for (int i = 0; i < ROWS * OUT; i++) y[i] = (y[i] - number(70000 + (long)micro * ROWS * OUT + i)) / rows;
    add_outer(dw1, h, y, ROWS, MID, OUT);
    for (int i = 0; i < ROWS; i++)
        for (int k = 0; k < MID; k++) {
            dh[i * MID + k] = 0;
            for (int j = 0; j < OUT; j++) dh[i * MID + k] += y[i * OUT + j] * w1[k * OUT + j];
        }
}

static void backward0(double *dw0, double *dh, const double *h, const double *x)
{
    for (int i = 0; i < ROWS * MID; i++) dh[i] *= 1 - h[i] * h[i];
    add_outer(dw0, x, dh, ROWS, IN, MID);
}

/* The same model in one piece: w0 and w1 after STEPS steps over all micro-batches of all replicas. */
static void unsplit(double *w0, double *w1, int nreplicas)
{
    const int all = nreplicas * MICRO;
    double *x = take(ROWS * IN), *h = take(ROWS * MID), *dh = take(ROWS * MID);
    for (int s = 0; s < STEPS; s++) {
        double *dw0 = take(IN * MID), *dw1 = take(MID * OUT);
        for (int m = 0; m < all; m++) {
            make_input(x, m);
            forward0(h, x, w0);
            last_stage(dw1, dh, h, w1, m, all * ROWS);
            backward0(dw0, dh, h, x);
        }
        for (int i = 0; i < IN * MID; i++) w0[i] -= RATE * dw0[i];
        for (int i = 0; i < MID * OUT; i++) w1[i] -= RATE * dw1[i];
        free(dw0), free(dw1);
    }
    free(x), free(h), free(dh);
}

/* ---- One rank of the pipeline --- */

static void receive(double *to, int peer)
{
    const double begin = now();
    check(hk_recv(to, ROWS * MID, HK_F64, peer, comm, NULL, NULL), comm, "receiving");
    waited += now() - begin;
}

/* Stage 0: sends do not block, so that the next micro-batch is computed while the last one travels. */
static void run_first(double *grad, const double *w, double *x, double *h, int peer, int first)
{
    hk_request *sent[MICRO];
    double dh[ROWS * MID];
    for (int m = 0; m < MICRO; m++) {
        make_input(x + m * ROWS * IN, first + m);
        forward0(h + m * ROWS * MID, x + m * ROWS * IN, w);
        check(hk_send(h + m * ROWS * MID, ROWS * MID, HK_F64, peer, comm, NULL, &sent[m]), comm, "sending");
    }
    check(hk_wait_all(sent, MICRO), comm, "sending activations");
    for (int m = MICRO - 1; m >= 0; m--) {
        receive(dh, peer);
        backward0(grad, dh, h + m * ROWS * MID, x + m * ROWS * IN);
    }
}

static void run_last(double *grad, const double *w, double *h, double *dh, int peer, int first, int rows)
{
    hk_request *sent[MICRO];
    for (int m = 0; m < MICRO; m++) receive(h + m * ROWS * MID, peer);
    for (int m = MICRO - 1; m >= 0; m--) {
        last_stage(grad, dh + m * ROWS * MID, h + m * ROWS * MID, w, first + m, rows);
        check(hk_send(dh + m * ROWS * MID, ROWS * MID, HK_F64, peer, comm, NULL, &sent[m]), comm, "sending");
    }
    check(hk_wait_all(sent, MICRO), comm, "sending gradients");
}

/* w has room for whole shards. */
static void train(double *w, size_t shard, int stage, int replica, int nreplicas)
{
    const int peer = (1 - stage) * nreplicas + replica;
    double *grad = take(shard * (size_t)nreplicas), *mine = grad + (size_t)replica * shard, *part = w + (size_t)replica * shard;
    double *x = take(MICRO * ROWS * IN), *h = take(MICRO * ROWS * MID), *dh = take(MICRO * ROWS * MID);
    for (int s = 0; s < STEPS; s++) {
        memset(grad, 0, shard * (size_t)nreplicas * sizeof *grad);
        if (stage == 0) run_first(grad, w, x, h, peer, replica * MICRO);
        else run_last(grad, w, h, dh, peer, replica * MICRO, nreplicas * MICRO * ROWS);
        check(hk_reduce_scatter(grad, mine, shard, HK_F64, HK_SUM, replicas, NULL, NULL), replicas, "spreading gradients");
        for (size_t i = 0; i < shard; i++) part[i] -= RATE * mine[i];
        check(hk_all_gather(part, w, shard, HK_F64, replicas, NULL, NULL), replicas, "gathering weights");
    }
    free(grad), free(x), free(h), free(dh);
}

int main(void)
{
    check(hk_comm_create_env(&comm, NULL), NULL, "making the communicator");
    const int rank = hk_comm_rank(comm), ranks = hk_comm_ranks(comm), nreplicas = ranks / STAGES;
    if (ranks % STAGES) {
        fprintf(stderr, "pipeline: needs an even number of ranks, has %d\n", ranks);
        hk_comm_destroy(comm);
        return 2;
    }
    const int stage = rank / nreplicas, replica = rank % nreplicas;
    check(hk_comm_split(comm, stage, replica, &replicas), comm, "grouping the replicas of a stage");

    const size_t params[STAGES] = {IN * MID, MID * OUT}, n = params[stage];
    const size_t shard = (n + (size_t)nreplicas - 1) / (size_t)nreplicas;
    double *whole[STAGES] = {take(IN * MID), take(MID * OUT)}, *w = take(shard * (size_t)nreplicas), worst[2] = {0, 0};
    for (int s = 0; s < STAGES; s++)
        for (size_t i = 0; i < params[s]; i++) whole[s][i] = 0.2 * number(900000 + 50000 * s + (long)i);
    memcpy(w, whole[stage], n * sizeof *w);

    const double begin = now();
    train(w, shard, stage, replica, nreplicas);
    worst[1] = waited / (now() - begin);
    unsplit(whole[0], whole[1], nreplicas);
    for (size_t i = 0; i < n; i++) worst[0] = fmax(worst[0], fabs(w[i] - whole[stage][i]));
    check(hk_all_reduce(worst, worst, 2, HK_F64, HK_MAX, comm, NULL, NULL), comm, "comparing");
    if (rank == 0)
        printf("pipeline: %d stages x %d replicas, %d micro-batches, weights within %.1e of the unsplit model; "
               "bubble (S-1)/(M+S-1) = %.1f %%, a rank waited up to %.1f %% of the time\n",
               STAGES, nreplicas, MICRO, worst[0], 100.0 * (STAGES - 1) / (MICRO + STAGES - 1), 100 * worst[1]);
    free(whole[0]), free(whole[1]), free(w);
    hk_comm_destroy(replicas);
    hk_comm_destroy(comm);
    return !(worst[0] < 1e-6);
}
