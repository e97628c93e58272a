/* SPDX-License-Identifier: Apache-2.0
 *
 * A call: what one rank asked for, with everything a plan may depend on, and the blocks its buffers consist of.
 *
 * Buffers are divided into *blocks*, the units in which algorithms speak. Block b has the same number of elements on every rank that
 * has it. Which blocks there are follows from the operation:
 *
 *     operation                                     input blocks        output blocks
 *     all_reduce, reduce, broadcast                 P parts of count    P parts of count
 *     all_gather[_v], gather                        1 (own)             P
 *     reduce_scatter[_v], scatter                   P                   1 (own)
 *     all_to_all[_v]                                P                   P
 *     barrier                                       none                none
 *
 * Parts: count / P elements each if P divides count, so that reduce_scatter and all_gather meet all_reduce exactly; otherwise cut
 * at multiples of 64 bytes, the last part taking the rest. Parts depend on (count, ranks, element size) only. */
#ifndef HKI_CALL_H
#define HKI_CALL_H

#include "base/base.h"

typedef enum hki_op {
    HKI_ALL_REDUCE, HKI_ALL_GATHER, HKI_REDUCE_SCATTER, HKI_BROADCAST, HKI_REDUCE, HKI_GATHER, HKI_SCATTER, HKI_ALL_TO_ALL,
    HKI_ALL_GATHER_V, HKI_REDUCE_SCATTER_V, HKI_ALL_TO_ALL_V, HKI_BARRIER,
    HKI_COLLECTIVES,
    HKI_SEND = HKI_COLLECTIVES, HKI_RECV, HKI_GROUP,
    HKI_OPS
} hki_op;
#define HKI_OP_BIT(op) (1u << (op))

typedef struct hki_call {
    hki_op op;
    uint32_t ranks, rank, root;
    hk_dtype dtype;
    hki_reduction red;      /* operations that reduce */
    hk_redop redop;         /* as given, for messages and fingerprints */
    size_t count;           /* as in the public call; 0 for the uneven forms */
    const size_t *in_counts, *in_displs;   /* uneven forms: P entries where that side has P blocks; displs NULL = packed */
    const size_t *out_counts, *out_displs;
    bool in_place;
    uint32_t per_host;      /* how many ranks each host has, if all have as many, several, in one of two orders; else 0 */
    bool dealt;             /* the orders: neighbours, or dealt one by one: rank r is on host r modulo the number of hosts */
    uint32_t slots;         /* messages that a rank can send before any is read, the same on all ranks; less than 2 counts as 2 */
} hki_call;

const char *hki_op_name(hki_op op);                 /* "all_reduce" */
bool hki_op_parse(const char *name, hki_op *op);
bool hki_op_reduces(hki_op op);
bool hki_op_rooted(hki_op op);
bool hki_op_uneven(hki_op op);
const char *hki_redop_name(hk_redop op);            /* "sum"; "premul", "user" for handles */

uint32_t hki_in_blocks(const hki_call *);
uint32_t hki_out_blocks(const hki_call *);
/* Fills off[b] and len[b] (elements) of the input's or output's blocks. */
void hki_in_layout(const hki_call *, size_t *off, size_t *len);
void hki_out_layout(const hki_call *, size_t *off, size_t *len);
/* Part i of `count` elements cut in P. */
void hki_part(size_t count, uint32_t P, size_t elem_bytes, uint32_t i, size_t *off, size_t *len);

#endif
