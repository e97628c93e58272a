/* SPDX-License-Identifier: Apache-2.0
 *
 * The event-driven executor: each call scans the windows in flight, oldest first, in list order, and does every step that may run:
 *   - its hazards within the window are done (windows do not conflict: they cover different elements, and temp is rotated);
 *   - if it sends, every earlier send (in list order, windows in order) is done, because sends share one ring of slots;
 *   - if it receives from q, every earlier receive from q is done, because a lane is first in, first out.
 * The scan remembers which of the two it has passed over; nothing else is needed to keep lane order. */
#include "exec/step.h"

#include <string.h>

static void open_window(hki_run *r, uint32_t c)
{
    const uint32_t n = r->program->plan->nsteps, k = c % HKI_DEPTH;
    memset(r->done[k], 0, n);
    if (r->lends) memset(r->lent[k], 0, n * sizeof *r->lent[k]);
    r->left[k] = n;
    r->first[k] = 0;
}

void hki_run_hand_over(hki_run *r)
{
    const uint32_t n = r->program->plan->nsteps, k = r->window % HKI_DEPTH;
    r->event = true;
    r->flat = false;
    if (r->window >= r->program->windows) return; /* only lent memory is waited for */
    open_window(r, r->window + 1);
    memset(r->done[k], 0, n);
    memset(r->done[k], 1, r->step);
    r->left[k] = n - r->step;
    r->first[k] = r->step;
    /* An inline run keeps its temporary blocks in place 0; they move along with a half-done window. */
    const size_t temp = r->program->temp_bytes;
    if (k != 0 && r->step != 0 && temp) memcpy(r->base[HKI_TEMP] + k * temp, r->base[HKI_TEMP], temp);
}

static bool hazards_done(const hki_run *r, uint32_t k, uint32_t i)
{
    const hki_hazards *h = &r->program->plan->hazards;
    for (uint32_t j = h->at[i]; j < h->at[i + 1]; j++)
        if (!r->done[k][h->pred[j]]) return false;
    return true;
}

/* Lanes that the scan has passed over with a receive undone carry the scan's number in run->marks; the entry past the last rank holds
 * the number itself. */
typedef struct passed { uint32_t *marks, now; bool sends; } passed;

static passed new_scan(const hki_run *r)
{
    uint32_t *number = &r->marks[r->port->ranks];
    if (++*number == 0) { /* wrapped: old marks could be taken for new ones */
        memset(r->marks, 0, r->port->ranks * sizeof *r->marks);
        *number = 1;
    }
    return (passed){.marks = r->marks, .now = *number};
}

static bool lane_free(passed *p, uint32_t peer, bool mark)
{
    const bool is_free = p->marks[peer] != p->now;
    if (mark) p->marks[peer] = p->now;
    return is_free;
}

static bool lanes_free(passed *p, const hki_plan *plan, const hki_step *s, bool mark)
{
    if (s->kind == HKI_STEP_RECV || s->kind == HKI_STEP_AWAIT) return lane_free(p, s->peer, mark);
    bool all = true;
    for (uint32_t k = 0; s->kind == HKI_STEP_REDUCE && k < s->nsrc; k++) {
        const hki_slice src = plan->srcs[s->src + k];
        if (src.buf == HKI_MSG && !lane_free(p, src.first, mark)) all = false;
    }
    return all;
}

/* One scan of one window; HKI_BROKEN ends the run. */
static hki_go scan(hki_run *r, uint32_t c, passed *p, bool *moved)
{
    const hki_plan *plan = r->program->plan;
    const uint32_t k = c % HKI_DEPTH;
    bool all = true;
    for (uint32_t i = r->first[k]; i < plan->nsteps; i++) {
        if (r->done[k][i]) {
            if (all) r->first[k] = i + 1;
            continue;
        }
        const hki_step *s = &plan->steps[i];
        hki_go go = HKI_NOT_YET;
        if (hazards_done(r, k, i) && !(s->nto && p->sends) && lanes_free(p, plan, s, false)) {
            const uint32_t waited = r->waiting_for;
            const bool to_send = r->waits_to_send;
            go = hki_step_try(r, s, c);
            if (go == HKI_NOT_YET && waited != UINT32_MAX) r->waiting_for = waited, r->waits_to_send = to_send; /* report the first */
        }
        if (go == HKI_BROKEN) return go;
        if (go == HKI_GO) {
            r->done[k][i] = 1;
            r->left[k]--;
            r->steps_done++;
            if (all) r->first[k] = i + 1;
            *moved = true;
        } else {
            all = false;
            if (s->nto) p->sends = true;
            lanes_free(p, plan, s, true);
        }
    }
    return HKI_GO;
}

hki_run_state hki_run_event(hki_run *r)
{
    const uint32_t windows = r->program->windows;
    bool moved;
    do {
        moved = false;
        r->waiting_for = UINT32_MAX;
        passed p = new_scan(r);
        for (uint32_t c = r->window; c < windows && c < r->window + HKI_DEPTH; c++)
            if (scan(r, c, &p, &moved) == HKI_BROKEN) return HKI_RUN_FAILED;
        while (r->window < windows && r->left[r->window % HKI_DEPTH] == 0) {
            open_window(r, r->window + HKI_DEPTH);
            r->window++;
            moved = true;
        }
    } while (moved && r->window < windows);
    return r->window >= windows ? hki_run_end(r) : HKI_RUN_BLOCKED;
}
