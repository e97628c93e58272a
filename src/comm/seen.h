/* SPDX-License-Identifier: Apache-2.0
 *
 * What is seen of a run: under HOCKET_TRACE or HOCKET_STATS=1 a communicator has an hki_seen, and the places where something happens tell
 * it. Otherwise comm->seen is NULL, for good: each place is a look at that pointer.
 *
 * Three kinds of time are told apart. An *operation* lasts from issue to finish, whoever moves it on. A *call* is a caller's thread inside
 * hocket, and a *wait* the part of it that waits for peers. A *span* is the caller's own. Operations are told with the engine's lock held,
 * spans without; what they share is under a lock of its own. */
#ifndef HKI_SEEN_H
#define HKI_SEEN_H

#include "diag/histogram.h"
#include "diag/trace.h"
#include "os/lock.h"
#include "os/os.h"
#include "plan/call.h"

#define HKI_SEEN_OPEN 64 /* spans open at a time, of all threads */
#define HKI_SEEN_INTERFACES 16
#define HKI_SEEN_ENTRY 4 /* the word of a record's body that tells when a call was entered */

/* Finished operations of one kind. */
typedef struct hki_tally {
    uint64_t bytes, ns;
    uint64_t late_ns, transfer_ns; /* of those that are timed */
    hki_histogram durations, late, transfers;
} hki_tally;

typedef struct hki_open_span {
    uint32_t thread;
    uint64_t since_ns;
    char name[HKI_TRACE_NAME];
} hki_open_span;

typedef struct hki_seen {
    hki_lock lock;
    bool table; /* to be printed at the end */
    uint64_t from_ns;
    hki_interface before[HKI_SEEN_INTERFACES]; /* for the table */
    size_t interfaces;
    hki_trace *trace; /* NULL: none */
    uint64_t no_room; /* spans that could not be kept */
    uint64_t calls, inside_ns, waited_ns, wait_cpu_ns, span_ns;
    uint32_t open;
    hki_open_span spans[HKI_SEEN_OPEN];
    hki_tally tally[HKI_OPS];
} hki_seen;

typedef struct hki_seen_wait {
    uint64_t since_ns, cpu_ns;
} hki_seen_wait;

/* ---- Life: when the communicator is made, before anybody knows it; when it is freed, its ports still there */
void hki_seen_open(hk_comm *);
void hki_seen_close(hk_comm *);
void hki_seen_stats(hk_comm *, hk_stats_t *);
/* seen_report.c: the table; links of comm filled in. */
void hki_seen_print(const hk_comm *, const hk_stats_t *);

/* ---- Operations: comm->seen is there, the engine's lock is held */
void hki_seen_issued(hk_request *);
void hki_seen_publish(const hk_request *); /* its record in the area, and when it was issued */
void hki_seen_finished(hk_request *, hk_status);

/* ---- Calls, of a thread that may have to wait: what they are is a name of static storage */
uint64_t hki_seen_entered(hki_seen *);
void hki_seen_left(hki_seen *, uint64_t since_ns, const char *what, uint64_t seq, bool blocks);
#define HKI_SEEN_ENTER(comm) (HKI_UNLIKELY((comm)->seen != NULL) ? hki_seen_entered((comm)->seen) : 0)
#define HKI_SEEN_LEAVE(comm, since, what, seq, blocks)                                                                                     \
    (HKI_UNLIKELY(since) ? hki_seen_left((comm)->seen, (since), (what), (seq), (blocks)) : (void)0)

/* ---- Waits inside them: told where threads wait, which knows no communicator; it is the call's of this thread */
hki_seen_wait hki_seen_wait_begin(void);
void hki_seen_wait_end(hki_seen_wait);

#endif
