/* SPDX-License-Identifier: Apache-2.0
 *
 * A simulated world: the ranks of one call, run by the production executors over virtual lanes, in one thread and virtual time.
 * Whatever could come out one way or another (delays, who runs first, which executor, when a run is handed over) is drawn from
 * the seed; one seed is one history, event by event.
 *
 * Lanes are as shared memory's: first in, first out, 16 messages long; a source's payload stands in a ring of slots shared by all
 * destinations, and a slot is free once the source has seen every reader let go. A message is seen `delay + below(jitter + 1)`
 * after it was sent, its release likewise. Every message with a payload takes a slot; tokens take none.
 *
 * A rank runs when something may have changed for it, as far as it can, in no time. The history ends when no rank can run. */
#ifndef HKI_SIM_H
#define HKI_SIM_H

#include "exec/exec.h"

#define HKI_SIM_NEVER UINT64_MAX

typedef enum hki_sim_executor {
    HKI_SIM_HANDED, /* inline, handed over at one of the blocks that last: which one is chance */
    HKI_SIM_EVENT,
    HKI_SIM_MIXED,  /* each rank one of these two */
    HKI_SIM_INLINE, /* to the end: may deadlock where slots are fewer than the plan needs in line */
} hki_sim_executor;

typedef struct hki_sim_params {
    uint32_t ranks, slots;
    size_t slot_bytes;
    uint64_t seed, delay_us, jitter_us;
    hki_sim_executor executor;
    uint32_t hesitate;       /* one in so many questions to a lane is answered "not yet" although it could be yes; 0: none */
    bool lends;              /* messages may go by reference and by put; which do is chance */
    size_t transcript_bytes; /* room for the transcript; 0: none is kept */
} hki_sim_params;

typedef enum hki_sim_state {
    HKI_SIM_RUNNING, /* the time limit came first */
    HKI_SIM_DONE,
    HKI_SIM_BLOCKED, /* for good: nothing is on its way that could help */
    HKI_SIM_FAILED,
    HKI_SIM_KILLED,
} hki_sim_state;

typedef struct hki_sim_verdict {
    hki_sim_state state;
    uint64_t at_us;          /* when it last ran */
    uint32_t waiting_for;    /* BLOCKED: as the run says */
    bool waits_to_send;
    hk_status status;        /* FAILED */
    uint32_t culprit;
} hki_sim_verdict;

typedef struct hki_sim hki_sim;

/* NULL without memory. */
hki_sim *hki_sim_create(const hki_sim_params *);
void hki_sim_destroy(hki_sim *);
/* A new history with another seed and executor in the same memory; nothing is loaded, no fault planned. */
void hki_sim_reset(hki_sim *, uint64_t seed, hki_sim_executor);

/* What rank runs. The program's hazards must be ready; program and buffers stay the caller's. A rank without one never runs. */
hk_status hki_sim_load(hki_sim *, uint32_t rank, const hki_program *, const void *in, void *out, uint64_t fingerprint);

/* Faults, planned before the run. */
/* The rank does not run in [from, to). */
void hki_sim_stall(hki_sim *, uint32_t rank, uint64_t from_us, uint64_t to_us);
/* The rank does not run from then on; what it has sent arrives. */
void hki_sim_kill(hki_sim *, uint32_t rank, uint64_t at_us);
/* The rank ends when it wants to send another than its first `messages` messages (tokens count; a multicast is one). */
void hki_sim_kill_after(hki_sim *, uint32_t rank, uint32_t messages);
/* The rank's `message`-th payload, counted from 0, has one byte changed on its way. `byte` is taken modulo the length. */
void hki_sim_corrupt(hki_sim *, uint32_t rank, uint32_t message, size_t byte);

/* Runs until no rank can run or the next that can does so after `until`. May be called again with a later limit. */
void hki_sim_run(hki_sim *, uint64_t until_us);

hki_sim_verdict hki_sim_verdict_of(const hki_sim *, uint32_t rank);
/* Messages that `to` has taken from `from`. */
uint32_t hki_sim_taken(const hki_sim *, uint32_t from, uint32_t to);
/* Messages with a payload that rank has sent; a multicast is one. */
uint32_t hki_sim_sent_payloads(const hki_sim *, uint32_t rank);
/* Did rank, when it last ran, ask in vain for a message of `of`, or for room that `of` has not given back? */
bool hki_sim_lacks(const hki_sim *, uint32_t rank, uint32_t of);
uint64_t hki_sim_now(const hki_sim *);
/* Of every event so far: time, rank, what, peer, which. */
uint64_t hki_sim_hash(const hki_sim *);
/* One line an event: microseconds, rank, what. Ends with "..." if there was no room for all. */
const char *hki_sim_transcript(const hki_sim *);

#endif
