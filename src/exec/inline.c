/* SPDX-License-Identifier: Apache-2.0
 * The in-order walk, and what both executors need to begin. */
#include "exec/step.h"

#include <string.h>

size_t hki_window_elems(const hki_plan *p, size_t slot_bytes)
{
    const size_t elem = hk_dtype_size(p->call.dtype), lines = slot_bytes / p->span / HKI_LINE;
    return hki_max(lines, 1) * HKI_LINE / elem;
}

static bool contiguous(const hki_plan *p, hki_slice s)
{
    const hki_blocks *t = &p->blocks[s.buf];
    for (uint32_t i = 1; s.buf != HKI_MSG && i < s.n; i++) {
        const uint32_t a = hki_slice_block(p, s, i - 1), b = hki_slice_block(p, s, i);
        if (t->off[b] != t->off[a] + t->len[a]) return false;
    }
    return true;
}

/* Most calls are small: one window, every operand in one piece. Their steps need no arithmetic on blocks. */
static void mark_flat(hki_program *g, hki_plan *p)
{
    for (uint32_t i = 0; i < p->nsteps; i++) {
        hki_step *s = &p->steps[i];
        bool flat = g->one_piece && s->kind < HKI_STEP_POST && contiguous(p, s->slice);
        for (uint32_t k = 0; flat && k < s->nsrc; k++) flat = contiguous(p, p->srcs[s->src + k]);
        s->flat_elems = flat ? hki_slice_elems(p, s->slice) : 0;
    }
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
    mark_flat(g, p);
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
