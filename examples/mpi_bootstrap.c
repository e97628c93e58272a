/* SPDX-License-Identifier: Apache-2.0
 * hocket in an MPI program: MPI hands the id round, then both libraries add up the same vector. Needs an MPI compiler:
 *     mpicc mpi_bootstrap.c $(pkg-config --cflags --libs hocket) -o mpi_bootstrap && mpirun -n 4 ./mpi_bootstrap */
#include <hocket/hocket.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

enum { COUNT = 100000 };

static void check(hk_status status, const hk_comm *comm, const char *what)
{
    if (!status) return;
    fprintf(stderr, "mpi_bootstrap: %s: %s\n", what, hk_last_error(comm));
    MPI_Abort(MPI_COMM_WORLD, 3);
}

int main(int argc, char **argv)
{
    static float x[COUNT], by_hocket[COUNT], by_mpi[COUNT];
    hk_comm *comm;
    hk_id id;
    int rank, ranks;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);

    if (rank == 0) check(hk_id_create(&id), NULL, "hk_id_create");
    MPI_Bcast(&id, sizeof id, MPI_BYTE, 0, MPI_COMM_WORLD);
    check(hk_comm_create(&comm, ranks, rank, &id, NULL), NULL, "hk_comm_create");

    for (int i = 0; i < COUNT; i++) x[i] = (float)((i + 1) % 1000 * (rank + 1)); /* whole numbers: sums are exact in any order */
    check(hk_all_reduce(x, by_hocket, COUNT, HK_F32, HK_SUM, comm, NULL, NULL), comm, "hk_all_reduce");
    MPI_Allreduce(x, by_mpi, COUNT, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);

    int wrong = 0, all_wrong;
    for (int i = 0; i < COUNT; i++) wrong += by_hocket[i] != by_mpi[i];
    MPI_Allreduce(&wrong, &all_wrong, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    if (rank == 0)
        printf("mpi_bootstrap: %d ranks, %d of %d sums differ between hocket and MPI\n", ranks, all_wrong, COUNT * ranks);
    hk_comm_destroy(comm);
    MPI_Finalize();
    return all_wrong > 0;
}
