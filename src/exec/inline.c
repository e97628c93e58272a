/* SPDX-License-Identifier: Apache-2.0
 * The in-order walk, and what both executors need to begin. */
#include "exec/step.h"

#include <string.h>

size_t hki_window_elems(const hki_plan *p, size_t slot_bytes)
{
    const size_t elem = hk_dtype_size(p->call.dtype), lines = slot_bytes / p->span / HKI_LINE;
    return hki_max(lines, 1) * HKI_LINE / elem;
}

void hki_program_init(hki_program *g, hki_plan *p, size_t slot_bytes)
{
    g->plan = p;
    g->elem_bytes = hk_dtype_size(p->call.dtype);
    g->w = hki_window_elems(p, slot_bytes);
    g->windows = p->longest ? (uint32_t)((p->longest + g->w - 1) / g->w) : p->tokens ? 1 : 0;
    g->one_piece = g->windows <= 1;
    const size_t line = HKI_LINE / g->elem_bytes;
    hki_blocks *t = &p->blocks[HKI_TEMP];
    size_t at = 0;
    for (uint32_t b = 0; b < t->n; b++) {
        t->off[b] = at;
        const size_t len = hki_min(t->len[b], g->w);
        at += g->one_piece ? len : hki_round_up(len, line);
    }
    g->temp_bytes = hki_round_up(at * g->elem_bytes, HKI_LINE);
}

void hki_run_start(hki_run *r, const hki_program *g, hki_port *port, const void *in, void *out, void *temp, uint64_t fingerprint)
{
    r->program = g;
    r->port = port;
    r->base[HKI_IN] = (uint8_t *)(uintptr_t)in;
    r->base[HKI_OUT] = out;
    r->base[HKI_TEMP] = temp;
    r->fingerprint = fingerprint;
    r->window = r->step = r->steps_done = 0;
    r->event = false;
    r->waiting_for = UINT32_MAX;
    r->status = HK_OK;
}

hki_run_state hki_run_inline(hki_run *r)
{
    const hki_plan *p = r->program->plan;
    for (; r->window < r->program->windows; r->window++, r->step = 0)
        for (; r->step < p->nsteps; r->step++) {
            const hki_go go = hki_step_try(r, &p->steps[r->step], r->window);
            if (go != HKI_GO) return go == HKI_NOT_YET ? HKI_RUN_BLOCKED : HKI_RUN_FAILED;
            r->steps_done++;
        }
    r->waiting_for = UINT32_MAX;
    return HKI_RUN_DONE;
}
