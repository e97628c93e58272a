/* SPDX-License-Identifier: Apache-2.0
 * An outside C program: built by tests/run_consumers.sh against an installed hocket, by pkg-config. */
#include <hocket/hocket.h>
#include <stdio.h>

int main(void)
{
    hk_comm *comm;
    if (hk_version() != HK_VERSION) return printf("header %d, library %d\n", HK_VERSION, hk_version()), 1;
    if (hk_comm_create_env(&comm, NULL)) return printf("%s\n", hk_last_error(NULL)), 3;
    const int rank = hk_comm_rank(comm), ranks = hk_comm_ranks(comm);
    double x[3] = {rank, 1, -rank}, y[3];
    if (hk_all_reduce(x, y, 3, HK_F64, HK_SUM, comm, NULL, NULL)) return printf("%s\n", hk_last_error(comm)), 3;
    hk_comm_destroy(comm);
    const int right = y[0] == ranks * (ranks - 1) / 2 && y[1] == ranks && y[2] == -y[0];
    if (rank == 0 || !right) printf("C consumer: rank %d of %d, %s\n", rank, ranks, right ? "right" : "wrong");
    return !right;
}
