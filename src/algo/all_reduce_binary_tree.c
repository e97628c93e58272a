/* SPDX-License-Identifier: Apache-2.0
 *
 * Binary-tree all-reduce: fold up the tree, multicast down. 2 floor(log2 P) rounds, whole vectors; windows pipeline it, and then
 * an inner rank's 3n bytes out are what it costs: T -> 3n b + 2 log2 P a. The tree is in order: a node is the middle of the rank
 * range that its subtree covers, its children are the middles of the ranges left and right, so that every fold takes
 * neighbouring ranges in rank order. Sanders, Speck & Traff, Parallel Computing 35(12), 2009. */
#include "algo/phases.h"

typedef struct node { uint32_t parent, left, right; } node;
#define NONE UINT32_MAX

/* This rank's place: descend from the whole range to the one it is the middle of. */
static node place(uint32_t P, uint32_t me)
{
    node at = {.parent = NONE, .left = NONE, .right = NONE};
    uint32_t lo = 0, hi = P, mid;
    while ((mid = (lo + hi) / 2) != me) {
        at.parent = mid;
        if (me < mid) hi = mid;
        else lo = mid + 1;
    }
    if (lo < me) at.left = (lo + me) / 2;
    if (me + 1 < hi) at.right = (me + 1 + hi) / 2;
    return at;
}

static void emit(hki_plan *p, const hki_call *c)
{
    const node at = place(c->ranks, c->rank);
    hki_slice part[3];
    uint32_t child[2], parts = 0, children = 0;

    if (at.left != NONE) part[parts++] = hki_from(child[children++] = at.left);
    part[parts++] = hki_in(c);
    if (at.right != NONE) part[parts++] = hki_from(child[children++] = at.right);

    if (children) hki_plan_reduce(p, hki_out(c), part, parts);
    if (at.parent != NONE) {
        hki_plan_send(p, at.parent, children ? hki_out(c) : hki_in(c));
        hki_plan_recv(p, at.parent, hki_out(c));
    }
    hki_plan_multicast(p, child, children, hki_out(c));
}

static hki_cost cost(const hki_call *c)
{
    const uint64_t P = c->ranks, n = c->count, most = P < 3 ? 1 : P < 6 ? 2 : 3; /* two children and a parent */
    return (hki_cost){.rounds = 2 * hki_log2_floor(c->ranks), .messages = most, .busiest = most * n, .total = 2 * (P - 1) * n};
}

const hki_algo hki_algo_all_reduce_binary_tree = {
    .name = "binary_tree",
    .summary = "up and down an in-order binary tree: few rounds, pipelined by windows",
    .ops = HKI_OP_BIT(HKI_ALL_REDUCE),
    .span = HKI_SPAN_ALL,
    .traits = HKI_RANK_ORDER,
    .emit = emit,
    .cost = cost,
};
