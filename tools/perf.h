/* SPDX-License-Identifier: Apache-2.0
 *
 * hocket perf. A *case* is one operation at one size on one rank: its buffers, what it must give, how it is called. Results are
 * agreed over ranks before they are reported; rank 0 prints. */
#ifndef HOCKET_PERF_H
#define HOCKET_PERF_H

#include "tool.h"

typedef struct perf_op perf_op;

typedef struct perf_options {
    const char *name;         /* as typed: an operation, "send_recv" or "init" */
    const perf_op *op;        /* NULL for the latter two */
    int ranks;                /* -n; 0: join the job in the environment */
    size_t min, max, factor;  /* bytes of the full vector */
    hk_dtype dtype;
    hk_redop redop;
    const char *algo, *transport, *executor, *json;
    bool registered, in_place, matrix, joined;
} perf_options;

typedef struct perf_result {
    size_t bytes, count;      /* as asked; elements of a call */
    double moved;             /* bytes that algbw counts */
    double p50_us, p99_us, min_us;
    uint64_t wrong;
    size_t calls;             /* made in all: verified, to warm up, timed */
    const char *algorithm;    /* for init: what was timed */
    int pair[2];              /* --matrix; -1 otherwise */
} perf_result;

typedef struct perf_run {
    const perf_options *o;
    hk_comm *comm;
    int rank, ranks;
    double meet_us;           /* how long this rank's first communicator took */
    double bus_factor;        /* busbw = algbw * that */
    perf_result *results;
    size_t n, room;
} perf_run;

/* ---- perf_ops.c: the operations */
typedef struct perf_case {
    const perf_run *run;
    const perf_op *op;
    size_t count;
    void *send, *recv;
    void *memory[2];
    size_t room;              /* bytes of each of memory[] in use */
} perf_case;

/* One call. */
typedef hk_status (*perf_call)(perf_case *);

struct perf_op {
    const char *name;
    perf_call call;
    bool split;               /* the full vector is ranks blocks of count */
    bool send_all, recv_all;  /* of a split one: which side holds them all */
    bool reduces, rooted;
    bool copies_nothing;      /* barrier */
    bool never_in_place;
};

extern const perf_op perf_ops[];
extern const size_t perf_ops_n;
double perf_bus_factor(const perf_op *, int ranks);
/* Times and verifies o->op at every size. */
void perf_collective(perf_run *);

/* ---- perf_data.c: values that tell ranks and positions apart, small enough that every sum is exact in every type */
enum { PERF_REDUCED = -1 };   /* as a source: the reduction over all ranks */
/* buf[0..count) = elements first, first + 1, ... of `source`'s vector. */
void perf_fill(const perf_run *, void *buf, int source, size_t first, size_t count);
/* How many of buf[0..count) differ from them. */
uint64_t perf_wrong(const perf_run *, const void *buf, int source, size_t first, size_t count);

/* ---- perf_time.c */
void *perf_memory(const perf_run *, size_t bytes);
void perf_memory_free(const perf_run *, void *);
/* Calls again and again, a clock reading between calls; fills p50, p99 and min of the slowest rank. divide: of a call that is
 * several messages long. Ranks with a NULL call only take part in the agreement. */
void perf_time(const perf_run *, perf_call, perf_case *, double divide, perf_result *);
/* Order statistics of us[0..n), of the slowest rank. */
void perf_statistics(const perf_run *, double *us, size_t n, perf_result *);
uint64_t perf_sum(const perf_run *, uint64_t mine);
/* Ends the process with TOOL_COMMUNICATOR if status is a failure. */
void perf_must(const hk_comm *, const char *what, hk_status);

/* ---- perf_pairs.c, perf_init.c */
void perf_send_recv(perf_run *);
void perf_init(perf_run *);

/* ---- perf_report.c: rank 0 prints, the others do nothing */
void perf_report_begin(const perf_run *);
void perf_report_row(perf_run *, const perf_result *);
/* Footer and JSON; the exit code. */
int perf_report_end(perf_run *);
double perf_algbw(const perf_result *); /* GB/s */

#endif
