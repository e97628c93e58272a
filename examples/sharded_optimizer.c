/* SPDX-License-Identifier: Apache-2.0
 * Adam with its state spread over the ranks: gradients are reduce-scattered, each rank updates its shard of the parameters
 * with its shard of the state, all-gather hands the new parameters to all. The same as all-reduce and a full update
 * everywhere, with 1/ranks of the state.   hocket run -n 4 -- sharded_optimizer */
#include <hocket/hocket.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { PARAMS = 10007, STEPS = 60 };

static hk_comm *comm;

static void check(hk_status status, const char *what)
{
    if (!status) return;
    fprintf(stderr, "sharded_optimizer: %s: %s\n", what, hk_last_error(comm));
    exit(3);
}

static float *numbers(size_t n)
{
    float *p = calloc(n, sizeof *p);
    if (p) return p;
    fprintf(stderr, "sharded_optimizer: out of memory\n");
    exit(3);
}

typedef struct adam { float *mean, *square; size_t n; } adam; /* the state: two numbers a parameter */

static adam make_adam(size_t n) { return (adam){numbers(n), numbers(n), n}; }

static void free_adam(adam *a) { free(a->mean), free(a->square); }

static void update(adam *a, float *param, const float *grad, int step)
{
    const float rate = 0.1f / (1 + 0.05f * (float)step), fix1 = 1 - powf(0.9f, (float)step), fix2 = 1 - powf(0.99f, (float)step);
    for (size_t i = 0; i < a->n; i++) {
        a->mean[i] = 0.9f * a->mean[i] + 0.1f * grad[i];
        a->square[i] = 0.99f * a->square[i] + 0.01f * grad[i] * grad[i];
        param[i] -= rate * (a->mean[i] / fix1) / (sqrtf(a->square[i] / fix2) + 1e-8f);
    }
}

/* Gradient of this rank's loss, half the squared distance from its own target. Multiples of 1/1024, so that sums over ranks are
 * exact and no algorithm can give other bits than another. */
static void gradient(float *grad, const float *param, int rank)
{
    for (int i = 0; i < PARAMS; i++) grad[i] = rintf(1024 * (param[i] - sinf((float)i) - 0.25f * (float)rank)) / 1024;
}

int main(void)
{
    check(hk_comm_create_env(&comm, NULL), "making the communicator");
    const int rank = hk_comm_rank(comm), ranks = hk_comm_ranks(comm);
    const size_t shard = (PARAMS + (size_t)ranks - 1) / (size_t)ranks, all = shard * (size_t)ranks; /* padded to whole shards */
    float *param = numbers(all), *grad = numbers(all), *mine = grad + (size_t)rank * shard, *whole = numbers(all);
    adam part = make_adam(shard), full = make_adam(all);

    for (int step = 1; step <= STEPS; step++) {
        gradient(grad, param, rank);
        check(hk_reduce_scatter(grad, mine, shard, HK_F32, HK_AVG, comm, NULL, NULL), "spreading the gradients"); /* in place */
        update(&part, param + (size_t)rank * shard, mine, step);
        check(hk_all_gather(param + (size_t)rank * shard, param, shard, HK_F32, comm, NULL, NULL), "gathering the parameters");
    }
    for (int step = 1; step <= STEPS; step++) { /* the same unsharded */
        gradient(grad, whole, rank);
        check(hk_all_reduce(grad, grad, all, HK_F32, HK_AVG, comm, NULL, NULL), "averaging the gradients");
        update(&full, whole, grad, step);
    }

    double wrong[2] = {0, 0}; /* parameters that differ; how far the last one is from where it should go */
    for (int i = 0; i < PARAMS; i++) {
        wrong[0] += param[i] != whole[i];
        wrong[1] = fmax(wrong[1], fabs((double)param[i] - sin(i) - 0.125 * (ranks - 1)));
    }
    check(hk_all_reduce(wrong, wrong, 2, HK_F64, HK_MAX, comm, NULL, NULL), "counting differences");
    if (rank == 0)
        printf("sharded_optimizer: %d ranks, state %zu instead of %d numbers a rank, %g of %d parameters differ, "
               "%.3f from the optimum\n",
               ranks, 2 * shard, 2 * PARAMS, wrong[0], PARAMS, wrong[1]);
    free_adam(&part), free_adam(&full);
    free(param), free(grad), free(whole);
    hk_comm_destroy(comm);
    return wrong[0] > 0 || wrong[1] > 0.1;
}
