/* SPDX-License-Identifier: Apache-2.0
 * One step in one window: done completely, or not begun. */
#ifndef HKI_STEP_H
#define HKI_STEP_H

#include "exec/exec.h"

/* HKI_NOT_YET: run->waiting_for tells for whom. HKI_BROKEN: run->status and run->culprit are set. */
hki_go hki_step_try(hki_run *, const hki_step *, uint32_t window);
/* Looks up to so often for what the blocked run lacks; if it comes, the run can go on (or is done: run->window tells). */
hki_go hki_step_await(hki_run *, uint32_t looks);
/* All steps from run->step on, in order, of a flat run. */
hki_go hki_steps_flat(hki_run *);

/* After the last step: done once nothing of the run's buffers is lent any more. */
hki_run_state hki_run_end(hki_run *);

#endif
