/* SPDX-License-Identifier: Apache-2.0 */
#include "perf.h"

#include <stdio.h>
#include <stdlib.h>

void perf_must(const hk_comm *comm, const char *what, hk_status status)
{
    if (status == HK_OK) return;
    fprintf(stderr, "hocket perf: %s: %s: %s\n", what, hk_status_name(status), hk_last_error(comm));
    exit(TOOL_COMMUNICATOR);
}

void *perf_memory(const perf_run *r, size_t bytes)
{
    void *p = NULL;
    if (!r->o->registered) return tool_alloc(bytes);
    perf_must(r->comm, "hk_mem_alloc", hk_mem_alloc(r->comm, bytes ? bytes : 1, &p));
    return p;
}

void perf_memory_free(const perf_run *r, void *p)
{
    if (!r->o->registered) free(p);
    else if (p) perf_must(r->comm, "hk_mem_free", hk_mem_free(r->comm, p));
}

uint64_t perf_sum(const perf_run *r, uint64_t mine)
{
    perf_must(r->comm, "summing over ranks", hk_all_reduce(&mine, &mine, 1, HK_U64, HK_SUM, r->comm, NULL, NULL));
    return mine;
}

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

void perf_statistics(const perf_run *r, double *us, size_t n, perf_result *result)
{
    double s[3] = {0, 0, 0};
    if (n) {
        qsort(us, n, sizeof *us, ascending);
        s[0] = us[n / 2], s[1] = us[(size_t)((double)n * 0.99)], s[2] = us[0];
    }
    perf_must(r->comm, "agreeing on times", hk_all_reduce(s, s, 3, HK_F64, HK_MAX, r->comm, NULL, NULL));
    result->p50_us = s[0], result->p99_us = s[1], result->min_us = s[2];
}

/* Fewer where a call takes long, and where ranks may share CPUs. */
static size_t rounds_of(size_t bytes, int ranks)
{
    const size_t n = bytes <= 4096 ? 2000 : bytes <= 262144 ? 300 : bytes <= 4194304 ? 40 : 10;
    return n / (ranks > 2 ? 4 : 1) + 3;
}

void perf_time(const perf_run *r, perf_call call, perf_case *c, double divide, perf_result *result)
{
    const size_t rounds = call ? rounds_of(result->bytes, r->ranks) : 0, warm_up = rounds / 10 + 2;
    double *us = tool_alloc(rounds * sizeof *us);
    hk_status status = HK_OK;
    for (size_t k = 0; call && k < warm_up && !status; k++) status = call(c);
    for (size_t k = 0; k < rounds && !status; k++) {
        const uint64_t before = tool_now_ns();
        status = call(c);
        us[k] = (double)(tool_now_ns() - before) / 1e3 / divide;
    }
    result->calls += warm_up + rounds;
    perf_must(r->comm, r->o->name, status);
    perf_statistics(r, us, rounds, result);
    free(us);
}
