/* SPDX-License-Identifier: Apache-2.0
 * Every rank contributes a vector; every rank gets the sum.   hocket run -n 4 -- all_reduce */
#include <hocket/hocket.h>
#include <stdio.h>

int main(void)
{
    hk_comm *comm;
    if (hk_comm_create_env(&comm, NULL)) return fprintf(stderr, "%s\n", hk_last_error(NULL)), 3;
    const int rank = hk_comm_rank(comm), ranks = hk_comm_ranks(comm);
    float x[1000];
    for (int i = 0; i < 1000; i++) x[i] = (float)(rank + 1);

    if (hk_all_reduce(x, x, 1000, HK_F32, HK_SUM, comm, NULL, NULL)) return fprintf(stderr, "%s\n", hk_last_error(comm)), 3;

    int wrong = 0;
    for (int i = 0; i < 1000; i++) wrong += x[i] != (float)(ranks * (ranks + 1) / 2);
    printf("rank %d of %d: sum %g, %d wrong\n", rank, ranks, x[0], wrong);
    hk_comm_destroy(comm);
    return wrong > 0;
}
