/* SPDX-License-Identifier: Apache-2.0
 * hocket perf init: how long communicators take to make and free. */
#include "perf.h"

#include <stdlib.h>

enum { ROUNDS = 20 };

typedef hk_status (*maker)(const perf_run *, const hk_id *, hk_comm **);

static hk_status create(const perf_run *r, const hk_id *id, hk_comm **comm)
{
    return hk_comm_create(comm, r->ranks, r->rank, id, NULL);
}
static hk_status dup(const perf_run *r, const hk_id *id, hk_comm **comm)
{
    (void)id;
    return hk_comm_dup(r->comm, comm);
}
static hk_status split(const perf_run *r, const hk_id *id, hk_comm **comm)
{
    (void)id;
    return hk_comm_split(r->comm, r->rank % 2, r->rank, comm);
}

static void row(perf_run *r, const char *what, double *us, size_t n)
{
    perf_result result = {.algorithm = what, .pair = {-1, -1}};
    perf_statistics(r, us, n, &result);
    perf_report_row(r, &result);
}

/* What only rank 0 knows, the id, is made and told outside the time. */
static void measure(perf_run *r, const char *what, const char *freeing, maker make)
{
    double made[ROUNDS], freed[ROUNDS];
    for (int k = 0; k < ROUNDS; k++) {
        hk_comm *comm;
        hk_id id;
        if (make == create) {
            if (r->rank == 0) perf_must(NULL, "hk_id_create", hk_id_create(&id));
            perf_must(r->comm, "telling the id", hk_broadcast(&id, &id, sizeof id, HK_U8, 0, r->comm, NULL, NULL));
        }
        perf_must(r->comm, "barrier", hk_barrier(r->comm, NULL, NULL));
        const uint64_t begin = tool_now_ns();
        perf_must(make == create ? NULL : r->comm, what, make(r, &id, &comm));
        const uint64_t there = tool_now_ns();
        perf_must(NULL, freeing, hk_comm_destroy(comm));
        made[k] = (double)(there - begin) / 1e3;
        freed[k] = (double)(tool_now_ns() - there) / 1e3;
    }
    row(r, what, made, ROUNDS);
    row(r, freeing, freed, ROUNDS);
}

void perf_init(perf_run *r)
{
    perf_report_begin(r);
    row(r, "create_env (first)", &r->meet_us, 1);
    measure(r, "create", "destroy", create);
    measure(r, "dup", "destroy of dup", dup);
    measure(r, "split in two", "destroy of split", split);
}
