/* SPDX-License-Identifier: Apache-2.0
 *
 * The engine: what all communicators of a process share. It owns the segment, the doorbell, the listening port, the epoll set and the
 * list of communicators. One per process, made by the first communicator and counted; hk_comm_create_local makes one per rank.
 *
 * One lock guards an engine and everything of its communicators. It is never held across a sleep. Whoever waits pumps every
 * communicator, so waiting on one never starves another. */
#ifndef HKI_ENGINE_H
#define HKI_ENGINE_H

#include "net/net.h"
#include "net/remote.h"
#include "os/lock.h"

#include <pthread.h>

/* Engines of one process that see each other's memory directly (hk_comm_create_local); freed when the last of them closes. */
typedef struct hki_world {
    _Atomic uint32_t users;
    uint32_t n;
    hki_segment *segments;
    struct { int fd; char name[32]; } *bells;
} hki_world;

/* The progress thread (comm/progress.c). */
typedef struct hki_progress {
    pthread_t id;
    bool started, resting, stop;
    _Atomic uint32_t work;       /* grows when there may be something to do: it rests on this word */
} hki_progress;

typedef struct hki_engine {
    hki_lock lock;
    uint32_t users;              /* communicators */
    uint64_t generation;         /* of fork(): differs in a child */
    hki_segment *segment;
    hki_world *world;            /* NULL: the process-wide engine */
    _Atomic uint32_t world_users; /* communicators of an engine of a world, beyond the first */
    int bell, epoll, fd_listener;
    char bell_name[32];
    const struct hki_remote *remote; /* the transport between hosts; NULL: this build has none */
    hki_remote_end *tcp;         /* NULL until a communicator needs it */
    uint16_t tcp_port;
    bool paced;                  /* something waits for the rate limit */
    hki_view *views;             /* segments of others mapped here, counted */
    hk_comm *comms;
    uint32_t sleepers;           /* threads that sleep for the doorbell and sockets */
    uint32_t round, stale;       /* calls of hki_engine_wake; sleepers that slept before the last and have not woken since */
    uint32_t drivers;            /* callers that wait, and so move everything */
    uint64_t unfinished;         /* tasks of all communicators */
    hki_progress thread;         /* moves what is unfinished while nobody waits */
    hk_request *called, **called_end; /* finished, their callbacks still to run */
    uint32_t calling;            /* callbacks that run now */
    uint32_t spins;              /* how often to look before letting others have the CPU */
    uint32_t yields;             /* how often to let them have it before a quick call becomes a task */
    bool shares_memory;          /* the user has memory that peers can map: hk_mem_alloc, hk_mem_register */
    size_t cache_bytes;          /* of the last-level cache */
    bool crowded;                /* more ranks on this host than CPUs */
    uint32_t seen;               /* communicators that want to know who waits (comm/seen.h) */
    uint64_t progress;           /* grows whenever something moved */
    uint64_t waits, sleeps;
} hki_engine;

/* The process-wide engine, counted; NULL with status and text. */
hki_engine *hki_engine_get(hk_status *status, char error[160]);
/* n engines of one world; false without memory or descriptors. */
bool hki_engine_world(hki_engine **engines, uint32_t n, char error[160]);
void hki_engine_put(hki_engine *);

/* fork() generation now: an engine of another generation belongs to the parent. */
extern _Atomic uint64_t hki_forks; /* counted by forked children */
static inline uint64_t hki_fork_generation(void) { return atomic_load_explicit(&hki_forks, memory_order_relaxed); }

/* Does what can be done now on every communicator; the lock is held. */
void hki_engine_pump(hki_engine *);
/* The same without asking which sockets are ready: awaited ones may be looked at all the same. */
void hki_engine_pump_comms(hki_engine *);
/* Looks after deadlines, dead peers, notices and stall lines; the lock is held. */
void hki_engine_check(hki_engine *, uint64_t now_us);
/* The counted view of a segment, from a descriptor that others sent (taken over) or one already mapped; NULL: cannot be shared. */
hki_view *hki_engine_view(hki_engine *, int fd, uint64_t token, const char *bell);
void hki_engine_unview(hki_engine *, hki_view *);
/* Opens the port for ranks of other hosts, once; false with text. The lock is held, or nobody else knows the engine yet. */
bool hki_engine_listen(hki_engine *, char error[160]);
/* ---- comm/progress.c; the lock is held unless told otherwise */
/* Starts the progress thread if there is none; false: the system gives none. */
bool hki_progress_start(hki_engine *);
/* Something is unfinished: if nobody moves it, the thread must. */
void hki_progress_need(hki_engine *);
/* The same from anywhere, without the lock. */
void hki_progress_poke(hki_engine *);
/* Before the engine is freed, without the lock. */
void hki_progress_stop(hki_engine *);
uint64_t hki_progress_cpu_ns(const hki_engine *); /* CPU time of the thread so far */
/* Runs the callbacks that are due; gives the lock for each. A caller who drives does not while it runs one. */
void hki_callbacks_run(hki_engine *, bool caller);
/* Is this thread in a callback? */
bool hki_in_callback(void);

/* Wakes threads of this engine that sleep. */
void hki_engine_wake(hki_engine *);

#endif
