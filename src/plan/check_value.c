/* SPDX-License-Identifier: Apache-2.0
 * Values as trees. A tree is kept once however often it is made, so equal numbers are equal trees. */
#include "plan/check_graph.h"

#include <string.h>

/* The value of a block: an input block (leaf), a fold of others in order, or a finished one. 0 is "never written". */
typedef uint32_t value;

typedef struct tree {
    uint64_t hash, sum;         /* sum: over the leaves, whatever their order */
    uint32_t leaves, lo, block; /* lo: rank of the first leaf; block: of all leaves, or HKI_NOBODY */
    uint32_t child, n;          /* fold: kids[child .. child + n) */
    uint32_t folds;             /* one within the other: 0 for a leaf */
    bool in_order;              /* leaves are those of ranks lo, lo + 1, .. */
    bool finished;
} tree;

typedef struct world {
    hki_graph *g;
    bool finishes;              /* the call's reduction has a finish */
    tree *trees;
    value *kids, *table;        /* table: open addressing, a power of two of entries */
    uint32_t ntrees, trees_room, nkids, kids_room, table_size;
    value *cells;               /* all ranks' blocks */
    uint32_t *cell_at;          /* per (rank, buffer): its first cell */
    value *payload;             /* of all sending nodes, one value a block that is not empty */
    uint32_t *payload_at;
    value *operands;            /* of one fold */
} world;

/* ---- Trees ---- */

static bool grow(world *w, void **v, uint32_t used, uint32_t more, uint32_t *room, size_t entry)
{
    if (used + more <= *room) return true;
    const uint32_t want = (uint32_t)hki_max(used + more, 2 * (size_t)*room);
    void *grown = hki_grow(*v, used * entry, want * entry);
    if (!grown) return w->g->status = HK_NO_MEMORY, false;
    *v = grown;
    *room = want;
    return true;
}

static bool rehash(world *w)
{
    const uint32_t size = 2 * w->table_size;
    value *table = hki_alloc(size * sizeof *table);
    if (!table) return w->g->status = HK_NO_MEMORY, false;
    for (value v = 1; v < w->ntrees; v++) {
        uint32_t at = (uint32_t)w->trees[v].hash & (size - 1);
        while (table[at]) at = (at + 1) & (size - 1);
        table[at] = v;
    }
    hki_free(w->table);
    w->table = table;
    w->table_size = size;
    return true;
}

/* The tree like t with kids kid[0 .. t->n): an old one if there is, else a new one. 0 without memory. */
static value intern(world *w, const tree *t, const value *kid)
{
    uint32_t at = (uint32_t)t->hash & (w->table_size - 1);
    for (; w->table[at]; at = (at + 1) & (w->table_size - 1)) {
        const tree *old = &w->trees[w->table[at]];
        if (old->hash == t->hash && old->n == t->n && old->finished == t->finished && old->sum == t->sum &&
            old->leaves == t->leaves && !memcmp(w->kids + old->child, kid, t->n * sizeof *kid))
            return w->table[at];
    }
    if (!grow(w, (void **)&w->trees, w->ntrees, 1, &w->trees_room, sizeof *w->trees)) return 0;
    if (!grow(w, (void **)&w->kids, w->nkids, t->n, &w->kids_room, sizeof *w->kids)) return 0;
    const value v = w->table[at] = w->ntrees++;
    w->trees[v] = *t;
    w->trees[v].child = w->nkids;
    if (t->n) memcpy(w->kids + w->nkids, kid, t->n * sizeof *kid);
    w->nkids += t->n;
    return w->ntrees < w->table_size / 2 || rehash(w) ? v : 0;
}

static uint64_t leaf_hash(uint32_t rank, uint32_t block) { return hki_mix(0, (uint64_t)rank << 32 | block); }

static value leaf(world *w, uint32_t rank, uint32_t block)
{
    const uint64_t id = leaf_hash(rank, block);
    const tree t = {.hash = id, .sum = id, .leaves = 1, .lo = rank, .block = block, .in_order = true};
    return intern(w, &t, NULL);
}

static value fold(world *w, const value *kid, uint32_t n)
{
    if (n == 1) return kid[0];
    tree t = w->trees[kid[0]];
    t.hash = n;
    t.n = n;
    t.sum = t.leaves = 0;
    for (uint32_t i = 0; i < n; i++) {
        const tree *k = &w->trees[kid[i]];
        t.hash = hki_mix(t.hash, kid[i]);
        t.in_order &= k->in_order && k->lo == t.lo + t.leaves;
        t.folds = (uint32_t)hki_max(t.folds, k->folds);
        t.finished |= k->finished;
        if (k->block != t.block) t.block = HKI_NOBODY;
        t.sum += k->sum;
        t.leaves += k->leaves;
    }
    t.folds++;
    return intern(w, &t, kid);
}

static value finish(world *w, value v)
{
    tree t = w->trees[v];
    t.hash = hki_mix(t.hash, UINT64_MAX);
    t.finished = true;
    t.n = 1;
    return intern(w, &t, &v);
}

/* ---- Buffers ---- */

/* Whether a rank has a buffer at all, and for in place which one stands for both. */
static bool has_in(const hki_call *c) { return (c->op != HKI_BROADCAST && c->op != HKI_SCATTER) || c->rank == c->root; }
static bool has_out(const hki_call *c) { return (c->op != HKI_REDUCE && c->op != HKI_GATHER) || c->rank == c->root; }
static bool out_is_smaller(const hki_plan *p) { return p->blocks[HKI_IN].n > p->blocks[HKI_OUT].n; }
static uint32_t own_block(const hki_call *c) { return c->op == HKI_GATHER || c->op == HKI_SCATTER ? c->root : c->rank; }

static bool exists(const hki_plan *p, uint8_t buf)
{
    const hki_call *c = &p->call;
    if (buf == HKI_TEMP) return true;
    if (!c->in_place) return buf == HKI_IN ? has_in(c) : has_out(c);
    if (out_is_smaller(p)) return buf == HKI_IN && has_in(c);
    /* One buffer for both: a reduce's other ranks may pass theirs twice, and it stays an input. */
    return buf == HKI_OUT && (has_out(c) || (c->op == HKI_REDUCE && has_in(c)));
}

static bool writable(const hki_plan *p, uint8_t buf, uint32_t block)
{
    const hki_call *c = &p->call;
    if (buf == HKI_TEMP) return true;
    if (c->in_place && out_is_smaller(p)) return buf == HKI_IN && has_in(c) && block == own_block(c);
    return buf == HKI_OUT && has_out(c);
}

static value *cell(world *w, uint32_t r, uint8_t buf, uint32_t block)
{
    return &w->cells[w->cell_at[r * HKI_BUFS + buf] + block];
}

/* Inputs stand in IN, in place in the buffer that is both. */
static bool fill_inputs(world *w, uint32_t r)
{
    const hki_plan *p = w->g->plans[r];
    const uint32_t n = p->blocks[HKI_IN].n;
    const bool in_out = p->call.in_place && !out_is_smaller(p);
    if (!has_in(&p->call)) return true;
    for (uint32_t b = 0; b < n; b++) {
        const value v = leaf(w, r, b);
        if (!v) return false;
        *cell(w, r, in_out ? HKI_OUT : HKI_IN, in_out && p->blocks[HKI_OUT].n > n ? own_block(&p->call) : b) = v;
    }
    return true;
}

static bool open(world *w)
{
    hki_graph *g = w->g;
    uint32_t cells = 0, payload = 0, sources = 1;
    if (!(w->cell_at = hki_graph_alloc(g, (g->ranks * HKI_BUFS + 1) * sizeof *w->cell_at))) return false;
    if (!(w->payload_at = hki_graph_alloc(g, (g->nodes + 1) * sizeof *w->payload_at))) return false;
    for (uint32_t r = 0; r < g->ranks; r++)
        for (int b = 0; b < HKI_BUFS; b++) {
            w->cell_at[r * HKI_BUFS + b] = cells;
            cells += g->plans[r]->blocks[b].n;
        }
    for (uint32_t n = 0; n < g->nodes; n++) {
        const hki_step *s = hki_graph_step(g, n);
        w->payload_at[n] = payload;
        if (s->nto && s->kind < HKI_STEP_POST) payload += s->slice.n;
        sources = (uint32_t)hki_max(sources, s->nsrc);
    }
    w->cells = hki_graph_alloc(g, (cells + 1) * sizeof *w->cells);
    w->payload = hki_graph_alloc(g, (payload + 1) * sizeof *w->payload);
    w->operands = hki_graph_alloc(g, sources * sizeof *w->operands);
    w->ntrees = 1;
    w->trees_room = w->kids_room = 2 * cells + 64;
    w->table_size = 2u << hki_log2_ceil(w->trees_room);
    w->trees = hki_alloc(w->trees_room * sizeof *w->trees);
    w->kids = hki_alloc(w->kids_room * sizeof *w->kids);
    w->table = hki_alloc(w->table_size * sizeof *w->table);
    if (!w->trees || !w->kids || !w->table) g->status = HK_NO_MEMORY;
    for (uint32_t r = 0; r < g->ranks && !g->status; r++)
        if (!fill_inputs(w, r)) g->status = HK_NO_MEMORY;
    return !g->status;
}

/* ---- Steps ---- */

/* The value that step n reads from block b of a buffer. */
static value load(world *w, uint32_t n, uint8_t buf, uint32_t block)
{
    const uint32_t r = w->g->rank_of[n];
    const hki_slice s = hki_blocks_of(buf, block, 1);
    char text[48];
    if (!exists(w->g->plans[r], buf))
        return hki_graph_blame_node(w->g, HKI_CHECK_BUFFERS, n, "this rank has no %s", hki_slice_text(s, text));
    const value v = *cell(w, r, buf, block);
    if (!v) hki_graph_blame_node(w->g, HKI_CHECK_BUFFERS, n, "reads %s before it is written", hki_slice_text(s, text));
    return v;
}

static bool store(world *w, uint32_t n, uint8_t buf, uint32_t block, value v)
{
    const uint32_t r = w->g->rank_of[n];
    char text[48];
    if (!v) return false;
    if (!writable(w->g->plans[r], buf, block))
        return hki_graph_blame_node(w->g, HKI_CHECK_BUFFERS, n, "may not write %s",
                                    hki_slice_text(hki_blocks_of(buf, block, 1), text));
    *cell(w, r, buf, block) = v;
    return true;
}

/* The i-th block of the step's slice, full[i'] being the same counted without empty ones. */
static value computed(world *w, uint32_t n, const hki_step *s, uint32_t i, uint32_t full)
{
    const hki_graph *g = w->g;
    const hki_plan *p = g->plans[g->rank_of[n]];
    uint32_t read = g->read_at[n];
    if (s->kind == HKI_STEP_RECV) return w->payload[w->payload_at[g->msgs[g->reads[read]].from] + full];
    for (uint32_t k = 0; k < s->nsrc; k++) {
        const hki_slice from = p->srcs[s->src + k];
        const value v = from.buf == HKI_MSG ? w->payload[w->payload_at[g->msgs[g->reads[read++]].from] + full]
                                            : load(w, n, from.buf, hki_slice_block(p, from, i));
        if (!v) return 0;
        if (w->finishes && s->nsrc > 1 && w->trees[v].finished)
            return hki_graph_blame_node(w->g, HKI_CHECK_FINISH, n, "folds a value that was finished before");
        w->operands[k] = v;
    }
    const value v = fold(w, w->operands, s->nsrc);
    if (!v || !s->finish || !w->finishes) return v;
    if (w->trees[v].finished) return hki_graph_blame_node(w->g, HKI_CHECK_FINISH, n, "finishes a value a second time");
    return finish(w, v);
}

static bool run_step(world *w, uint32_t n)
{
    const hki_graph *g = w->g;
    const hki_plan *p = g->plans[g->rank_of[n]];
    const hki_step *s = hki_graph_step(g, n);
    if (s->kind >= HKI_STEP_POST) return true;
    for (uint32_t i = 0, full = 0; i < s->slice.n; i++) {
        const uint32_t block = hki_slice_block(p, s->slice, i);
        if (!p->blocks[s->slice.buf].len[block]) continue;
        const value v = s->kind == HKI_STEP_SEND ? load(w, n, s->slice.buf, block) : computed(w, n, s, i, full);
        if (!v || (s->kind != HKI_STEP_SEND && !store(w, n, s->slice.buf, block, v))) return false;
        if (s->nto) w->payload[w->payload_at[n] + full] = v;
        full++;
    }
    return true;
}

/* ---- Results ---- */

static uint32_t last_writer(const hki_plan *p, uint8_t buf, uint32_t block)
{
    for (uint32_t i = p->nsteps; i-- > 0;) {
        const hki_step *s = &p->steps[i];
        if (s->kind == HKI_STEP_SEND || s->kind >= HKI_STEP_POST || s->slice.buf != buf) continue;
        if ((block + p->blocks[buf].n - s->slice.first) % p->blocks[buf].n < s->slice.n) return i;
    }
    return HKI_NOBODY;
}

/* Is t what output block b of a rank must be? */
static bool is_result(const hki_call *c, const tree *t, uint32_t b)
{
    const uint32_t in = hki_in_blocks(c), out = hki_out_blocks(c);
    const bool for_rank = out < in || c->op == HKI_ALL_TO_ALL || c->op == HKI_ALL_TO_ALL_V;
    const uint32_t block = in < out ? 0 : for_rank ? c->rank : b; /* of the inputs that it is made of */
    if (t->block != block) return false;
    if (!hki_op_reduces(c->op)) return t->leaves == 1 && t->lo == (hki_op_rooted(c->op) && c->op != HKI_GATHER ? c->root : b);
    if (t->leaves != c->ranks) return false;
    uint64_t sum = t->sum;
    for (uint32_t r = 0; r < c->ranks; r++) sum -= leaf_hash(r, block);
    return sum == 0;
}

static bool check_block(world *w, uint32_t r, uint32_t b, value *same)
{
    hki_graph *g = w->g;
    const hki_plan *p = g->plans[r];
    const hki_call *c = &p->call;
    const bool moved = c->in_place && out_is_smaller(p);
    const uint8_t buf = moved ? HKI_IN : HKI_OUT;
    const uint32_t block = moved ? own_block(c) : b, writer = last_writer(p, buf, block);
    const value v = *cell(w, r, buf, block);
    const tree *t = &w->trees[v];
    if (!v) return hki_graph_blame(g, HKI_CHECK_RESULT, r, writer, "output block %u is never written", b);
    if (!is_result(c, t, b))
        return hki_graph_blame(g, HKI_CHECK_RESULT, r, writer,
                               "output block %u has %u inputs in it, not those that it is made of", b, t->leaves);
    if (!hki_op_reduces(c->op)) return true;
    if (w->finishes && !t->finished)
        return hki_graph_blame(g, HKI_CHECK_FINISH, r, writer, "output block %u was never finished", b);
    if (*same && *same != v)
        return hki_graph_blame(g, HKI_CHECK_ASSOCIATION, r, writer, "output block %u is folded otherwise than elsewhere", b);
    *same = v;
    g->report->rank_order &= t->in_order;
    g->report->folds = (uint32_t)hki_max(g->report->folds, t->folds);
    return c->red.commutes || t->in_order ||
           hki_graph_blame(g, HKI_CHECK_ASSOCIATION, r, writer,
                           "output block %u is not folded in rank order, as this operator needs", b);
}

static bool check_results(world *w)
{
    hki_graph *g = w->g;
    g->report->rank_order = true;
    const uint32_t n = g->plans[0]->blocks[HKI_OUT].n;
    value *same = hki_graph_alloc(g, (n + 1) * sizeof *same); /* per block: its tree on the first rank that has it */
    if (!same) return false;
    for (uint32_t r = 0; r < g->ranks; r++) {
        const hki_plan *p = g->plans[r];
        for (uint32_t b = 0; has_out(&p->call) && b < n; b++) {
            if (n == 1) same[b] = 0; /* every rank's own */
            if (p->blocks[HKI_OUT].len[b] && !check_block(w, r, b, &same[b])) return false;
        }
    }
    return true;
}

bool hki_check_values(hki_graph *g)
{
    const hki_call *c = &g->plans[0]->call;
    world w = {.g = g, .finishes = hki_op_reduces(c->op) && c->red.finish};
    bool ok = open(&w);
    for (uint32_t i = 0; ok && i < g->nodes; i++) ok = run_step(&w, g->order[i]);
    ok = ok && check_results(&w);
    if (!ok && !g->status) g->status = HK_NO_MEMORY;
    hki_free(w.trees);
    hki_free(w.kids);
    hki_free(w.table);
    return ok;
}
