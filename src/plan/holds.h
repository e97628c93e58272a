/* SPDX-License-Identifier: Apache-2.0
 *
 * Who holds what on the way: for people who read plans. Values are sets of ranks, nothing is proven here (check.h does that). */
#ifndef HKI_HOLDS_H
#define HKI_HOLDS_H

#include "plan/plan.h"

enum { HKI_HOLDS_RANKS = 64 };

/* Each rank does the first `steps` of its own steps and no more; the messages it reads are what their senders' plans send,
 * however late. Bit r of sets[rank * n + b], n = output blocks: the input of rank r is in output block b of `rank`; 0: nothing
 * has been written there. HK_INVALID: messages do not fit or the walk in list order gets stuck. HK_UNSUPPORTED: more than 64
 * ranks. HK_NO_MEMORY. */
hk_status hki_plan_holds(hki_plan *const *plans, uint32_t ranks, uint32_t steps, uint64_t *sets);

#endif
