/* SPDX-License-Identifier: Apache-2.0
 *
 * An algorithm: a pure function that writes a plan. One file each; a file registers by defining
 *
 *     const hki_algo hki_algo_<file stem> = { .name = "ring", .ops = HKI_OP_BIT(HKI_ALL_REDUCE), .emit = emit, ... };
 *
 * and that is all it takes to appear in dispatch, `hocket info`, the docs, the checker, the conformance suite and perf. emit is never
 * called with one rank (the builder writes that plan). It sees blocks, never bytes, addresses or errors; docs/adding.md walks
 * through one. */
#ifndef HKI_ALGO_H
#define HKI_ALGO_H

#include "plan/plan.h"

/* Most blocks that one message of the algorithm carries. */
typedef enum hki_span { HKI_SPAN_ALL, HKI_SPAN_HALF, HKI_SPAN_ONE } hki_span;

enum {
    HKI_RANK_ORDER = 1, /* combines neighbouring rank ranges left to right: right for operators that do not commute */
    HKI_FOLD_ONCE = 2,  /* each result is one fold of all ranks in rank order: rounds once, widened sums never leave the accumulator */
    HKI_FOLD_TWICE = 4, /* each result is a fold of folds at most: rounds twice */
};

/* What the plan costs, in elements, when all blocks are equally long. rounds: messages on the longest chain of dependent ones;
 * messages, busiest: sent by the rank that sends most (messages over all ranks' maximum, elements likewise); total: elements over
 * all ranks. */
typedef struct hki_cost { uint64_t rounds, messages, busiest, total; } hki_cost;

typedef struct hki_algo {
    const char *name;     /* "ring": unique per operation */
    const char *summary;  /* one line for `hocket info algos` */
    uint32_t ops;         /* HKI_OP_BIT(...) of the operations it can do */
    hki_span span;
    uint32_t traits;
    void (*emit)(hki_plan *, const hki_call *);
    hki_cost (*cost)(const hki_call *); /* NULL: not stated */
} hki_algo;

extern const hki_algo *const hki_algos[]; /* NULL-terminated, generated */

/* The algorithm of that name for op, or NULL. */
const hki_algo *hki_algo_find(hki_op op, const char *name);
/* The reason it cannot do the call (static text), or NULL if it can. */
const char *hki_algo_objection(const hki_algo *, const hki_call *);
uint32_t hki_algo_span(const hki_algo *, uint32_t ranks);
/* Builds the plan of one rank: begin, emit, end, fuse. */
hk_status hki_algo_plan(const hki_algo *, const hki_call *, hki_plan *);

#endif
