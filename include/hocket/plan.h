/* SPDX-License-Identifier: Apache-2.0
 *
 * What the `hocket` command and other tools may ask of the library. NOT STABLE: it changes with any release, without notice.
 *
 * Lists are read by index: hk_tool_X_at(i, &x) fills x and returns 1, or returns 0 past the end. Texts are static, and never NULL
 * unless it says so. */
#ifndef HOCKET_PLAN_H
#define HOCKET_PLAN_H

#include <hocket/hocket.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- What this build can do --------------------------------------------------------------------------------------- */

/* Operations; the index is the number of the operation in hk_tool_now.op. */
typedef struct hk_tool_op {
    const char *name;   /* "all_reduce" */
    int collective;     /* 0: send, recv, group */
    int reduces, rooted, uneven;
} hk_tool_op;
HK_API int hk_tool_op_at(size_t i, hk_tool_op *op);

/* Algorithms, one entry for each operation that an algorithm can do, in the order of operations. */
typedef struct hk_tool_algo {
    const char *op, *name, *summary;
    const char *span;   /* most blocks in one message: "all", "half", "one" */
    int rank_order;     /* combines neighbouring ranks left to right: right for operators that do not commute */
    int folds;          /* 1: each result is one fold over all ranks, and rounds once; 2: a fold of folds, twice; 0: not stated */
} hk_tool_algo;
HK_API int hk_tool_algo_at(size_t i, hk_tool_algo *algo);

typedef struct hk_tool_transport { const char *name, *summary; } hk_tool_transport;
HK_API int hk_tool_transport_at(size_t i, hk_tool_transport *transport);

/* Instruction sets of the payload kernels. */
typedef struct hk_tool_kernel {
    const char *name;
    int usable;         /* this CPU has it */
    int in_use;         /* chosen by this process: the best, or HOCKET_ISA */
} hk_tool_kernel;
HK_API int hk_tool_kernel_at(size_t i, hk_tool_kernel *kernel);

/* Environment variables that the library reads. */
typedef struct hk_tool_knob {
    const char *name, *values, *meaning;
    const char *value;  /* set to this here; NULL: unset */
} hk_tool_knob;
HK_API int hk_tool_knob_at(size_t i, hk_tool_knob *knob);

typedef struct hk_tool_status { hk_status status; const char *name, *meaning, *cause, *remedy; } hk_tool_status;
HK_API int hk_tool_status_at(size_t i, hk_tool_status *status);

/* ---- Choices ------------------------------------------------------------------------------------------------------ */

/* The algorithm that a call of `op` with these arguments takes on this communicator (forced or chosen), or NULL. */
HK_API const char *hk_tool_algorithm(hk_comm *comm, const char *op, size_t count, hk_dtype dtype, hk_redop redop);

/* ---- Plans --------------------------------------------------------------------------------------------------------- */

#define HK_TOOL_TEXT 256
#define HK_TOOL_ALL_RANKS UINT32_MAX

/* A call as all ranks make it. count: as in the call; of uneven forms: the length of every block. */
typedef struct hk_tool_call {
    const char *op, *algorithm;
    uint32_t ranks, root;
    size_t count;
    hk_dtype dtype;
    hk_redop redop;       /* HK_SUM .. HK_BXOR */
    int in_place;
    uint32_t per_host;    /* ranks a host; 0: not known */
    int dealt;            /* they are not neighbours: rank r is on host r modulo the number of hosts */
} hk_tool_call;

/* The plans of all ranks of one call (or of one rank, which then can be printed only). */
typedef struct hk_tool_plans hk_tool_plans;
/* NULL, and why, if the call cannot be, has no such algorithm, or the algorithm objects. */
HK_API hk_tool_plans *hk_tool_plans_build(const hk_tool_call *call, uint32_t rank, char error[HK_TOOL_TEXT]);
/* From text (docs/plan.md) that holds one plan of each rank, in any order. */
HK_API hk_tool_plans *hk_tool_plans_read(const char *text, size_t len, char error[HK_TOOL_TEXT]);
HK_API void hk_tool_plans_free(hk_tool_plans *plans);
/* The call, its texts valid as long as the plans; steps: of the longest plan; blocks: of a rank's output. */
HK_API void hk_tool_plans_shape(const hk_tool_plans *plans, hk_tool_call *call, uint32_t *steps, uint32_t *blocks);
/* One rank's plan as text; returns its length, writes what fits (as snprintf). window: elements, 0 for none, with depth. */
HK_API size_t hk_tool_plans_print(const hk_tool_plans *plans, uint32_t rank, size_t window, unsigned depth, char *buf, size_t cap);

/* What the checker proves, in the order in which it does. */
typedef struct hk_tool_property { const char *name, *meaning; } hk_tool_property;
HK_API int hk_tool_property_at(size_t i, hk_tool_property *property);

/* Messages and elements: sent by the rank that sends most, and total over all ranks. */
typedef struct hk_tool_cost { uint64_t rounds, messages, busiest, total; } hk_tool_cost;

typedef struct hk_tool_report {
    hk_status status;     /* HK_OK: proven. HK_INVALID: finding tells rank, step and property. HK_NO_MEMORY */
    char finding[HK_TOOL_TEXT];
    uint64_t proven;      /* bit i: property i */
    hk_tool_cost cost;    /* measured */
    uint32_t slots;       /* that a walk in list order needs; 0: no number is enough */
    int rendezvous;       /* messages may be passed by reference */
    int rank_order, fold_once;
} hk_tool_report;
HK_API void hk_tool_plans_check(hk_tool_plans *plans, hk_tool_report *report);
/* The formula that stands beside the algorithm, right where all blocks are equally long. 0: none is stated. */
HK_API int hk_tool_cost_of(const hk_tool_call *call, hk_tool_cost *cost);
/* Bit r of sets[rank * blocks + b]: rank r's input is in output block b of `rank` after its first `steps` steps. Up to 64 ranks. */
HK_API hk_status hk_tool_plans_hold(const hk_tool_plans *plans, uint32_t steps, uint64_t *sets);

/* ---- The machine, and units ---------------------------------------------------------------------------------------- */

/* CPUs this process may use: affinity and cgroup quota. */
HK_API int hk_tool_cpus(void);
/* "5", "300ms", "2min" as microseconds; "1gbit", "125M" as bytes a second: as the environment variables read them. 1, or 0 if the
 * text is none. */
HK_API int hk_tool_time(const char *text, uint64_t *us);
HK_API int hk_tool_rate(const char *text, uint64_t *bytes_per_s);

/* ---- What a rank is doing ------------------------------------------------------------------------------------------ */

/* The launcher makes one sealed memory file of such records, one for each of its ranks, and hands it down: HOCKET_NOW_FD is its
 * descriptor, HOCKET_NOW_SLOT the index of the rank's own record. The library writes, the launcher only reads. Nothing orders the
 * fields: a reader may see two moments mixed. */
enum { HK_NOW_OUTSIDE, HK_NOW_RUNNING, HK_NOW_WAITING };
#define HK_NOW_NOBODY UINT32_MAX
typedef struct hk_tool_now {
    uint64_t seq;         /* operations entered; 0: none yet */
    uint64_t finished;    /* operations finished */
    uint64_t count, bytes; /* of the operation */
    uint32_t op, dtype;
    uint32_t step, steps; /* of its plan */
    uint32_t waiting_for; /* rank, or HK_NOW_NOBODY */
    uint32_t state;       /* HK_NOW_* */
    uint64_t since_us;    /* CLOCK_MONOTONIC: when this state began */
    char pad[64];
} hk_tool_now;

/* ---- Traces --------------------------------------------------------------------------------------------------------- */

/* A file that one rank of one communicator wrote under HOCKET_TRACE: who wrote it, and its events in the order in which they ended. */
typedef struct hk_tool_trace {
    uint64_t uid;         /* the communicator, equal on its ranks */
    uint64_t owner;       /* the process (or thread) that is this rank, equal in its files of other communicators */
    uint64_t clock;       /* ranks with equal ones read one clock */
    uint64_t from_ns, to_ns; /* CLOCK_MONOTONIC: communicator made and destroyed */
    uint32_t rank, ranks;
    int32_t pid;
    char host[48];
    size_t events;
    uint64_t dropped;     /* events that could not be written */
    int whole;            /* 0: the end is missing; to_ns and dropped are 0 */
} hk_tool_trace;

enum { HK_EVENT_OPERATION = 1, HK_EVENT_SPAN, HK_EVENT_CALL, HK_EVENT_ISSUE, HK_EVENT_WAIT, HK_EVENT_SENT };
typedef struct hk_tool_event {
    uint32_t kind;        /* HK_EVENT_*: an operation, a user's span, a call that blocked, a call that did not, a wait in a call, a link's total */
    uint32_t thread;      /* of the caller */
    uint64_t begin_ns, end_ns;
    uint64_t started_ns;  /* operation: its turn came; begin_ns: issued */
    uint64_t seq;         /* of an operation, or a call's; sent: messages */
    uint64_t bytes;       /* of an operation; sent: bytes */
    uint32_t op, dtype;   /* operation: as hk_tool_op_at */
    int32_t root, status;
    char name[40];        /* span: the user's; call: which; operation: algorithm; sent: transport. UTF-8 is not checked */
} hk_tool_event;

/* Reads the head and proves every event; 0: why not is in error. partial: of a file whose end is missing or bad, what comes before. */
HK_API int hk_tool_trace_read(const void *bytes, size_t len, int partial, hk_tool_trace *trace, char error[HK_TOOL_TEXT]);
/* Event i of [0, trace->events) of a file that was read; 0: there is none. */
HK_API int hk_tool_trace_event(const void *bytes, size_t len, size_t i, hk_tool_event *event);

#ifdef __cplusplus
}
#endif
#endif
