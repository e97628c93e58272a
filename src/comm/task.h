/* SPDX-License-Identifier: Apache-2.0
 *
 * A task: one operation on its way. Submitted in the order of the calls, started when it is first in its channel and its memory is
 * free, run until done, finished, recycled. What the caller holds as hk_request is a task. */
#ifndef HKI_TASK_H
#define HKI_TASK_H

#include "algo/algo.h"
#include "comm/report.h"
#include "exec/exec.h"

#include <pthread.h>

/* ---- Plans that were used, by call signature (comm/cache.c) */
typedef struct hki_key {
    uint32_t op, dtype, root, in_place;
    uint64_t count, vector[2]; /* two hashes of the count arrays */
    uintptr_t redop;
    uint64_t factor;
    int64_t tag;
    const hki_algo *forced;    /* NULL: the choice is the tuner's, made when the plan is built */
} hki_key;

typedef struct hki_entry {
    hki_key key;
    uint64_t used;       /* clock of last use, 0 = empty */
    uint32_t pins;
    hki_plan plan;
    hki_program program;
    hki_desc desc;
    uint64_t fingerprint; /* without sequence */
    uint64_t built;      /* which build of the communicator's this is: tells a rebuilt entry from the one that was remembered */
    bool prepared;       /* working memory for it was provided */
    bool stray;          /* not in the cache: freed after use */
} hki_entry;

/* The last plain call of an operation: a call that repeats it, other pointers apart, needs no second look at its arguments. */
typedef struct hki_memo {
    hki_entry *entry;    /* NULL: none */
    uint64_t built;
    size_t count, in_bytes, out_bytes, own; /* own: offset of this rank's block when in place */
    hk_redop redop;
    int root;
    hk_dtype dtype;
    bool in_place;
} hki_memo;

#define HKI_CACHE_SETS 64
#define HKI_CACHE_WAYS 4

/* ---- Tasks */
typedef enum hki_task_kind { HKI_TASK_COLLECTIVE, HKI_TASK_SEND, HKI_TASK_RECV, HKI_TASK_GROUP } hki_task_kind;
typedef enum hki_p2p_state { HKI_P2P_NEW, HKI_P2P_ANNOUNCED, HKI_P2P_MATCHED, HKI_P2P_MOVING } hki_p2p_state;

typedef struct hki_announcement {
    struct hki_announcement *next;
    uint32_t from, id;
    int32_t tag;
    uint32_t dtype;
    uint64_t bytes;
    uint8_t payload[24];
} hki_announcement;

/* An event that a task comes after (comm/event.c). */
typedef struct hki_after { hk_event *event; struct hki_engine *engine; struct hki_after *next; } hki_after;
#define HKI_AFTER_MAX 4096

struct hk_request {
    hk_comm *comm;
    struct hk_request *next, *prev; /* unfinished tasks of the communicator in issue order; free list */
    struct hk_request *queue;       /* next in its channel */
    struct hk_request *group;
    uint32_t pending;               /* a group's members that are not over: it is finished by the last */
    uint8_t kind, channel;
    bool started, finished, held;   /* held: the caller has a handle to it */
    bool calling;                   /* finished, and its callback has not returned */
    hk_status status;
    uint64_t seq, fingerprint;
    const hki_desc *desc;
    hki_desc own_desc;              /* point-to-point */
    hki_after *after;               /* after_count events that it waits for */
    uint32_t after_count;
    hk_event *event;                /* recorded when it is over, or NULL */
    void (*done)(void *arg, hk_status status);
    void *done_arg;
    struct hk_request *next_called;
    hki_entry *entry;
    uint64_t built;                 /* hki_task_quick: of the entry that the run is ready for */
    hki_run run;
    const uint8_t *in;
    uint8_t *out;
    size_t in_bytes, out_bytes;     /* extents of the buffers, for overlap */
    uint64_t issued_us, timeout_us, next_stall_us;
    uint64_t issued_ns, started_ns; /* comm->seen only */
    uint32_t thread;
    uint32_t stalls;
    /* point-to-point */
    hki_p2p_state p2p;
    uint32_t peer, id, matched_id;
    int32_t tag;
    size_t moved;
    int *source;                    /* of a receive: where the caller wants to read whom it matched, or NULL */
};

typedef struct hki_store { void *at; size_t bytes; } hki_store;

typedef struct hki_channel {
    hk_request *head, *tail;
    hki_store temp, done;           /* of the task that runs */
    hki_store next_temp, next_done; /* larger ones, for a task that waits */
    const void **sources;
    void **places;
    uint32_t *marks;
} hki_channel;

typedef struct hki_group {
    struct hki_group *next;
    pthread_t owner;
    uint32_t depth;
    hk_request *first, *last;   /* linked by queue */
} hki_group;

hk_request *hki_task_new(hk_comm *, hki_task_kind);
/* Puts a task in its queues: sequence, fingerprint and record are fixed here. */
void hki_task_submit(hk_comm *, hk_request *);
/* Runs a blocking collective on a communicator with nothing under way over memory alone: in the caller's stack, for as long as a message
 * may take. True: it is done. False: it has become a task like any other, *task, to be waited for. The entry is pinned and prepared, and
 * there is a task to recycle. */
bool hki_task_quick(hk_comm *, hki_entry *, const void *in, void *out, size_t in_bytes, size_t out_bytes, hk_request **task);
void hki_task_run_channel(hk_comm *, uint32_t channel);
void hki_task_finish(hk_request *, hk_status);
/* A finished task whose callback, if it has one, has returned. */
static inline bool hki_task_over(const hk_request *t) { return t->finished && !t->calling; }
/* The next unfinished task that is no group: the one list position that stays when this one is finished, which may finish its group too. */
static inline hk_request *hki_task_next(const hk_request *t)
{
    hk_request *next = t->next;
    while (next && next->kind == HKI_TASK_GROUP) next = next->next;
    return next;
}
/* It is over: its event is recorded, and it goes where it came from unless a caller has a handle to it. */
void hki_task_settle(hk_request *);
void hki_task_recycle(hk_request *);
/* Makes sure that a task of that program finds its working memory on any channel: what can fail fails before anything is submitted. */
bool hki_task_prepare(hk_comm *, hki_entry *);
bool hki_tasks_use(const hk_comm *, const void *memory, size_t bytes); /* Does any unfinished task? */
bool hki_task_clear(hk_request *); /* its events and those of earlier tasks have come, and none of these uses overlapping memory */
bool hki_comm_pump(hk_comm *);           /* true if anything moved */

/* ---- comm/event.c; the engine's lock is held. On failure the task is as it was. */
hk_status hki_after_set(hk_comm *, hk_request *, hk_event *const *events, size_t n);
bool hki_after_waits(const hk_request *); /* for one at least */
bool hki_after_come(hk_request *); /* have they all been recorded? One that failed breaks the communicator */
void hki_after_forget(hk_request *);
void hki_event_of_task(hk_request *); /* records it, if there is one */

#endif
