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
#include "comm/seen.h"
#include "exec/exec.h"
#include "net/area.h"
#include "tune/choose.h"

#define HKI_CHANNELS 2
#define HKI_LEND 2048          /* bytes of a buffer from which it is worth asking whether it can be lent */
#define HKI_P2P HKI_CHANNELS /* the channel of send and recv */
#define HKI_POOL 1024          /* unfinished operations of a communicator from which a call waits for one to finish */

enum { HKI_ANY, HKI_ONLY_SHM, HKI_ONLY_TCP };
typedef enum hki_executor { HKI_AUTO, HKI_INLINE, HKI_EVENT } hki_executor;

#define HKI_NO_LIMIT_US (UINT64_MAX / 16) /* longer limits count as this: sums with the time of day must not wrap */

/* hk_config and the environment, resolved. */
typedef struct hki_settings {
    uint64_t timeout_us, init_timeout_us, stall_us, pace;
    uint8_t transport; /* HKI_ANY, HKI_ONLY_SHM, HKI_ONLY_TCP */
    hki_executor executor;
    bool strict, stats;
    hki_forced forced;
    uint64_t forced_hash;
    size_t slot_bytes;   /* 0: chosen */
    uint32_t slots;
    uint32_t sockets;
} hki_settings;

#include "comm/task.h"

#define HKI_COMM_MAGIC 0x686b636f6d6d3031u

struct hk_comm {
    uint64_t magic;
    hki_engine *engine;
    hki_seen *seen;              /* NULL unless statistics or a trace are wanted */
    hk_comm *next;
    hki_settings settings;
    hki_shape shape;
    hki_peer **peers;            /* by rank; shared between communicators, counted by the block below */
    struct hki_peers *peer_block;
    bool any_tcp;
    bool plain;                  /* memory alone, and nobody insists on the event-driven executor */
    uint32_t per_host;           /* see call.h, as dealt: of those who reach each other through memory */
    bool dealt;
    uint32_t near_ranks;         /* ranks that share this one's caches, itself included */
    hki_area area;
    hki_now *now;                /* in the area, or where hocket run reads it */
    hki_remote_comm *tcp;
    hki_port *ports[HKI_CHANNELS + 1];
    hki_port *shm_ports[HKI_CHANNELS + 1], *tcp_ports[HKI_CHANNELS + 1];
    /* operations */
    uint64_t seq, chain;         /* collectives issued; the fingerprint of all of them */
    hki_channel channels[HKI_CHANNELS + 1];
    hk_request *tasks, *last;    /* unfinished, in issue order */
    hk_request *free_tasks;
    hk_request quick[HKI_CHANNELS]; /* what hki_task_quick runs; never in a list */
    uint64_t unfinished;
    uint32_t calls;              /* finished tasks whose callbacks have not returned */
    hki_group *groups;
    hki_entry *cache[HKI_CACHE_SETS][HKI_CACHE_WAYS];
    uint64_t cache_clock, builds;
    hki_memo memo[HKI_COLLECTIVES];
    /* point-to-point */
    uint32_t next_id;
    hki_announcement *waiting, **waiting_end, *free_announcements;
    uint64_t p2p_open;           /* unfinished send and recv tasks */
    /* derived communicators */
    uint64_t splits;
    struct hki_use { struct hki_use *next; uint64_t key, uses; } *uses;
    /* end */
    _Atomic bool aborted;
    bool broken, leaving; /* leaving: inside hk_comm_destroy */
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
/* A rank that has not taken all that this one sent it, or UINT32_MAX. */
uint32_t hki_comm_undrained(hk_comm *);
void hki_comm_show_launcher(hk_comm *); /* from now on the launcher sees what this rank does */
bool hki_comm_local(const hk_comm *, uint32_t rank); /* reached by shared memory? */
void hki_link_totals(const hk_comm *, hk_stats_t *);  /* memory.c: adds up what its ports have moved */
/* A call of this communicator: ranks, hosts, slots; the rest is to be filled in. */
static inline hki_call hki_comm_call(const hk_comm *comm)
{
    return (hki_call){.ranks = comm->shape.ranks, .rank = comm->shape.rank, .per_host = comm->per_host, .dealt = comm->dealt, .slots = comm->shape.slots};
}
hki_where hki_comm_where(const hk_comm *);           /* what the choice of an algorithm depends on: equal on all ranks */

/* ---- error.c: the sentence of a failure, kept per communicator and, without one, per thread */
hk_status hki_error(hk_comm *, hk_status, const char *format, ...) __attribute__((format(printf, 3, 4)));
void hki_error_forget(const hk_comm *); /* before comm is freed */
hk_status hki_comm_unusable(const hk_comm *);
/* A usable communicator of this process? Otherwise the status to return. */
static inline hk_status hki_comm_usable(const hk_comm *comm)
{
    if (HKI_LIKELY(comm && comm->magic == HKI_COMM_MAGIC && comm->engine->generation == hki_fork_generation())) return HK_OK;
    return hki_comm_unusable(comm);
}

/* ---- fail.c */
void hki_comm_break(hk_comm *, const hki_notice *);
/* Makes the notice for task (may be NULL) about `culprit` and breaks the communicator. */
void hki_comm_fail(hk_comm *, hk_status, uint32_t culprit, const hk_request *task, uint64_t now_us);
void hki_comm_check(hk_comm *, uint64_t now_us);
/* A cheap look before each operation: did another rank fail, or somebody abort? */
bool hki_comm_alarmed(hk_comm *);

/* ---- cache.c */
/* The plan for a call, by the forced algorithm (NULL: the tuner's choice), pinned; NULL with status. */
hki_entry *hki_cache_get(hk_comm *, const hki_call *, const hki_algo *forced, int tag, hk_status *, char error[160]);
void hki_cache_unpin(hki_entry *);
void hki_cache_free(hk_comm *);

/* ---- p2p.c */
void hki_p2p_pump(hk_comm *);
void hki_p2p_free(hk_comm *);
uint32_t hki_p2p_waiting_for(const hk_request *); /* rank or UINT32_MAX */

/* ---- wait.c */
/* Sets engine->spins and yields; to be called when what it depends on has changed. */
void hki_set_spins(hki_engine *);
/* Waits until all (or any) of n requests are finished; give_up_us: absolute, UINT64_MAX = never. The lock is held before and after.
 * false: gave up. */
bool hki_wait(hki_engine *, hk_request *const *requests, size_t n, bool all, uint64_t give_up_us);
/* Pumps until done(arg) or the deadline. */
bool hki_wait_until(hki_engine *, bool (*done)(void *), void *arg, uint64_t give_up_us);
/* The same for the progress thread: done(engine). */
void hki_drive_idle(hki_engine *, bool (*done)(void *));
bool hki_unsent(hki_engine *); /* does anything wait for room in the kernel's buffers? */
/* Before a call that waited returns: what it sent has left for the kernel, as nobody may be in the library for long to send it later.
 * Gives up after timeout_us; the links then go on when somebody is. */
void hki_flush(hk_comm *, uint64_t timeout_us);

/* ---- request.c */
/* hk_wait_for with the lock held: the request's status, or HK_WAIT_EXPIRED. */
hk_status hki_request_wait(hk_request **, uint64_t give_up_us);

/* ---- ops.c */
/* Where the open group of the calling thread is kept; NULL is kept there if it has none. The lock is held. (request.c) */
hki_group **hki_group_at(hk_comm *);
/* A call that cannot be part of a group, made inside one by this thread: HK_INVALID. The lock is not held. */
hk_status hki_outside_group(hk_comm *, const char *call);
/* A task that is not to be: nothing of it was sent, and it is gone. Returns status. */
hk_status hki_refuse(hk_request *, hk_status);
/* Takes over from a call's options what is done with its task; on failure the task is gone. */
hk_status hki_issue_with(hk_request *, const hk_options *);
/* Common end of every public operation: into the open group, or submitted and waited for. The lock is held. */
hk_status hki_issue(hk_comm *, hk_request *, hk_request **);

#endif
