/* SPDX-License-Identifier: Apache-2.0
 *
 * What the parts of the checker share: the graph over (rank, step) of one call. */
#ifndef HKI_CHECK_GRAPH_H
#define HKI_CHECK_GRAPH_H

#include "plan/check.h"

#define HKI_NOBODY UINT32_MAX

typedef struct hki_message { uint32_t from, to, dst; } hki_message; /* sending and reading node, reading rank */

/* Nodes are numbered rank by rank, step by step. A message is one (sending step, peer); a node's messages and readings are
 * [sent_at[n], sent_at[n + 1]) of msgs and [read_at[n], read_at[n + 1]) of reads, the latter in the order of the
 * step's sources. */
typedef struct hki_graph {
    hki_plan *const *plans;
    hki_check_report *report;
    hk_status status;           /* the first failure, then sticky */
    uint32_t ranks, nodes, nmsgs, nreads;
    uint32_t *first;            /* per rank: its first node; ranks + 1 entries */
    uint32_t *rank_of;          /* per node */
    uint32_t *sent_at, *read_at, *reads;
    hki_message *msgs;
    uint32_t *seq_first, *seq, *seq_of; /* a rank's sending nodes in list order; of a sending node, its place in seq */
    uint32_t *order;            /* nodes in an order that keeps all edges */
    void *owned[48];
    uint32_t nowned;
} hki_graph;

/* Memory that lives as long as the graph; NULL (and the failure recorded) if there is none. */
void *hki_graph_alloc(hki_graph *, size_t bytes);
/* Records a violation by a step of a rank (or HKI_NOBODY); the first one stays. Always false. */
bool hki_graph_blame(hki_graph *, hki_property, uint32_t rank, uint32_t step, const char *format, ...)
    __attribute__((format(printf, 5, 6)));

static inline const hki_step *hki_graph_step(const hki_graph *g, uint32_t node)
{
    const uint32_t r = g->rank_of[node];
    return &g->plans[r]->steps[node - g->first[r]];
}
/* The same for a node. */
#define hki_graph_blame_node(g, property, node, ...) \
    hki_graph_blame(g, property, (g)->rank_of[node], (node) - (g)->first[(g)->rank_of[node]], __VA_ARGS__)
/* "OUT[2..4)" */
const char *hki_slice_text(hki_slice, char text[48]);

/* The passes, in this order; false: the graph's status tells why. */
bool hki_check_form(hki_graph *);                   /* check_form.c */
bool hki_check_hazards(hki_graph *);                /* check_form.c */
bool hki_graph_match(hki_graph *);                  /* check_graph.c: pairs messages with readings */
bool hki_graph_order(hki_graph *, uint32_t slots);  /* check_graph.c: fills order */
void hki_graph_walk(hki_graph *);                   /* check_graph.c: measures inline_slots, rendezvous */
bool hki_check_values(hki_graph *);                 /* check_value.c: runs the graph symbolically, compares the results */
bool hki_check_barrier(hki_graph *);                /* check.c */

#endif
