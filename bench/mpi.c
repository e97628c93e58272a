/* SPDX-License-Identifier: Apache-2.0
 *
 * An MPI library timed as `hocket perf` times hocket: mpirun -n N mpi OP MIN MAX FACTOR. Each rank times every call by itself; a line a
 * size: bytes of the full vector, then p50, p99 and min in microseconds, those of the slowest rank. fp32, sum, buffers from malloc. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

typedef struct call { const char *op; float *in, *out; int whole, part; } call;

static void run(const call *c)
{
    if (!strcmp(c->op, "all_reduce")) MPI_Allreduce(c->in, c->out, c->whole, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    else if (!strcmp(c->op, "all_gather")) MPI_Allgather(c->in, c->part, MPI_FLOAT, c->out, c->part, MPI_FLOAT, MPI_COMM_WORLD);
    else if (!strcmp(c->op, "reduce_scatter")) MPI_Reduce_scatter_block(c->in, c->out, c->part, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    else if (!strcmp(c->op, "broadcast")) MPI_Bcast(c->out, c->whole, MPI_FLOAT, 0, MPI_COMM_WORLD);
    else if (!strcmp(c->op, "all_to_all")) MPI_Alltoall(c->in, c->part, MPI_FLOAT, c->out, c->part, MPI_FLOAT, MPI_COMM_WORLD);
    else MPI_Abort(MPI_COMM_WORLD, 2);
}

/* As many calls as hocket perf makes. */
static int rounds_of(size_t bytes, int ranks)
{
    return (bytes <= 4096 ? 2000 : bytes <= 262144 ? 300 : bytes <= 4194304 ? 40 : 10) / (ranks > 2 ? 4 : 1) + 3;
}

int main(int argc, char **argv)
{
    int rank, ranks;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (argc != 5) MPI_Abort(MPI_COMM_WORLD, 2);
    const size_t min = strtoull(argv[2], NULL, 10), max = strtoull(argv[3], NULL, 10), factor = strtoull(argv[4], NULL, 10);
    float *in = calloc(max + 4 * (size_t)ranks, 1), *out = calloc(max + 4 * (size_t)ranks, 1);
    if (!in || !out || factor < 2) MPI_Abort(MPI_COMM_WORLD, 1);
    for (size_t bytes = min; bytes <= max; bytes *= factor) {
        const int elems = (int)(bytes / 4), share = elems / ranks, rounds = rounds_of(bytes, ranks);
        const call c = {argv[1], in, out, elems, share ? share : 1};
        double *us = malloc(sizeof *us * (size_t)rounds), mine[3], slowest[3];
        for (int k = 0; k < rounds / 10 + 2; k++) run(&c);
        for (int k = 0; k < rounds; k++) {
            const double begin = MPI_Wtime();
            run(&c);
            us[k] = (MPI_Wtime() - begin) * 1e6;
        }
        qsort(us, (size_t)rounds, sizeof *us, ascending);
        mine[0] = us[rounds / 2], mine[1] = us[(int)(rounds * 0.99)], mine[2] = us[0];
        MPI_Reduce(mine, slowest, 3, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
        if (rank == 0) printf("%zu %.4f %.4f %.4f\n", bytes, slowest[0], slowest[1], slowest[2]);
        free(us);
    }
    free(in);
    free(out);
    MPI_Finalize();
    return 0;
}
