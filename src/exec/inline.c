/* SPDX-License-Identifier: Apache-2.0
 * The in-order walk, and what both executors need to begin and to end. */
#include "exec/step.h"

#include <string.h>

void hki_run_start(hki_run *r, const hki_program *g, hki_port *port, const void *in, void *out, void *temp, void *done, uint64_t fingerprint)
{
    const uint32_t n = g->plan->nsteps;
    r->program = g;
    r->port = port;
    r->base[HKI_IN] = (uint8_t *)(uintptr_t)in;
    r->base[HKI_OUT] = out;
    r->base[HKI_TEMP] = temp;
    r->fingerprint = fingerprint;
    r->window = r->step = r->steps_done = 0;
    r->event = r->far = false;
    r->flat = g->flat;
    r->lends = 0;
    r->last_lent = 0;
    for (uint32_t k = 0; k < HKI_DEPTH; k++) {
        r->lent[k] = (uint64_t *)done + (size_t)k * n;
        r->done[k] = (uint8_t *)((uint64_t *)done + (size_t)HKI_DEPTH * n) + (size_t)k * n;
    }
    r->waiting_for = UINT32_MAX;
    r->status = HK_OK;
}

void hki_run_lend(hki_run *r, size_t in_bytes, size_t out_bytes)
{
    const hki_port_ops *ops = r->port->ops;
    if (!ops->lendable) return;
    r->lends = (uint8_t)((in_bytes && ops->lendable(r->port, r->base[HKI_IN], in_bytes)) << HKI_IN |
                         (out_bytes && ops->lendable(r->port, r->base[HKI_OUT], out_bytes)) << HKI_OUT);
    if (r->lends) r->flat = false;
    if (r->lends) memset(r->lent[0], 0, r->program->plan->nsteps * sizeof *r->lent[0]);
}

hki_run_state hki_run_end(hki_run *r)
{
    if (HKI_UNLIKELY(r->last_lent && !r->port->ops->settled(r->port, r->last_lent, true))) {
        r->waiting_for = r->port->holder;
        r->waits_to_send = true;
        return HKI_RUN_BLOCKED;
    }
    r->waiting_for = UINT32_MAX;
    return HKI_RUN_DONE;
}

hki_run_state hki_run_inline(hki_run *r)
{
    const hki_plan *p = r->program->plan;
    if (HKI_LIKELY(r->flat)) {
        const hki_go go = hki_steps_flat(r);
        if (HKI_LIKELY(go == HKI_GO)) return HKI_RUN_DONE;
        return go == HKI_NOT_YET ? HKI_RUN_BLOCKED : HKI_RUN_FAILED;
    }
    while (r->window < r->program->windows) {
        for (; r->step < p->nsteps; r->step++) {
            const hki_go go = hki_step_try(r, &p->steps[r->step], r->window);
            if (go != HKI_GO) return go == HKI_NOT_YET ? HKI_RUN_BLOCKED : HKI_RUN_FAILED;
            r->steps_done++;
        }
        r->window++;
        r->step = 0;
        if (r->lends && r->window < r->program->windows) memset(r->lent[r->window % HKI_DEPTH], 0, p->nsteps * sizeof *r->lent[0]);
    }
    return hki_run_end(r);
}

hki_run_state hki_run_await(hki_run *r, uint32_t looks)
{
    const hki_go go = hki_step_await(r, looks);
    if (HKI_LIKELY(go == HKI_GO)) return r->window && r->flat ? HKI_RUN_DONE : hki_run_inline(r);
    return go == HKI_NOT_YET ? HKI_RUN_BLOCKED : HKI_RUN_FAILED;
}
