/* SPDX-License-Identifier: Apache-2.0
 *
 * Runs a plan over a port. A run is a pure state machine: no clock, no system call, no allocation; the port's verbs are its events and
 * actions, and each call does what can be done now and says what it lacks.
 *
 * Two executors share one meaning of a step (exec/step.c), so they give the same bits:
 *   inline  walks windows and steps in list order. Fastest, but can deadlock where sends outrun slots, so it is only good until the
 *           first lasting block; hki_run_hand_over then continues event-driven from that very step.
 *   event   does any step whose hazards are done, in up to `depth` windows at once. Sends keep list order, each lane's receives too.
 *
 * Windows: w elements of every block at a time; temporary blocks are laid out for one window and rotated over `depth` of them.
 *
 * Buffers that the port can lend are sent by reference and received by put (net/lane.h). A step may then have sent a slice that is
 * still being read: later steps that overwrite it, and the end of the run, wait until it is settled. */
#ifndef HKI_EXEC_H
#define HKI_EXEC_H

#include "kern/kern.h"
#include "net/lane.h"
#include "plan/plan.h"

#define HKI_DEPTH 2 /* windows in flight of an event-driven run */

typedef enum hki_run_state { HKI_RUN_DONE, HKI_RUN_BLOCKED, HKI_RUN_FAILED } hki_run_state;

/* The steps that small calls consist of, if their messages are small: memory sent (and copied), a fold of two operands or more into this
 * rank's memory, a message received. */
enum { HKI_NOT_SMALL, HKI_SMALL_SEND, HKI_SMALL_FOLD, HKI_SMALL_RECV };

/* What does not change from call to call of a step. */
typedef struct hki_ready {
    uint8_t small;      /* one of the above */
    size_t elems;       /* of its slice over all windows, if every operand is one piece of memory in each window; else 0 */
    size_t bytes;       /* the same in bytes */
    size_t at;          /* bytes from the start of its buffer (TEMP: of a window's) */
    bool last;          /* no later step touches its slice */
    bool lends;         /* its slice may be lent: no later step writes it, or one that finds it read (hki_plan_swaps) */
    bool holds;         /* it reads a message from every rank that it sends to */
    uint32_t ordinal;   /* RECV: which of a window's messages from that rank */
    uint32_t wants;     /* SEND to one rank: index + 1 of the step that receives from it into memory that is free once this step is done */
} hki_ready;

/* A plan made ready for one window width. Zero it before the first init; storage is recycled from one to the next. */
typedef struct hki_program {
    const hki_plan *plan;
    size_t elem_bytes, w;       /* w: elements of a window */
    uint32_t windows;
    size_t temp_bytes;          /* of one window */
    bool one_piece;             /* a single window: contiguous blocks are one piece */
    bool flat;                  /* and every operand of every step is one piece */
    hki_folder fold;            /* fn == NULL: the call reduces nothing */
    hki_ready *steps;
    size_t *src_at;             /* by source of a fold: bytes from the start of its buffer */
    uint32_t *ordinal;          /* by entry of plan->peers: which of a window's messages to that rank */
    uint32_t *count;            /* scratch: 4 per rank */
    uint32_t steps_room, srcs_room, peers_room, ranks_room;
} hki_program;

typedef struct hki_run {
    const hki_program *program;
    hki_port *port;
    uint8_t *base[HKI_BUFS];    /* IN is never written out of place */
    uint64_t fingerprint;
    /* Inline: the next step. Event: the oldest window in flight and per window in flight what is done. */
    uint32_t window, step;
    bool event;
    bool flat;                  /* a flat program of which nothing is lent or far: steps are as simple as they get */
    bool far;                   /* buffers larger than the caches: results are stored past them */
    uint8_t lends;              /* bit b: buffer b can be lent */
    uint8_t *done[HKI_DEPTH];   /* nsteps bytes each */
    uint32_t left[HKI_DEPTH], first[HKI_DEPTH]; /* steps not done; first step that may not be done */
    uint64_t *lent[HKI_DEPTH];  /* by step: the mark under which it lent its slice; only if `lends` */
    uint64_t last_lent;
    /* Working storage of one call, owned by the caller, zeroed when made: 2 * ranks, ranks + 1 and ranks + 1 entries. */
    const void **sources;
    void **places;
    uint32_t *marks;
    /* What the last call lacked. */
    uint32_t waiting_for;       /* rank, UINT32_MAX = none */
    bool waits_to_send;
    /* HKI_RUN_FAILED: status, and the rank concerned; for a mismatch the message's fingerprint. */
    hk_status status;
    uint32_t culprit;
    uint32_t steps_done;        /* over all windows, for reports */
} hki_run;

/* The widest window such that no message exceeds slot_bytes; 64-byte multiples, at least one line. */
size_t hki_window_elems(const hki_plan *, size_t slot_bytes);
/* Lays out temporary blocks for width w and derives what steps need. The plan, whose hazards are ready, belongs to the program from here
 * on. false: no memory. */
bool hki_program_init(hki_program *, hki_plan *, size_t slot_bytes);
void hki_program_fini(hki_program *);
/* Bytes of `done` that a run wants. */
size_t hki_program_done_bytes(const hki_program *);

/* temp: depth * temp_bytes (HKI_DEPTH for event, 1 for inline alone). done: hki_program_done_bytes, aligned to 8. */
void hki_run_start(hki_run *, const hki_program *, hki_port *, const void *in, void *out, void *temp, void *done, uint64_t fingerprint);
/* The same program, port and working memory once more. */
static inline void hki_run_restart(hki_run *r, const void *in, void *out, uint64_t fingerprint)
{
    r->base[HKI_IN] = (uint8_t *)(uintptr_t)in;
    r->base[HKI_OUT] = out;
    r->fingerprint = fingerprint;
    r->window = r->step = r->steps_done = 0;
    if (HKI_LIKELY(r->flat)) return; /* and so it was from beginning to end */
    r->event = false;
    r->lends = 0;
    r->flat = r->program->flat && !r->far;
    r->last_lent = 0;
    r->waiting_for = UINT32_MAX;
}
/* Asks the port whether the buffers, so long, can be lent; to be called before the first step, if at all. */
void hki_run_lend(hki_run *, size_t in_bytes, size_t out_bytes);
hki_run_state hki_run_inline(hki_run *);
/* The same for a run that is blocked: looks up to so often for what it lacks, which is cheaper than to begin again. */
hki_run_state hki_run_await(hki_run *, uint32_t looks);
/* From here on event-driven. */
void hki_run_hand_over(hki_run *);
hki_run_state hki_run_event(hki_run *);

#endif
