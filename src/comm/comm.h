/* SPDX-License-Identifier: Apache-2.0
 *
 * A communicator, and a task: one operation on its way. Internal to this room; the lock of comm->engine guards all of it, except
 * what is atomic.
 *
 * Collectives are dealt round robin to HKI_CHANNELS channels by their sequence number; in a channel one runs at a time, in order.
 * Point-to-point has a channel of its own. A task starts when it is first in its channel and no earlier unfinished task uses
 * overlapping memory. */
#ifndef HKI_COMM_H
#define HKI_COMM_H

#include "algo/algo.h"
#include "comm/engine.h"
#include "comm/report.h"
#include "exec/exec.h"
#include "net/shm.h"
#include "tune/choose.h"

#define HKI_CHANNELS 2
#define HKI_P2P HKI_CHANNELS /* the channel of send and recv */

enum { HKI_ANY, HKI_ONLY_SHM, HKI_ONLY_TCP };
typedef enum hki_executor { HKI_AUTO, HKI_INLINE, HKI_EVENT } hki_executor;

/* hk_config and the environment, resolved. */
typedef struct hki_settings {
    uint64_t timeout_us, init_timeout_us, stall_us, pace;
    uint8_t transport; /* HKI_ANY, HKI_ONLY_SHM, HKI_ONLY_TCP */
    hki_executor executor;
    bool strict;
    hki_forced forced;
    uint64_t forced_hash;
    size_t slot_bytes;   /* 0: chosen */
    uint32_t slots;
} hki_settings;

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
    bool stray;          /* not in the cache: freed after use */
} hki_entry;

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

struct hk_request {
    hk_comm *comm;
    struct hk_request *next, *prev; /* unfinished tasks of the communicator in issue order; free list */
    struct hk_request *queue;       /* next in its channel */
    struct hk_request *group;
    uint32_t pending;               /* a group's unfinished members */
    uint8_t kind, channel;
    bool started, finished, held;   /* held: the caller has a handle to it */
    hk_status status;
    uint64_t seq, fingerprint;
    const hki_desc *desc;
    hki_desc own_desc;              /* point-to-point */
    hki_entry *entry;
    hki_run run;
    const uint8_t *in;
    uint8_t *out;
    size_t in_bytes, out_bytes;     /* extents of the buffers, for overlap */
    uint64_t issued_us, timeout_us, next_stall_us;
    uint32_t stalls;
    /* point-to-point */
    hki_p2p_state p2p;
    uint32_t peer, id, matched_id;
    int32_t tag;
    size_t moved;
};

typedef struct hki_channel {
    hk_request *head, *tail;
    void *temp;
    size_t temp_bytes;
    uint8_t *done;
    size_t done_bytes;
    const void **sources;
    void **places;
} hki_channel;

typedef struct hki_group {
    struct hki_group *next;
    pthread_t owner;
    uint32_t depth;
    hk_request *first, *last;   /* linked by queue */
} hki_group;

#define HKI_COMM_MAGIC 0x686b636f6d6d3031u

struct hk_comm {
    uint64_t magic;
    hki_engine *engine;
    hk_comm *next;
    hki_settings settings;
    hki_shape shape;
    hki_peer **peers;            /* by rank; shared between communicators, counted by the block below */
    struct hki_peers *peer_block;
    bool any_tcp;
    hki_area area;
    hki_tcp_comm *tcp;
    hki_port *ports[HKI_CHANNELS + 1];
    hki_port *shm_ports[HKI_CHANNELS + 1], *tcp_ports[HKI_CHANNELS + 1];
    /* operations */
    uint64_t seq;                /* collectives issued */
    hki_channel channels[HKI_CHANNELS + 1];
    hk_request *tasks, *last;    /* unfinished, in issue order */
    hk_request *free_tasks;
    uint64_t unfinished;
    hki_group *groups;
    hki_entry *cache[HKI_CACHE_SETS][HKI_CACHE_WAYS];
    uint64_t cache_clock;
    /* point-to-point */
    uint32_t next_id;
    hki_announcement *waiting, **waiting_end;
    uint64_t p2p_open;           /* unfinished send and recv tasks */
    /* derived communicators */
    uint64_t splits;
    struct hki_use { struct hki_use *next; uint64_t key, uses; } *uses;
    /* end */
    _Atomic bool aborted;
    bool broken, leaving;
    hki_notice notice;
    char error[HKI_TEXT];
    uint64_t operations, operation_bytes, waits, sleeps;
};

/* The peers of communicators that were made together; counted. */
typedef struct hki_peers {
    _Atomic uint32_t users;
    uint32_t n;
    hki_peer *peer;
    bool crowded; /* on some host ranks outnumber CPUs: agreed, since slot sizes depend on it */
} hki_peers;

/* ---- create.c */
hk_status hki_settings_read(hki_settings *, const hk_config *, char error[160]);
/* Makes a communicator of an engine whose ranks and their views are known; uid is equal on all of its ranks. */
hk_status hki_comm_make(hk_comm **, hki_engine *, const hki_settings *, hki_peers *block, hki_peer **peers, uint32_t ranks, uint32_t rank,
                        uint64_t uid, char error[160]);
void hki_comm_free(hk_comm *);
bool hki_comm_local(const hk_comm *, uint32_t rank); /* reached by shared memory? */

/* ---- error.c: the sentence of a failure, kept per communicator and, without one, per thread */
hk_status hki_error(hk_comm *, hk_status, const char *format, ...) __attribute__((format(printf, 3, 4)));
void hki_error_forget(const hk_comm *); /* before comm is freed */
/* A usable communicator of this process? Otherwise the status to return. */
hk_status hki_comm_usable(hk_comm *);

/* ---- fail.c */
void hki_comm_break(hk_comm *, const hki_notice *);
/* Makes the notice for task (may be NULL) about `culprit` and breaks the communicator. */
void hki_comm_fail(hk_comm *, hk_status, uint32_t culprit, const hk_request *task, uint64_t now_us);
void hki_comm_check(hk_comm *, uint64_t now_us);

/* ---- cache.c */
/* The plan for a call, by the forced algorithm (NULL: the tuner's choice), pinned; NULL with status. */
hki_entry *hki_cache_get(hk_comm *, const hki_call *, const hki_algo *forced, int tag, hk_status *, char error[160]);
void hki_cache_unpin(hki_entry *);
void hki_cache_free(hk_comm *);

/* ---- task.c */
hk_request *hki_task_new(hk_comm *, hki_task_kind);
/* Puts a task in its queues: sequence, fingerprint and record are fixed here. */
void hki_task_submit(hk_comm *, hk_request *);
void hki_task_run_channel(hk_comm *, uint32_t channel);
void hki_task_finish(hk_request *, hk_status);
void hki_task_recycle(hk_request *);
bool hki_task_clear(const hk_request *); /* no earlier unfinished task uses overlapping memory */
bool hki_comm_pump(hk_comm *);           /* true if anything moved */

/* ---- p2p.c */
void hki_p2p_pump(hk_comm *);
void hki_p2p_free(hk_comm *);
uint32_t hki_p2p_waiting_for(const hk_request *); /* rank or UINT32_MAX */

/* ---- wait.c */
/* Waits until all (or any) of n requests are finished; give_up_us: absolute, UINT64_MAX = never. The lock is held before and after.
 * false: gave up. */
bool hki_wait(hki_engine *, hk_request *const *requests, size_t n, bool all, uint64_t give_up_us);
/* Pumps until done(arg) or the deadline. */
bool hki_wait_until(hki_engine *, bool (*done)(void *), void *arg, uint64_t give_up_us);

/* ---- ops.c */
/* Common end of every public operation: into the open group, or submitted and waited for. The lock is held. */
hk_status hki_issue(hk_comm *, hk_request *, hk_request **);

#endif
