/* SPDX-License-Identifier: Apache-2.0
 * Conjugate gradient for Poisson's equation on a square. Each rank has a strip of rows; neighbours exchange edge rows in a
 * group of sends and receives; the two dot products of a step are one all_reduce of 2 doubles (the form of Chronopoulos and
 * Gear, J. Comput. Appl. Math. 25(2), 1989). Compared with the same solver on one rank.   hocket run -n 4 -- solver_cg */
#include <hocket/hocket.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { N = 64, STEPS_MAX = 400 };

static hk_comm *comm;

/* Rows 1..rows are ours; rows 0 and rows + 1 are the neighbours' edges, or the boundary, which is zero. */
typedef struct strip {
    int first, rows;     /* of the grid */
    int above, below;    /* ranks, -1: boundary */
    int alone;           /* the whole grid, without communication */
    double *x, *r, *w, *p, *s;
} strip;

static void check(hk_status status, const char *what)
{
    if (!status) return;
    fprintf(stderr, "solver_cg: %s: %s\n", what, hk_last_error(comm));
    exit(3);
}

static double *field(int rows)
{
    double *v = calloc((size_t)(rows + 2) * N, sizeof *v);
    if (v) return v;
    fprintf(stderr, "solver_cg: out of memory\n");
    exit(3);
}

static strip make_strip(int rank, int ranks)
{
    strip g = {.first = N * rank / ranks, .above = rank - 1, .below = rank + 1 < ranks ? rank + 1 : -1, .alone = ranks == 1};
    g.rows = N * (rank + 1) / ranks - g.first;
    g.x = field(g.rows), g.r = field(g.rows), g.w = field(g.rows), g.p = field(g.rows), g.s = field(g.rows);
    return g;
}

static void free_strip(strip *g) { free(g->x), free(g->r), free(g->w), free(g->p), free(g->s); }

/* Four transfers, in any order of the neighbours: a group starts them together, so nobody waits for somebody who waits. */
static void exchange_edges(const strip *g, double *v)
{
    if (g->alone) return;
    check(hk_group_start(comm), "starting a group");
    if (g->above >= 0) {
        check(hk_send(v + N, N, HK_F64, g->above, comm, NULL, NULL), "sending up");
        check(hk_recv(v, N, HK_F64, g->above, comm, NULL, NULL), "receiving from above");
    }
    if (g->below >= 0) {
        check(hk_send(v + g->rows * N, N, HK_F64, g->below, comm, NULL, NULL), "sending down");
        check(hk_recv(v + (g->rows + 1) * N, N, HK_F64, g->below, comm, NULL, NULL), "receiving from below");
    }
    check(hk_group_end(comm, NULL), "exchanging edges");
}

/* out = A v: the five-point Laplacian, times h * h. */
static void apply(const strip *g, double *out, double *v)
{
    exchange_edges(g, v);
    for (int i = 1; i <= g->rows; i++)
        for (int j = 0; j < N; j++) {
            const double *at = v + i * N + j;
            out[i * N + j] = 4 * at[0] - at[-N] - at[N] - (j > 0 ? at[-1] : 0) - (j + 1 < N ? at[1] : 0);
        }
}

/* both = {r.r, w.r} over the whole grid */
static void dots(const strip *g, double both[2])
{
    both[0] = both[1] = 0;
    for (int i = N; i < (g->rows + 1) * N; i++) both[0] += g->r[i] * g->r[i], both[1] += g->w[i] * g->r[i];
    if (!g->alone) check(hk_all_reduce(both, both, 2, HK_F64, HK_SUM, comm, NULL, NULL), "adding up dot products");
}

/* Solves A x = 1 from x = 0. history[k] = squared residual after k steps; returns the number of steps. */
static int solve(strip *g, double *history)
{
    double both[2], alpha, beta = 0;
    for (int i = N; i < (g->rows + 1) * N; i++) g->r[i] = 1;
    apply(g, g->w, g->r);
    dots(g, both);
    alpha = both[0] / both[1];
    history[0] = both[0];
    int k = 0;
    while (k < STEPS_MAX && history[k] > 1e-16 * history[0]) {
        for (int i = N; i < (g->rows + 1) * N; i++) {
            g->p[i] = g->r[i] + beta * g->p[i];
            g->s[i] = g->w[i] + beta * g->s[i];
            g->x[i] += alpha * g->p[i];
            g->r[i] -= alpha * g->s[i];
        }
        apply(g, g->w, g->r);
        dots(g, both);
        history[++k] = both[0];
        beta = history[k] / history[k - 1];
        alpha = both[0] / (both[1] - beta * both[0] / alpha);
    }
    return k;
}

int main(void)
{
    static double history[STEPS_MAX + 1], alone_history[STEPS_MAX + 1];
    check(hk_comm_create_env(&comm, NULL), "making the communicator");
    const int rank = hk_comm_rank(comm), ranks = hk_comm_ranks(comm);
    if (ranks > N) return fprintf(stderr, "solver_cg: at most %d ranks\n", N), 2;
    strip mine = make_strip(rank, ranks), alone = make_strip(0, 1);
    const int steps = solve(&mine, history), alone_steps = solve(&alone, alone_history);

    double worst = 0, x_worst = 0;
    for (int k = 0; k <= steps && k <= alone_steps; k++) worst = fmax(worst, fabs(history[k] / alone_history[k] - 1));
    for (int i = N; i < (mine.rows + 1) * N; i++) x_worst = fmax(x_worst, fabs(mine.x[i] - alone.x[i + mine.first * N]));
    double both[2] = {worst, x_worst};
    check(hk_all_reduce(both, both, 2, HK_F64, HK_MAX, comm, NULL, NULL), "comparing");
    const int wrong = steps != alone_steps || steps == STEPS_MAX || !(both[0] < 1e-8) || !(both[1] < 1e-8);
    if (rank == 0)
        printf("solver_cg: %d ranks, %d x %d grid, %d steps (%d on one rank), residuals within %.1e of one rank's, "
               "x within %.1e\n",
               ranks, N, N, steps, alone_steps, both[0], both[1]);
    free_strip(&mine), free_strip(&alone);
    hk_comm_destroy(comm);
    return wrong;
}
