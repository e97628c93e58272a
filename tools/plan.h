/* SPDX-License-Identifier: Apache-2.0
 *
 * hocket plan: what its files share. */
#ifndef HOCKET_TOOL_PLAN_H
#define HOCKET_TOOL_PLAN_H

#include "tool.h"

enum { PLAN_LIST = 16 };

/* What a message and a byte cost: T = rounds * alpha + bytes of the busiest rank * beta. */
typedef struct plan_model { double alpha_us, gbytes_per_s; } plan_model;

typedef struct plan_options {
    hk_tool_call call;         /* ranks and count of the first in the lists */
    hk_tool_op op;
    const char *file;          /* plans are read from it; NULL: they are built */
    uint32_t rank;             /* HK_TOOL_ALL_RANKS */
    uint32_t ranks[PLAN_LIST]; /* --ranks, a list for --compare */
    size_t bytes[PLAN_LIST];   /* --bytes likewise */
    size_t nranks, nbytes, count, window;
    unsigned depth;
    uint32_t show;
    bool counted, check, cost, showing, compare;
    plan_model model;
} plan_options;

/* Elements of the call for the k-th size: bytes are those of the full vector, as in `hocket perf`. */
size_t plan_count(const plan_options *, uint32_t ranks, size_t bytes);

/* Both print; measured: what the checker found. */
void plan_print_cost(const plan_options *, const hk_tool_call *, const hk_tool_cost *measured);
void plan_compare(const plan_options *);

#endif
