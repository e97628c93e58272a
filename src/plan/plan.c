/* SPDX-License-Identifier: Apache-2.0 */
#include "plan/plan.h"

#include <string.h>

void hki_plan_init(hki_plan *p) { memset(p, 0, sizeof *p); }

void hki_plan_fini(hki_plan *p)
{
    for (int b = 0; b < HKI_BUFS; b++) {
        hki_free(p->blocks[b].off);
        hki_free(p->blocks[b].len);
    }
    hki_free(p->steps);
    hki_free(p->srcs);
    hki_free(p->peers);
    hki_free(p->hazards.at);
    hki_free(p->hazards.pred);
    hki_plan_init(p);
}

static void fail(hki_plan *p, hk_status status, const char *error)
{
    if (p->status) return;
    p->status = status;
    p->error = error;
}

/* Makes room for n more entries of a vector; false (and a parked error) without memory. */
static bool room(hki_plan *p, void **v, uint32_t used, uint32_t n, uint32_t *have, size_t entry)
{
    if (p->status) return false;
    if (used + n <= *have) return true;
    const uint32_t want = (uint32_t)hki_max(hki_max(16, used + n), 2 * (size_t)*have);
    void *grown = hki_grow(*v, used * entry, want * entry);
    if (!grown) return fail(p, HK_NO_MEMORY, "no memory for the plan"), false;
    *v = grown;
    *have = want;
    return true;
}
#define ROOM(p, vec, more) room(p, (void **)&(p)->vec, (p)->n##vec, more, &(p)->vec##_room, sizeof *(p)->vec)

static bool blocks_room(hki_plan *p, hki_blocks *b, uint32_t n)
{
    if (p->status) return false;
    if (b->n + n <= b->room) return true;
    const uint32_t want = (uint32_t)hki_max(b->n + n, 2 * (size_t)b->room);
    size_t *off = hki_grow(b->off, b->n * sizeof *off, want * sizeof *off);
    if (off) b->off = off;
    size_t *len = off ? hki_grow(b->len, b->n * sizeof *len, want * sizeof *len) : NULL;
    if (!len) return fail(p, HK_NO_MEMORY, "no memory for the plan"), false;
    b->len = len;
    b->room = want;
    return true;
}

void hki_plan_begin(hki_plan *p, const hki_call *call, const char *algorithm, uint32_t span)
{
    p->status = HK_OK;
    p->error = NULL;
    p->call = *call;
    p->algorithm = algorithm;
    p->span = span ? span : 1;
    p->nsteps = p->nsrcs = p->npeers = p->tokens = p->inline_slots = 0;
    p->longest = 0;
    p->hazards.ready = p->wrote = p->swaps = false;
    for (int b = 0; b < HKI_BUFS; b++) p->blocks[b].n = 0;
    const uint32_t in = hki_in_blocks(call), out = hki_out_blocks(call);
    if (!blocks_room(p, &p->blocks[HKI_IN], in) || !blocks_room(p, &p->blocks[HKI_OUT], out)) return;
    hki_in_layout(call, p->blocks[HKI_IN].off, p->blocks[HKI_IN].len);
    hki_out_layout(call, p->blocks[HKI_OUT].off, p->blocks[HKI_OUT].len);
    p->blocks[HKI_IN].n = in;
    p->blocks[HKI_OUT].n = out;
    for (uint32_t i = 0; i < in; i++) p->longest = hki_max(p->longest, p->blocks[HKI_IN].len[i]);
    for (uint32_t i = 0; i < out; i++) p->longest = hki_max(p->longest, p->blocks[HKI_OUT].len[i]);
    p->call.in_counts = p->call.in_displs = p->call.out_counts = p->call.out_displs = NULL;
}

/* A slice names existing blocks; only IN and OUT wrap. */
static bool good(hki_plan *p, hki_slice s)
{
    if (p->status) return false;
    if (s.buf == HKI_MSG ? s.first >= p->call.ranks : s.buf > HKI_MSG) return fail(p, HK_INVALID, "no such buffer or rank in a slice"), false;
    if (s.buf == HKI_MSG || s.n == 0) return true;
    const uint32_t n = p->blocks[s.buf].n;
    if (s.n > n || s.first >= n || (s.buf == HKI_TEMP && s.first + s.n > n))
        return fail(p, HK_INVALID, "a slice reaches beyond its buffer's blocks"), false;
    return true;
}

static bool same_shape(hki_plan *p, hki_slice a, hki_slice b)
{
    if (a.buf == HKI_MSG || b.buf == HKI_MSG) return true;
    if (a.n != b.n) return fail(p, HK_INVALID, "operands of a step have different numbers of blocks"), false;
    for (uint32_t i = 0; i < a.n; i++)
        if (p->blocks[a.buf].len[hki_slice_block(p, a, i)] != p->blocks[b.buf].len[hki_slice_block(p, b, i)])
            return fail(p, HK_INVALID, "operands of a step have blocks of different lengths"), false;
    return true;
}

size_t hki_slice_elems(const hki_plan *p, hki_slice s)
{
    if (s.buf == HKI_MSG) return 0;
    size_t n = 0;
    for (uint32_t i = 0; i < s.n; i++) n += p->blocks[s.buf].len[hki_slice_block(p, s, i)];
    return n;
}

static hki_step *push(hki_plan *p, hki_step_kind kind, hki_slice slice)
{
    if (!ROOM(p, steps, 1)) return NULL;
    hki_step *s = &p->steps[p->nsteps++];
    *s = (hki_step){.kind = (uint8_t)kind, .slice = slice, .src = p->nsrcs, .to = p->npeers};
    p->wrote = true;
    return s;
}

static bool good_peer(hki_plan *p, uint32_t peer)
{
    if (p->status) return false;
    if (peer >= p->call.ranks || peer == p->call.rank) return fail(p, HK_INVALID, "a step names itself or no rank as its peer"), false;
    return true;
}

void hki_plan_multicast(hki_plan *p, const uint32_t *peers, uint32_t n, hki_slice slice)
{
    p->wrote = false;
    for (uint32_t i = 0; i < n; i++)
        if (!good_peer(p, peers[i])) return;
    if (!good(p, slice) || hki_slice_elems(p, slice) == 0 || n == 0) return;
    if (slice.buf == HKI_MSG) { fail(p, HK_INVALID, "a message cannot be sent on"); return; }
    if (slice.n > p->span) { fail(p, HK_INVALID, "a transfer has more blocks than the algorithm's span"); return; }
    if (!ROOM(p, peers, n)) return;
    hki_step *s = push(p, HKI_STEP_SEND, slice);
    if (!s) return;
    s->nto = n;
    memcpy(p->peers + p->npeers, peers, n * sizeof *peers);
    p->npeers += n;
}

void hki_plan_send(hki_plan *p, uint32_t peer, hki_slice slice) { hki_plan_multicast(p, &peer, 1, slice); }

void hki_plan_send_all(hki_plan *p, hki_slice slice)
{
    const uint32_t P = p->call.ranks, me = p->call.rank;
    p->wrote = false;
    if (!good(p, slice) || hki_slice_elems(p, slice) == 0 || P < 2) return;
    if (slice.n > p->span) { fail(p, HK_INVALID, "a transfer has more blocks than the algorithm's span"); return; }
    if (!ROOM(p, peers, P - 1)) return;
    hki_step *s = push(p, HKI_STEP_SEND, slice);
    if (!s) return;
    s->nto = P - 1;
    for (uint32_t k = 1; k < P; k++) p->peers[p->npeers++] = (me + k) % P;
}

void hki_plan_recv(hki_plan *p, uint32_t peer, hki_slice slice)
{
    p->wrote = false;
    if (!good_peer(p, peer) || !good(p, slice) || hki_slice_elems(p, slice) == 0) return;
    if (slice.buf == HKI_MSG) { fail(p, HK_INVALID, "a message is no place to receive into"); return; }
    hki_step *s = push(p, HKI_STEP_RECV, slice);
    if (s) s->peer = peer;
}

void hki_plan_copy(hki_plan *p, hki_slice dst, hki_slice src)
{
    p->wrote = false;
    if (!good(p, dst) || !good(p, src) || !same_shape(p, dst, src) || hki_slice_elems(p, dst) == 0 || !ROOM(p, srcs, 1)) return;
    hki_step *s = push(p, HKI_STEP_COPY, dst);
    if (!s) return;
    s->nsrc = 1;
    p->srcs[p->nsrcs++] = src;
}

void hki_plan_reduce(hki_plan *p, hki_slice dst, const hki_slice *src, uint32_t n)
{
    p->wrote = false;
    if (!good(p, dst) || hki_slice_elems(p, dst) == 0) return;
    if (dst.buf == HKI_MSG || n == 0) { fail(p, HK_INVALID, "a fold needs a destination and a source"); return; }
    for (uint32_t i = 0; i < n; i++) {
        if (!good(p, src[i]) || !same_shape(p, dst, src[i])) return;
        if (src[i].buf == HKI_MSG && !good_peer(p, src[i].first)) return;
    }
    if (!ROOM(p, srcs, n)) return;
    hki_step *s = push(p, HKI_STEP_REDUCE, dst);
    if (!s) return;
    s->nsrc = n;
    memcpy(p->srcs + p->nsrcs, src, n * sizeof *src);
    p->nsrcs += n;
}

void hki_plan_recv_reduce(hki_plan *p, uint32_t peer, hki_slice dst, hki_slice local)
{
    hki_plan_reduce(p, dst, (hki_slice[]){hki_from(peer), local}, 2);
}

void hki_plan_reduce_recv(hki_plan *p, uint32_t peer, hki_slice dst, hki_slice local)
{
    hki_plan_reduce(p, dst, (hki_slice[]){local, hki_from(peer)}, 2);
}

void hki_plan_finish(hki_plan *p)
{
    if (p->status || !p->wrote) return;
    hki_step *s = &p->steps[p->nsteps - 1];
    if (s->kind != HKI_STEP_REDUCE && s->kind != HKI_STEP_COPY) { fail(p, HK_INVALID, "only a fold or a copy can finish a value"); return; }
    s->finish = true;
}

static void token(hki_plan *p, hki_step_kind kind, uint32_t t, uint32_t peer)
{
    if (!good_peer(p, peer) || !ROOM(p, peers, 1)) return;
    hki_step *s = push(p, kind, (hki_slice){0});
    if (!s) return;
    s->token = t;
    s->peer = peer;
    if (kind == HKI_STEP_POST) {
        s->nto = 1;
        p->peers[p->npeers++] = peer;
    }
    if (t >= p->tokens) p->tokens = t + 1;
}

void hki_plan_swaps(hki_plan *p) { p->swaps = true; }

void hki_plan_post(hki_plan *p, uint32_t t, uint32_t peer) { token(p, HKI_STEP_POST, t, peer); }
void hki_plan_await(hki_plan *p, uint32_t t, uint32_t peer) { token(p, HKI_STEP_AWAIT, t, peer); }

hki_slice hki_plan_temp(hki_plan *p, hki_slice like)
{
    hki_blocks *t = &p->blocks[HKI_TEMP];
    const hki_slice none = hki_blocks_of(HKI_TEMP, 0, 0);
    if (!good(p, like) || like.buf == HKI_MSG || !blocks_room(p, t, like.n)) return none;
    const uint32_t first = t->n;
    for (uint32_t i = 0; i < like.n; i++) t->len[t->n++] = p->blocks[like.buf].len[hki_slice_block(p, like, i)];
    return hki_blocks_of(HKI_TEMP, first, like.n);
}

void hki_plan_sent(const hki_plan *p, uint64_t *messages, uint64_t *elems)
{
    *messages = *elems = 0;
    for (uint32_t i = 0; i < p->nsteps; i++) {
        const hki_step *s = &p->steps[i];
        if (s->kind == HKI_STEP_POST || s->nto == 0) continue;
        *messages += s->nto;
        *elems += s->nto * hki_slice_elems(p, s->slice);
    }
}
