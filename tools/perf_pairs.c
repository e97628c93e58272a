/* SPDX-License-Identifier: Apache-2.0
 * hocket perf send_recv: ping-pong. Time is half a round trip. */
#include "perf.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct pair_case { perf_case base; int peer; } pair_case; /* base first: perf_call gets that */

static hk_status ping_pong(perf_case *base)
{
    const pair_case *c = (const pair_case *)base;
    const perf_run *r = base->run;
    const bool first = r->rank < c->peer;
    hk_status status = first ? hk_send(base->send, base->count, r->o->dtype, c->peer, r->comm, NULL, NULL)
                             : hk_recv(base->recv, base->count, r->o->dtype, c->peer, r->comm, NULL, NULL);
    if (status) return status;
    return first ? hk_recv(base->recv, base->count, r->o->dtype, c->peer, r->comm, NULL, NULL)
                 : hk_send(base->send, base->count, r->o->dtype, c->peer, r->comm, NULL, NULL);
}

/* One size between this rank and peer; peer -1: this rank waits for the others. */
static perf_result measure(perf_run *r, size_t bytes, int peer)
{
    const size_t size = hk_dtype_size(r->o->dtype), count = bytes / size ? bytes / size : 1;
    pair_case c = {.base = {.run = r, .count = count, .room = count * size}, .peer = peer};
    perf_result result = {.bytes = bytes, .count = count, .moved = (double)(count * size), .pair = {-1, -1}};
    uint64_t wrong = 0;
    result.algorithm = "ping_pong";
    if (peer >= 0) {
        for (int k = 0; k < 2; k++) c.base.memory[k] = perf_memory(r, c.base.room);
        c.base.send = c.base.memory[0], c.base.recv = c.base.memory[1];
        perf_fill(r, c.base.send, r->rank, 0, count);
    }
    perf_time(r, peer >= 0 ? ping_pong : NULL, &c.base, 2, &result);
    if (peer >= 0) {
        wrong = perf_wrong(r, c.base.recv, peer, 0, count);
        memset(c.base.recv, 0xa5, c.base.room);
        perf_must(r->comm, "send_recv", ping_pong(&c.base));
        wrong += perf_wrong(r, c.base.recv, peer, 0, count);
        for (int k = 0; k < 2; k++) perf_memory_free(r, c.base.memory[k]);
    }
    result.wrong = perf_sum(r, wrong);
    return result;
}

/* All pairs, one after the other; half round trips as a table. */
static void matrix(perf_run *r, size_t bytes)
{
    const int n = r->ranks;
    double *us = tool_alloc((size_t)n * (size_t)n * sizeof *us);
    for (int i = 0; i < n; i++) {
        for (int k = i + 1; k < n; k++) {
            perf_result result = measure(r, bytes, r->rank == i ? k : r->rank == k ? i : -1);
            result.pair[0] = i, result.pair[1] = k;
            us[i * n + k] = us[k * n + i] = result.p50_us;
            perf_report_row(r, &result);
        }
    }
    if (r->rank == 0) {
        printf("# p50 of half a round trip in us, %zu bytes; row and column are the ranks\n# %8s", bytes, "");
        for (int k = 0; k < n; k++) printf(" %9d", k);
        for (int i = 0; i < n; i++) {
            printf("\n  %8d", i);
            for (int k = 0; k < n; k++) i == k ? printf(" %9s", "-") : printf(" %9.2f", us[i * n + k]);
        }
        puts("");
        fflush(stdout);
    }
    free(us);
}

void perf_send_recv(perf_run *r)
{
    const perf_options *o = r->o;
    const int partner = (r->rank ^ 1) < r->ranks ? r->rank ^ 1 : -1; /* the last of an odd number of ranks has none */
    r->bus_factor = 1;
    perf_report_begin(r);
    for (size_t bytes = o->min; bytes <= o->max; bytes *= o->factor) {
        if (o->matrix) {
            matrix(r, bytes);
            continue;
        }
        const perf_result result = measure(r, bytes, partner);
        perf_report_row(r, &result);
    }
}
