/* SPDX-License-Identifier: Apache-2.0
 *
 * Proves the plans of all ranks of one call right together, without running them.
 *
 * All steps of all ranks form one graph. Its edges are what every executor keeps: hazards, the order of a rank's sends, the
 * order of receives on a lane, a message before its reading, and the reading of a rank's k-th send before its send k + slots.
 * Without a circle nothing can deadlock; one run in that order over symbolic values (trees whose leaves are input blocks) gives
 * every result. */
#ifndef HKI_CHECK_H
#define HKI_CHECK_H

#include "plan/plan.h"

typedef enum hki_property {
    HKI_CHECK_NONE,
    HKI_CHECK_FORM,        /* steps name existing blocks, ranks and tokens, operands have the same shape */
    HKI_CHECK_BUFFERS,     /* only buffers that exist are touched, no input is written, nothing is read before it is written */
    HKI_CHECK_HAZARDS,     /* conflicting steps are ordered, and no step overlaps itself */
    HKI_CHECK_MESSAGES,    /* each message has one reading of the same block lengths */
    HKI_CHECK_DEADLOCK,    /* no circle of waiting */
    HKI_CHECK_RESULT,      /* each output block is made of the right input blocks, each rank's once */
    HKI_CHECK_ASSOCIATION, /* the same tree on all ranks; in rank order if the operator does not commute */
    HKI_CHECK_FINISH,      /* the reduction's finish is applied exactly once on the way to each output */
    HKI_CHECK_BARRIER,     /* nobody leaves before all have come */
} hki_property;
const char *hki_property_name(hki_property); /* "messages" */

typedef struct hki_check_report {
    /* The violation found first; HKI_CHECK_NONE and "" if there is none. step is UINT32_MAX where no step is to blame. */
    hki_property property;
    uint32_t rank, step;
    char text[256];
    /* Measured, if there is no violation. rounds: messages and tokens on the longest chain, each of which is sent only after the
     * one before was read; messages, busiest: messages with tokens, elements of the rank that sends most; total: elements of
     * all. */
    uint64_t rounds, messages, busiest, total;
    uint32_t inline_slots;  /* slots that an in-order walk of all ranks needs, a power of two; 0: no number is enough */
    bool rendezvous;        /* no circle even if a send lasts until its message is read: messages may be passed by reference */
    bool rank_order;        /* every reduced block is a tree over the ranks in order */
    uint32_t folds;         /* at most so many lie one within the other: how often a value is rounded. In rank order and 1: one fold of all ranks */
} hki_check_report;

/* plans[r] is rank r's for the same call, in full (after hki_plan_end; fused or not). slots: payload slots of a source, 1 at
 * least; executors have 2 at least, and what is right with 2 is right with more. Hazards are derived unless they are ready, in
 * which case those given are what is checked. HK_OK: proven, report holds the measures, and inline_slots is set in each plan.
 * HK_INVALID: report tells what is wrong. HK_NO_MEMORY. */
hk_status hki_check(hki_plan *const *plans, uint32_t ranks, uint32_t slots, hki_check_report *report);

#endif
