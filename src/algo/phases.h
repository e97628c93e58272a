/* SPDX-License-Identifier: Apache-2.0
 *
 * Halves and scaffolding that several algorithms share: reduce_scatter and all_gather together give all_reduce bit for bit.
 *
 * Reducing phases take `work`, where partial results live (OUT of an all_reduce; temporary blocks of a reduce_scatter, whose
 * input must stay as it is), and `result`, the one block where this rank's part ends complete. Gathering phases start from the
 * own part in OUT and fill the other parts of OUT. */
#ifndef HKI_PHASES_H
#define HKI_PHASES_H

#include "algo/algo.h"

/* ---- Teams: n of the ranks, first, first + step and so on, this rank the me-th. Shares: a block of a buffer for each member. */
typedef struct hki_team { uint32_t n, me, first, step; } hki_team;
typedef struct hki_share { uint8_t buf; uint32_t first, step; } hki_share; /* step 0: one block serves for all in turn */
static inline hki_team hki_everyone(const hki_call *c) { return (hki_team){c->ranks, c->rank, 0, 1}; }
static inline uint32_t hki_member(hki_team t, uint32_t i) { return t.first + i % t.n * t.step; }
static inline hki_share hki_by_rank(uint8_t buf) { return (hki_share){buf, 0, 1}; } /* of P blocks, everyone's */
static inline hki_slice hki_share_of(hki_share s, uint32_t i) { return hki_blocks_of(s.buf, s.first + i * s.step, 1); }

/* ---- Folds in rank order. */
/* dst = fold of a message and a local slice, the lower rank's operand first. */
void hki_fold_by_rank(hki_plan *, const hki_call *, uint32_t peer, hki_slice dst, hki_slice local);
/* dst = one flat fold over all ranks: a message from every other one, `own` in this rank's place. */
void hki_fold_all(hki_plan *, const hki_call *, hki_slice dst, hki_slice own);
/* Each member sends member j's share of `in` to it, which folds the n of them at once into dst. */
void hki_fold_at_owners(hki_plan *, const hki_call *, hki_team, hki_share in, hki_slice dst);

/* ---- Direct. Each member sends its share to all others. */
void hki_tell_all(hki_plan *, hki_team, hki_share out);

/* ---- Ring. `in` is what is folded, partial results live in `work`, which may be the same; this member's share ends in result. */
void hki_ring_reduce_scatter(hki_plan *, hki_team, hki_share in, hki_share work, hki_slice result);
void hki_ring_all_gather(hki_plan *, hki_team, hki_share out);

/* ---- Two levels: a grid of P = hosts * per_host ranks, neighbours on a host or dealt (call.h). Where hosts are not so, or not known, one as
 * square as P allows: nearly every number of ranks has one, and nothing is wrong by it. Block r of P is the share of rank r. */
typedef struct hki_grid { uint32_t hosts, per_host, host, seat, next_host, next_seat; } hki_grid; /* rank = host * next_host + seat * next_seat */
hki_grid hki_grid_of(const hki_call *);
/* Those of this host; those of this seat. */
static inline hki_team hki_housemates(hki_grid g) { return (hki_team){g.per_host, g.seat, g.host * g.next_host, g.next_seat}; }
static inline hki_team hki_same_seat(hki_grid g) { return (hki_team){g.hosts, g.host, g.seat * g.next_seat, g.next_host}; }
/* Of P blocks: those of host h, by seat; those of this seat, by host. */
static inline hki_share hki_of_host(hki_grid g, uint8_t buf, uint32_t h) { return (hki_share){buf, h * g.next_host, g.next_seat}; }
static inline hki_share hki_of_seat(hki_grid g, uint8_t buf) { return (hki_share){buf, g.seat * g.next_seat, g.next_host}; }
/* This host's sum of what belongs to this seat, host by host, into work: a share for each host. */
void hki_grid_gather_sums(hki_plan *, const hki_call *, hki_grid, hki_share work);
/* Where a reduce_scatter keeps them. */
hki_share hki_grid_room(hki_plan *, const hki_call *, hki_grid);
/* From what this seat has in OUT, a block for each host, everybody on this host gets all. */
void hki_grid_spread(hki_plan *, hki_grid);

/* ---- Circulant graph. work: ceil(P / 2) blocks, the i-th for part (rank + i) mod P. */
void hki_circulant_reduce_scatter(hki_plan *, const hki_call *, hki_slice work, hki_slice result);
void hki_circulant_all_gather(hki_plan *, const hki_call *);
/* Longest chain of dependent messages in either phase, at most ceil(log2 P). */
uint32_t hki_circulant_rounds(uint32_t P);

/* ---- Core: the largest power of two of ranks that P holds. With `extras` ranks too many, each of the first `extras` core
 * members speaks for two neighbouring ranks, itself and the next, so that members stand for contiguous rank ranges in order. */
typedef struct hki_core { uint32_t members, bits, extras; } hki_core;
hki_core hki_core_of(uint32_t P);
/* The rank that acts as member v; with v == members: P. Ranks [rank(v), rank(v + 1)) are those that v speaks for. */
static inline uint32_t hki_core_rank(hki_core k, uint32_t v) { return v < k.extras ? 2 * v : v + k.extras; }
/* The member that speaks for `rank`. */
static inline uint32_t hki_core_member(hki_core k, uint32_t rank) { return rank < 2 * k.extras ? rank / 2 : rank - k.extras; }
/* The rank that has no place in the core and is spoken for by the one before it. */
static inline bool hki_core_is_extra(hki_core k, uint32_t rank) { return rank < 2 * k.extras && rank % 2; }

/* Rounds of one exchange over each bit, extras included. A chain of messages that takes part in every round ends at the
 * complement of where it began; so only where both speak for an extra it begins and ends one earlier and later. */
static inline uint32_t hki_core_rounds(hki_core k) { return k.bits + (2 * k.extras > k.members ? 2 : k.extras > 0); }

/* Extras hand in their whole input, members fold it in. Returns where the member's operand stands now: work or the input; an
 * empty slice on extras. */
hki_slice hki_core_enter(hki_plan *, const hki_call *, hki_core, hki_slice work);
/* Members hand the result to the ranks they speak for. */
void hki_core_leave(hki_plan *, const hki_call *, hki_core, hki_slice result);
/* Parts [lo, hi) that member v keeps after `steps` halvings: bit i of v chooses the half in step i. */
typedef struct hki_range { uint32_t lo, hi; } hki_range;
hki_range hki_core_range(hki_core, uint32_t v, uint32_t steps);
/* Reduce-scatter within the core: member v ends with the parts hki_core_range(v, bits) complete in work (P blocks by part). */
void hki_core_halve(hki_plan *, const hki_call *, hki_core, hki_slice work);

/* ---- Binomial tree over v = 0 .. P-1, root 0: the parent of v clears its lowest set bit, so the subtree of a child v + 2^i is
 * the range of 2^i from it on, cut off at P, and v with its children's subtrees in ascending order is a contiguous range. */
static inline uint32_t hki_binomial_parent(uint32_t v) { return v & (v - 1); }
static inline uint32_t hki_binomial_size(uint32_t P, uint32_t v) { return v ? (uint32_t)hki_min(v & -v, P - v) : P; }
/* Fills child[] in ascending order; returns how many. */
uint32_t hki_binomial_children(uint32_t P, uint32_t v, uint32_t child[32]);

#endif
