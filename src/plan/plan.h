/* SPDX-License-Identifier: Apache-2.0
 *
 * The plan: what one rank must do for one call, as a flat list of steps over slices of named buffers. docs/plan.md is the standard.
 *
 * Authors write steps in plain sequential order; that order is the meaning. Two steps may overlap in time iff their slices do not
 * conflict and lane order allows; the executors derive this (hki_plan_hazards). Nobody writes dependencies, rounds or error handling:
 * the first failure of a builder call parks in plan->status and every later call does nothing.
 *
 * A plan says nothing of bytes: it is written once over blocks and applied to K windows, window c being elements [c w, (c+1) w) of
 * every block (a block that has ended moves nothing).
 *
 * Messages carry the blocks of their slice one after another. Transfers in which every block is empty are dropped by the builder at
 * both ends; tokens never are. */
#ifndef HKI_PLAN_H
#define HKI_PLAN_H

#include "plan/call.h"

enum { HKI_IN, HKI_OUT, HKI_TEMP, HKI_MSG, HKI_BUFS = HKI_MSG };

/* Blocks first .. first + n - 1 of a buffer; IN and OUT wrap around modulo their number of blocks. With buf == HKI_MSG: the next
 * message from rank `first` (as a source of a fold only). n == 0 is the empty slice. */
typedef struct hki_slice { uint8_t buf; uint32_t first, n; } hki_slice;

typedef enum hki_step_kind { HKI_STEP_SEND, HKI_STEP_RECV, HKI_STEP_REDUCE, HKI_STEP_COPY, HKI_STEP_POST, HKI_STEP_AWAIT } hki_step_kind;

typedef struct hki_step {
    uint8_t kind;
    bool finish;         /* REDUCE, COPY: the value is complete here, apply the reduction's finish */
    uint32_t peer;       /* RECV, AWAIT: from whom */
    uint32_t token;      /* POST, AWAIT */
    hki_slice slice;     /* SEND: what; RECV, REDUCE, COPY: where to */
    uint32_t src, nsrc;  /* REDUCE, COPY: plan->srcs[src .. src + nsrc) in fold order */
    uint32_t to, nto;    /* SEND, POST, or any step after fusing: plan->peers[to .. to + nto) get the slice */
} hki_step;

typedef struct hki_blocks { uint32_t n, room; size_t *off, *len; } hki_blocks; /* elements; room: entries allocated */

/* Steps that must precede step i: pred[at[i] .. at[i + 1]). Filled by hki_plan_hazards. */
typedef struct hki_hazards { uint32_t *at, *pred; uint32_t npred, room; bool ready; } hki_hazards;

typedef struct hki_plan {
    hk_status status;           /* first builder error, then sticky */
    const char *error;          /* static text of it */
    hki_call call;              /* count arrays are not kept (NULL): the layouts below are */
    const char *algorithm;
    uint32_t span;              /* most blocks in one transfer: messages hold at most span * w elements */
    hki_step *steps;
    uint32_t nsteps, steps_room;
    hki_slice *srcs;
    uint32_t nsrcs, srcs_room;
    uint32_t *peers;
    uint32_t npeers, peers_room;
    uint32_t tokens;
    hki_blocks blocks[HKI_BUFS]; /* IN, OUT, TEMP; TEMP offsets are those of window width temp_w */
    size_t longest;             /* elements of the longest block: K = ceil(longest / w) */
    uint32_t inline_slots;      /* slots an in-order walk needs; 0 = unknown */
    bool wrote;                 /* the last builder call added a step */
    bool swaps;                 /* see hki_plan_swaps */
    char name[32];              /* of a parsed plan: what algorithm points to */
    hki_hazards hazards;
} hki_plan;

/* ---- Life: storage is recycled, so a plan can be built again in the same memory without allocating. */
void hki_plan_init(hki_plan *);
void hki_plan_fini(hki_plan *);
/* Starts building for `call`; its arrays are read now and not kept. */
void hki_plan_begin(hki_plan *, const hki_call *call, const char *algorithm, uint32_t span);
/* Ends building: drops empty transfers and copies onto themselves, rewrites for in place, marks where the finish is applied. */
hk_status hki_plan_end(hki_plan *);

/* ---- Slices */
static inline hki_slice hki_blocks_of(uint8_t buf, uint32_t first, uint32_t n) { return (hki_slice){buf, first, n}; }
static inline hki_slice hki_in(const hki_call *c) { return hki_blocks_of(HKI_IN, 0, hki_in_blocks(c)); }
static inline hki_slice hki_out(const hki_call *c) { return hki_blocks_of(HKI_OUT, 0, hki_out_blocks(c)); }
/* Part i of P; P must be the number of blocks of that buffer (see call.h). */
static inline hki_slice hki_in_part(const hki_call *c, uint32_t P, uint32_t i)
{
    return hki_blocks_of(HKI_IN, i, P == hki_in_blocks(c) && i < P ? 1 : UINT32_MAX);
}
static inline hki_slice hki_out_part(const hki_call *c, uint32_t P, uint32_t i)
{
    return hki_blocks_of(HKI_OUT, i, P == hki_out_blocks(c) && i < P ? 1 : UINT32_MAX);
}
/* Parts first .. first + n - 1, wrapping around. */
static inline hki_slice hki_in_parts(const hki_call *c, uint32_t first, uint32_t n)
{
    return hki_blocks_of(HKI_IN, first % hki_in_blocks(c), n);
}
static inline hki_slice hki_out_parts(const hki_call *c, uint32_t first, uint32_t n)
{
    return hki_blocks_of(HKI_OUT, first % hki_out_blocks(c), n);
}
/* The message that comes next from `peer`, as a source of hki_plan_reduce. */
static inline hki_slice hki_from(uint32_t peer) { return hki_blocks_of(HKI_MSG, peer, 1); }
/* Blocks i .. i + n - 1 of a slice. */
static inline hki_slice hki_sub(hki_slice s, uint32_t i, uint32_t n) { return hki_blocks_of(s.buf, s.first + i, n); }
/* New temporary blocks, as long as those of `like`. */
hki_slice hki_plan_temp(hki_plan *, hki_slice like);

/* ---- Steps, in sequential order */
void hki_plan_send(hki_plan *, uint32_t peer, hki_slice);
/* One message, written once, to each of peers[0..n). */
void hki_plan_multicast(hki_plan *, const uint32_t *peers, uint32_t n, hki_slice);
/* The same to every other rank, starting with the next one. */
void hki_plan_send_all(hki_plan *, hki_slice);
void hki_plan_recv(hki_plan *, uint32_t peer, hki_slice);
void hki_plan_copy(hki_plan *, hki_slice dst, hki_slice src);
/* dst = fold(src[0], src[1], ...): list order is association order. Sources are slices or hki_from(peer). */
void hki_plan_reduce(hki_plan *, hki_slice dst, const hki_slice *src, uint32_t n);
/* dst = fold(message from peer, local). */
void hki_plan_recv_reduce(hki_plan *, uint32_t peer, hki_slice dst, hki_slice local);
/* dst = fold(local, message from peer). */
void hki_plan_reduce_recv(hki_plan *, uint32_t peer, hki_slice dst, hki_slice local);
/* The value written by the fold or copy just before is complete although it does not end in this rank's output. Nothing if that
 * step was dropped. */
void hki_plan_finish(hki_plan *);
/* A claim, checked by tests, about blocks that this rank sends to one rank and later receives from it (in place): what it receives was
 * sent after that rank had read what was sent. Only then may such a block be lent: a wait for its reader cannot be a circle. */
void hki_plan_swaps(hki_plan *);
/* Tokens move no bytes and take part in hazards: post reads token t, await writes it. */
void hki_plan_post(hki_plan *, uint32_t token, uint32_t peer);
void hki_plan_await(hki_plan *, uint32_t token, uint32_t peer);

/* ---- Passes and derived facts */
/* A step whose slice the very next step sends becomes one step that also stores to the message. Values and lane order stay. */
void hki_plan_fuse(hki_plan *);
/* Derives plan->hazards: per block, write after read or write, read after write; tokens likewise. */
hk_status hki_plan_hazards(hki_plan *);
/* Elements of a slice over all windows (0 for a message). */
size_t hki_slice_elems(const hki_plan *, hki_slice);
/* Block table entry of block i of a slice. */
static inline uint32_t hki_slice_block(const hki_plan *p, hki_slice s, uint32_t i)
{
    const uint32_t b = s.first + i, n = p->blocks[s.buf].n;
    return b < n ? b : b - n;
}
/* Payload messages and elements this rank sends. */
void hki_plan_sent(const hki_plan *, uint64_t *messages, uint64_t *elems);

#endif
