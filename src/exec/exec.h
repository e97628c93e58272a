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
 * Windows: w elements of every block at a time; temporary blocks are laid out for one window and rotated over `depth` of them. */
#ifndef HKI_EXEC_H
#define HKI_EXEC_H

#include "net/lane.h"
#include "plan/plan.h"

#define HKI_DEPTH 2 /* windows in flight of an event-driven run */

typedef enum hki_run_state { HKI_RUN_DONE, HKI_RUN_BLOCKED, HKI_RUN_FAILED } hki_run_state;

/* A plan made ready for one window width: everything that does not change from call to call. */
typedef struct hki_program {
    const hki_plan *plan;
    size_t elem_bytes, w;       /* w: elements of a window */
    uint32_t windows;
    size_t temp_bytes;          /* of one window */
    bool one_piece;             /* a single window: contiguous blocks are one piece */
} hki_program;

typedef struct hki_run {
    const hki_program *program;
    hki_port *port;
    uint8_t *base[HKI_BUFS];    /* IN is never written out of place */
    uint64_t fingerprint;
    /* Inline: the next step. Event: the oldest window in flight and per window in flight what is done. */
    uint32_t window, step;
    bool event;
    uint8_t *done[HKI_DEPTH];   /* nsteps bytes each */
    uint32_t left[HKI_DEPTH], first[HKI_DEPTH]; /* steps not done; first step that may not be done */
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
/* Lays out temporary blocks for width w. The plan belongs to the program from here on. */
void hki_program_init(hki_program *, hki_plan *, size_t slot_bytes);

/* temp: depth * temp_bytes (HKI_DEPTH for event, 1 for inline alone). done: HKI_DEPTH * nsteps bytes for event-driven runs. */
void hki_run_start(hki_run *, const hki_program *, hki_port *, const void *in, void *out, void *temp, uint64_t fingerprint);
hki_run_state hki_run_inline(hki_run *);
/* From here on event-driven; `done` gives HKI_DEPTH * nsteps bytes. The plan's hazards must be ready. */
void hki_run_hand_over(hki_run *, uint8_t *done);
hki_run_state hki_run_event(hki_run *);

#endif
