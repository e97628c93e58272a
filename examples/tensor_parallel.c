/* SPDX-License-Identifier: Apache-2.0
 * A layer y = x w whose columns are spread over the ranks: each computes its columns, all-gather puts them together. The
 * gradient of x is the sum of what each rank's columns contribute.   hocket run -n 4 -- tensor_parallel */
#include <hocket/hocket.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { ROWS = 32, IN = 48, OUT = 70 }; /* of a batch, of x, of y */

static hk_comm *comm;

static void check(hk_status status, const char *what)
{
    if (!status) return;
    fprintf(stderr, "tensor_parallel: %s: %s\n", what, hk_last_error(comm));
    exit(3);
}

/* Any number that depends on i alone, in (-1, 1): all ranks make the same ones. */
static float number(int i) { return (float)sin(0.7 * i + 0.001 * i * i); }

/* Columns [from, to) of y, one after the other: y[column][row]. A column lies in one piece, so gathering needs no reordering. */
static void forward(float *y, const float *x, const float *w, int from, int to)
{
    for (int c = from; c < to; c++)
        for (int r = 0; r < ROWS; r++) {
            float sum = 0;
            for (int k = 0; k < IN; k++) sum += x[r * IN + k] * w[c * IN + k];
            y[(c - from) * ROWS + r] = sum;
        }
}

/* What columns [from, to) add to the gradient of x; dy as y above. */
static void backward(double *dx, const float *dy, const float *w, int from, int to)
{
    for (int r = 0; r < ROWS; r++)
        for (int k = 0; k < IN; k++) {
            dx[r * IN + k] = 0;
            for (int c = from; c < to; c++) dx[r * IN + k] += (double)dy[c * ROWS + r] * (double)w[c * IN + k];
        }
}

int main(void)
{
    static float x[ROWS * IN], w[OUT * IN], y[OUT * ROWS], whole_y[OUT * ROWS], part_y[OUT * ROWS];
    static double dx[ROWS * IN], whole_dx[ROWS * IN];
    check(hk_comm_create_env(&comm, NULL), "making the communicator");
    const int rank = hk_comm_rank(comm), ranks = hk_comm_ranks(comm);
    const int from = OUT * rank / ranks, to = OUT * (rank + 1) / ranks; /* my columns */
    for (int i = 0; i < ROWS * IN; i++) x[i] = number(i);
    for (int i = 0; i < OUT * IN; i++) w[i] = number(5000 + i); /* a real program holds only its own columns */

    /* OUT need not be a multiple of ranks: the uneven form takes a count for each. */
    size_t *counts = malloc((size_t)ranks * sizeof *counts);
    if (!counts) return 3;
    for (int r = 0; r < ranks; r++) counts[r] = (size_t)(OUT * (r + 1) / ranks - OUT * r / ranks) * ROWS;
    forward(part_y, x, w, from, to);
    check(hk_all_gather_v(part_y, y, counts, NULL, HK_F32, comm, NULL, NULL), "gathering the columns");
    backward(dx, y, w, from, to); /* of half the sum of squares: dy = y */
    check(hk_all_reduce(dx, dx, ROWS * IN, HK_F64, HK_SUM, comm, NULL, NULL), "adding up the gradient");

    forward(whole_y, x, w, 0, OUT);
    backward(whole_dx, whole_y, w, 0, OUT);
    double wrong[2] = {0, 0};
    for (int i = 0; i < OUT * ROWS; i++) wrong[0] += y[i] != whole_y[i]; /* the same sums in the same order: the same bits */
    for (int i = 0; i < ROWS * IN; i++) wrong[1] += fabs(dx[i] - whole_dx[i]) > 1e-9 * (1 + fabs(whole_dx[i]));
    check(hk_all_reduce(wrong, wrong, 2, HK_F64, HK_SUM, comm, NULL, NULL), "counting differences");
    if (rank == 0)
        printf("tensor_parallel: %d ranks, %d of %d columns here, outputs that differ from the whole layer: %g, "
               "gradients: %g\n",
               ranks, to - from, OUT, wrong[0], wrong[1]);
    free(counts);
    hk_comm_destroy(comm);
    return wrong[0] + wrong[1] > 0;
}
