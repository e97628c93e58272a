/* SPDX-License-Identifier: Apache-2.0
 *
 * hocket: collective communication for distributed training.
 *
 * A *communicator* joins `ranks` participants; each calls the same operations in the same order and every
 * operation moves or combines `count` elements of one type. One rank is one process, or one thread (hk_comm_create_local).
 *
 *     hk_comm *comm;
 *     hk_comm_create_env(&comm, NULL);                          // rank, ranks, meeting place: from the launcher
 *     hk_all_reduce(x, x, 1000, HK_F32, HK_SUM, comm, NULL, NULL);  // x becomes the sum over ranks, on every rank
 *     hk_comm_destroy(comm);
 *
 * Rules that hold everywhere
 *   - Counts are elements (size_t), never bytes. Buffers need the alignment of their element type, no more.
 *   - A NULL hk_request ** makes a call block. Otherwise the call returns at once, without waiting for any peer, and the
 *     operation owns its buffers (and count arrays) until the request is finished.
 *   - An operation whose buffers overlap those of an earlier unfinished one on the same communicator starts after it.
 *   - A negative status is a failure. hk_breaks(status) tells whether it broke the communicator or nothing at all.
 *     hk_last_error(comm) is the full sentence: rank, operation, cause, remedy.
 *   - One communicator may be used from several threads (calls are serialised); order across ranks is the caller's affair.
 *   - After fork() the child must not use communicators of its parent (HK_FORKED).
 *
 * Numbers: f16 and bf16 are accumulated in f32. AVG is the sum times 1/ranks, rounded once; for integers it truncates toward
 * zero. Integer SUM and PROD wrap. MIN and MAX propagate NaN. All ranks end with the same bits. */
#ifndef HOCKET_HOCKET_H
#define HOCKET_HOCKET_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define HK_API __attribute__((visibility("default")))

#define HK_VERSION_MAJOR 0
#define HK_VERSION_MINOR 1
#define HK_VERSION_PATCH 0
#define HK_VERSION (HK_VERSION_MAJOR * 10000 + HK_VERSION_MINOR * 100 + HK_VERSION_PATCH)

/* ---- Status ------------------------------------------------------------------------------------------------------- */

typedef enum hk_status {
    HK_OK = 0,
    /* These break nothing: no byte was sent, communicator and peers are as they were. */
    HK_INVALID = -1,      /* an argument is wrong; hk_last_error names it */
    HK_UNSUPPORTED = -2,  /* a right call that this build or algorithm cannot do */
    HK_NO_MEMORY = -3,    /* an allocation failed before the operation started */
    HK_WAIT_EXPIRED = -4, /* hk_wait_for's or hk_run's own limit; the request goes on */
    HK_FORKED = -5,       /* used in a child of fork() */
    HK_SYSTEM = -6,       /* a system call failed before the operation started */
    HK_BOOT = -7,         /* ranks could not meet: the communicator was not made */
    /* These break the communicator: sticky, the first cause is returned by every later call. */
    HK_TIMEOUT = -20,   /* the operation's time limit passed */
    HK_MISMATCH = -21,  /* ranks called different operations */
    HK_PEER_LOST = -22, /* a rank died or its link broke */
    HK_PEER_LEFT = -23, /* a rank destroyed its communicator while others still need it */
    HK_ABORTED = -24,   /* hk_comm_abort */
    HK_CORRUPT = -25    /* a peer sent bytes that cannot be right */
} hk_status;

/* The name of a status ("HK_TIMEOUT") and a short meaning. Static strings. */
HK_API const char *hk_status_name(hk_status status);
HK_API const char *hk_status_string(hk_status status);
/* 1 if this failure leaves the communicator unusable (destroy it), 0 if it is as good as before. */
HK_API int hk_breaks(hk_status status);
HK_API int hk_version(void);

/* ---- Types and reductions ----------------------------------------------------------------------------------------- */

typedef enum hk_dtype {
    HK_I8, HK_U8, HK_I16, HK_U16, HK_I32, HK_U32, HK_I64, HK_U64, HK_F16, HK_BF16, HK_F32, HK_F64,
    HK_DTYPES
} hk_dtype;

HK_API size_t hk_dtype_size(hk_dtype dtype);        /* bytes of one element; 0 if unknown */
HK_API const char *hk_dtype_name(hk_dtype dtype);   /* "f32" */

/* A reduction: one of the constants below, or a handle made by hk_op_premul_sum or hk_op_create.
 * BAND, BOR, BXOR: integers only. */
typedef uintptr_t hk_redop;
enum { HK_SUM, HK_PROD, HK_MIN, HK_MAX, HK_AVG, HK_BAND, HK_BOR, HK_BXOR, HK_REDOPS };

/* acc[i] = acc[i] (op) src[i] for i in [0, count). acc holds the combination of lower ranks. Must be associative. Called from
 * whichever thread makes progress; must not call hocket. */
typedef void (*hk_op_fn)(void *acc, const void *src, size_t count, hk_dtype dtype, void *arg);

/* A user's reduction. Without `commutes` it runs only on algorithms that combine in rank order (the default choice is one).
 * The handle is this process's; every rank makes its own, in the same order. Free it once no operation uses it. */
HK_API hk_status hk_op_create(hk_op_fn fn, void *arg, int commutes, hk_redop *op);
/* Sum, then multiplied by `scalar` (the same on every rank), rounded once. Floating-point types only. */
HK_API hk_status hk_op_premul_sum(double scalar, hk_redop *op);
HK_API hk_status hk_op_free(hk_redop op);

/* ---- Communicators ------------------------------------------------------------------------------------------------ */

typedef struct hk_comm hk_comm;
typedef struct hk_request hk_request;
typedef struct hk_event hk_event;
typedef struct hk_id { char bytes[128]; } hk_id;

/* Settings of a communicator. Zero means "default"; start from HK_CONFIG_INIT so that later fields stay default. */
typedef struct hk_config {
    size_t size;             /* sizeof(hk_config) */
    uint64_t timeout_us;     /* limit of each operation; default 5 min, HOCKET_TIMEOUT */
    uint64_t init_timeout_us; /* limit of making a communicator; default 30 s, HOCKET_INIT_TIMEOUT */
    const char *transport;   /* "auto" (shared memory within a host, TCP between hosts), "shm", "tcp"; HOCKET_TRANSPORT */
    const char *algorithm;   /* forced algorithm, "ring" or "all_reduce:ring,broadcast:binomial"; HOCKET_ALGO */
    const char *executor;    /* "auto", "inline", "event"; HOCKET_EXECUTOR */
    const char *determinism; /* "run" (default: same calls, same bits) or "strict" (independent of algorithm and transport) */
} hk_config;
#define HK_CONFIG_INIT { sizeof(hk_config), 0, 0, NULL, NULL, NULL, NULL }

/* One rank makes an id and hands it to the others by any means; all then create. The maker must be one of the ranks: its
 * process answers the others while it is inside hk_comm_create. An id serves one communicator. */
HK_API hk_status hk_id_create(hk_id *id);
/* Meets the other ranks and returns when all are there, within init_timeout. On failure *comm is NULL and
 * hk_last_error(NULL) tells why. */
HK_API hk_status hk_comm_create(hk_comm **comm, int ranks, int rank, const hk_id *id, const hk_config *config);
/* The same, rank, ranks and meeting place taken from the environment (hocket run, torchrun, srun, mpirun): docs/launch.md. */
HK_API hk_status hk_comm_create_env(hk_comm **comm, const hk_config *config);
/* n ranks in this process: comms[0..n). Each is then used by its own thread. */
HK_API hk_status hk_comm_create_local(hk_comm **comms, int n);
HK_API hk_status hk_comm_create_local_config(hk_comm **comms, int n, const hk_config *config);

/* Collective over `parent`. Ranks of one color (>= 0) form a communicator, ordered by (key, parent rank);
 * color -1 takes no part and gets NULL. */
HK_API hk_status hk_comm_split(hk_comm *parent, int color, int key, hk_comm **comm);
HK_API hk_status hk_comm_dup(hk_comm *parent, hk_comm **comm);
/* Called by the members only (parent's rank numbers; position = new rank), in any order between groups. Groups are told apart
 * by (members, tag) and by how often that pair was made. Moves no bytes; connects on first use. */
HK_API hk_status hk_comm_create_group(hk_comm *parent, const int *ranks, int n, int tag, hk_comm **comm);

/* Waits, within the time limit, until peers have taken what this rank sent, then frees. Any state is accepted; NULL too. */
HK_API hk_status hk_comm_destroy(hk_comm *comm);
/* Ends every pending and later operation on all ranks with HK_ABORTED. From any thread; never blocks. Destroy still frees. */
HK_API hk_status hk_comm_abort(hk_comm *comm);

HK_API int hk_comm_rank(const hk_comm *comm);
HK_API int hk_comm_ranks(const hk_comm *comm);
/* The last failure as one sentence: the communicator's, or with NULL the calling thread's last failure without one.
 * Valid until the next failing call. */
HK_API const char *hk_last_error(const hk_comm *comm);

/* ---- Operations --------------------------------------------------------------------------------------------------- */

/* Per-call settings; NULL = the communicator's. */
typedef struct hk_options {
    size_t size;            /* sizeof(hk_options) */
    uint64_t timeout_us;    /* limit of this operation, counted from the call (not from its events); 0 = the communicator's */
    const char *algorithm;  /* forced algorithm; NULL = the communicator's choice */
    int tag;                /* send and recv: message tag; collectives: compared between ranks */
    int priority;           /* reserved, 0 */
    const char *wire;       /* reserved, NULL */
    hk_event *const *after; /* after_count events: the operation starts when all are recorded; they may be destroyed after the call */
    size_t after_count;
    void (*done)(void *arg, hk_status status); /* called once when the operation has finished, before waits for it return; see Requests */
    void *done_arg;
    int *source;            /* recv: the rank whose message it is, written before the operation finishes */
} hk_options;
#define HK_OPTIONS_INIT { sizeof(hk_options), 0, NULL, 0, 0, NULL, NULL, 0, NULL, NULL, NULL }

/* In place means: send == recv, or for the operations that split, the pointer given in brackets. Any other overlap of send and
 * recv is HK_INVALID. With count 0 pointers may be NULL. */

/* recv[i] = op over ranks of send[i]. count elements each. */
HK_API hk_status hk_all_reduce(const void *send, void *recv, size_t count, hk_dtype dtype, hk_redop op, hk_comm *comm,
                               const hk_options *options, hk_request **request);
/* recv (ranks * count) = every rank's send (count), in rank order. [send == recv + rank * count] */
HK_API hk_status hk_all_gather(const void *send, void *recv, size_t count, hk_dtype dtype, hk_comm *comm,
                               const hk_options *options, hk_request **request);
/* recv (count) = block `rank` of the reduction of send (ranks * count). [recv == send + rank * count] */
HK_API hk_status hk_reduce_scatter(const void *send, void *recv, size_t count, hk_dtype dtype, hk_redop op, hk_comm *comm,
                                   const hk_options *options, hk_request **request);
/* recv (count) = root's send. `send` is read on the root only. */
HK_API hk_status hk_broadcast(const void *send, void *recv, size_t count, hk_dtype dtype, int root, hk_comm *comm,
                              const hk_options *options, hk_request **request);
/* On root recv[i] = op over ranks of send[i]. `recv` may be NULL elsewhere. */
HK_API hk_status hk_reduce(const void *send, void *recv, size_t count, hk_dtype dtype, hk_redop op, int root, hk_comm *comm,
                           const hk_options *options, hk_request **request);
/* On root recv (ranks * count) = every rank's send. [root: send == recv + root * count] */
HK_API hk_status hk_gather(const void *send, void *recv, size_t count, hk_dtype dtype, int root, hk_comm *comm,
                           const hk_options *options, hk_request **request);
/* recv (count) = block `rank` of root's send (ranks * count). [root: recv == send + root * count] */
HK_API hk_status hk_scatter(const void *send, void *recv, size_t count, hk_dtype dtype, int root, hk_comm *comm,
                            const hk_options *options, hk_request **request);
/* Block r of recv = block `rank` of rank r's send; count elements a block. Not in place. */
HK_API hk_status hk_all_to_all(const void *send, void *recv, size_t count, hk_dtype dtype, hk_comm *comm,
                               const hk_options *options, hk_request **request);

/* One of the above, or a barrier, as a record: for bindings of other languages, to which every argument and every call costs. Fields that the
 * operation does not have are not looked at. HK_OK: it has finished well, or inside a group has been collected. HK_WAIT_EXPIRED: it is under
 * way and `request` is to be waited for. Otherwise as from its own function, or from the wait. */
typedef enum hk_operation {
    HK_ALL_REDUCE, HK_ALL_GATHER, HK_REDUCE_SCATTER, HK_BROADCAST, HK_REDUCE, HK_GATHER, HK_SCATTER, HK_ALL_TO_ALL, HK_BARRIER, HK_OPERATIONS
} hk_operation;
typedef struct hk_call {
    size_t size;               /* sizeof(hk_call) */
    const void *send;
    void *recv;
    size_t count;
    hk_dtype dtype;
    hk_redop op;
    int root;
    hk_operation operation;
    int moment;                /* not 0: waits for it, as hk_wait_for with a limit of 0 does */
    hk_comm *comm;
    const hk_options *options; /* NULL = the communicator's */
    hk_request *request;       /* out: NULL unless it is under way */
} hk_call;
HK_API hk_status hk_run(hk_call *call);

/* Uneven forms. counts[r] and displacements[r] (elements; NULL = packed) describe rank r's block and are equal on all ranks in
 * the first two; all_to_all_v's arrays are this rank's own, and sendcounts[r] here must equal recvcounts[rank] there. */
HK_API hk_status hk_all_gather_v(const void *send, void *recv, const size_t *counts, const size_t *displacements,
                                 hk_dtype dtype, hk_comm *comm, const hk_options *options, hk_request **request);
HK_API hk_status hk_reduce_scatter_v(const void *send, void *recv, const size_t *counts, const size_t *displacements,
                                     hk_dtype dtype, hk_redop op, hk_comm *comm, const hk_options *options,
                                     hk_request **request);
HK_API hk_status hk_all_to_all_v(const void *send, const size_t *sendcounts, const size_t *senddispls, void *recv,
                                 const size_t *recvcounts, const size_t *recvdispls, hk_dtype dtype, hk_comm *comm,
                                 const hk_options *options, hk_request **request);

/* Point to point. Matched in order per (source, tag); a send finishes when its receive has matched. count and dtype must agree
 * with the receive's. HK_ANY_SOURCE takes the first match from any rank; options.source tells which. */
#define HK_ANY_SOURCE (-1)
HK_API hk_status hk_send(const void *buf, size_t count, hk_dtype dtype, int peer, hk_comm *comm, const hk_options *options,
                         hk_request **request);
HK_API hk_status hk_recv(void *buf, size_t count, hk_dtype dtype, int peer, hk_comm *comm, const hk_options *options,
                         hk_request **request);

/* Returns when every rank has entered. */
HK_API hk_status hk_barrier(hk_comm *comm, const hk_options *options, hk_request **request);

/* Between start and end, calls of this thread on this communicator are collected (their request argument must be NULL) and start
 * together at the outer end; one request stands for all. Nests. A call with a wrong argument fails alone and is left out. */
HK_API hk_status hk_group_start(hk_comm *comm);
HK_API hk_status hk_group_end(hk_comm *comm, hk_request **request);

/* ---- Requests ----------------------------------------------------------------------------------------------------- */

/* An operation with a request goes on without its caller. Whoever waits in the library, for whatever, moves everything; while nobody
 * does, a progress thread takes over, which the first such operation of a process starts (of each rank, if ranks are threads) and the end of its
 * last communicator stops. It sleeps when nothing is under way. Operations of one communicator start in the order of their calls, several
 * are under way at once, and results do not depend on the order of waits. Calls of several threads on one communicator take turns.
 * A communicator has up to 1024 unfinished operations; a call beyond that waits for one to finish.
 *
 * options.done runs on the thread that makes progress: a caller's, or the progress thread. It may issue operations with requests; waiting
 * there, or a call without a request, is HK_INVALID. */

/* A finished request is freed and set to NULL; a NULL request is finished. The status is the operation's. */
HK_API hk_status hk_test(hk_request **request, int *done);
HK_API hk_status hk_wait(hk_request **request);
/* Like hk_wait but gives up after timeout_us (0.1 ms later while things move) with HK_WAIT_EXPIRED, which leaves the request and the
 * communicator as they are. */
HK_API hk_status hk_wait_for(hk_request **request, uint64_t timeout_us);
/* All of them, the first failure returned; any of them, *index is which (n if all were NULL). */
HK_API hk_status hk_wait_all(hk_request **requests, size_t n);
HK_API hk_status hk_wait_any(hk_request **requests, size_t n, size_t *index);
/* Drops the handle without waiting: the operation goes on, its buffers stay in use until hk_comm_destroy. */
HK_API void hk_request_free(hk_request **request);

/* ---- Events: an order between operations and other work, without waiting for it ------------------------------------------------ */

/* Something that will have happened. hk_event_record says that it has (compute is done, say); operations issued with it in options.after
 * start then, and threads in hk_event_wait go on. Since operations of a communicator start in order, those issued after one that waits
 * for an event wait with it. Destroy drops the handle; operations that wait keep what they need. */
HK_API hk_status hk_event_create(hk_event **event);
HK_API hk_status hk_event_record(hk_event *event);
/* Makes it as new: HK_INVALID while operations wait for it. */
HK_API hk_status hk_event_reset(hk_event *event);
/* An event that is recorded when the request's operation has finished, with its status. To be destroyed like any other; the request
 * is still to be waited for, or freed. */
HK_API hk_status hk_request_event(hk_request *request, hk_event **event);
HK_API hk_status hk_event_query(const hk_event *event, int *recorded);
/* The status of what it stands for; HK_WAIT_EXPIRED after timeout_us (UINT64_MAX: no limit). An operation whose event failed fails. */
HK_API hk_status hk_event_wait(hk_event *event, uint64_t timeout_us);
HK_API void hk_event_destroy(hk_event *event);

/* ---- Memory ------------------------------------------------------------------------------------------------------- */

/* Memory that ranks on the same host can see: operations on it copy less, those on large vectors about half. Each rank's choice;
 * ranks with and without such memory mix. 64-byte aligned, zeroed. Stays shared with a forked child. */
HK_API hk_status hk_mem_alloc(hk_comm *comm, size_t bytes, void **ptr);
HK_API hk_status hk_mem_free(hk_comm *comm, void *ptr);
/* The same for memory the program already has, from malloc say: its whole pages are moved, contents and address kept (the rest of
 * [ptr, ptr + bytes) is used as before). No thread may write there during the call; HK_INVALID while an operation uses it. HK_UNSUPPORTED
 * with the reason where it cannot be: on a stack, in a file, shared, less than a page, ranks that are threads. It ends with
 * hk_mem_deregister, to which the same applies, or when the memory is freed: that is noticed, and what is later at that address is not
 * taken for it. Its pages are given back to the system only by hk_mem_deregister (before free), or at the end of the process. After fork()
 * the child shares them. */
HK_API hk_status hk_mem_register(hk_comm *comm, void *ptr, size_t bytes);
HK_API hk_status hk_mem_deregister(hk_comm *comm, void *ptr);

/* ---- Seeing what happens ------------------------------------------------------------------------------------------ */

typedef struct hk_link_stats { uint64_t messages_sent, bytes_sent, messages_received, bytes_received; } hk_link_stats;
typedef struct hk_stats_t {
    size_t size;              /* in: sizeof(hk_stats_t) */
    uint64_t operations;      /* finished */
    uint64_t operation_bytes; /* count * element size of those */
    hk_link_stats self, shm, tcp;
    uint64_t waits;           /* times a call had to wait for a peer */
    uint64_t sleeps;          /* of those, times it went to sleep */
    uint64_t bytes_lent;      /* of shm.bytes_sent: read by peers where they lay, or stored by this rank where a peer wanted them */
    /* From here on only under HOCKET_STATS=1 or HOCKET_TRACE, otherwise 0; docs/seeing.md tells what each means. */
    uint64_t seen_ns;         /* since the communicator was made */
    uint64_t span_ns;         /* of callers' time, in spans of the user */
    uint64_t calls, inside_ns; /* calls of operations and waits, and callers' time inside them */
    uint64_t waited_ns;       /* of inside_ns: waiting for peers, moving data meanwhile */
    uint64_t cpu_ns;          /* of inside_ns: CPU time of the callers, about */
    uint64_t operation_ns;    /* sum of durations, from issue to finish */
    uint64_t timed;           /* operations for which it is known when every rank entered: */
    uint64_t late_ns, transfer_ns; /* of their durations: until the last rank had entered, and after */
    uint64_t trace_events, trace_dropped; /* written or to be written; lost */
    uint64_t progress_cpu_ns; /* CPU time of the process's progress thread so far */
} hk_stats_t;
/* Payload messages and bytes by transport and direction since creation. */
HK_API hk_status hk_stats(hk_comm *comm, hk_stats_t *stats);

/* Marks what the calling thread does between the two, for traces and statistics: "forward", "load batch". Nests; the name is copied, its
 * first 35 bytes kept. Costs a look at a pointer unless HOCKET_TRACE or HOCKET_STATS=1 is set. An end without a begin is HK_INVALID. */
HK_API hk_status hk_span_begin(hk_comm *comm, const char *name);
HK_API hk_status hk_span_end(hk_comm *comm);
/* Writes one line per rank that this rank can see (operation, step of steps, bytes, whom it waits for) to fd. Async-signal-safe. */
HK_API hk_status hk_comm_dump(const hk_comm *comm, int fd);

#ifdef __cplusplus
}
#endif
#endif
