/* SPDX-License-Identifier: Apache-2.0
 * Printing and comparing. */
#include "plan/text.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

typedef struct writer { char *buf; size_t cap, len; } writer;

static void put(writer *w, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void put(writer *w, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    const int n = w->len < w->cap ? vsnprintf(w->buf + w->len, w->cap - w->len, format, args) : vsnprintf(NULL, 0, format, args);
    va_end(args);
    if (n > 0) w->len += (size_t)n;
}

static const char *const bufs[HKI_BUFS] = {"in", "out", "temp"};

/* ---- Header and blocks ---- */

/* The shortest decimal form that reads back as v, with a point whatever the locale. */
static void put_double(writer *w, double v)
{
    char text[40];
    snprintf(text, sizeof text, "%.15g", v);
    double back = 0;
    if (sscanf(text, "%lf", &back) != 1 || back != v) snprintf(text, sizeof text, "%.17g", v);
    for (char *t = text; *t; t++)
        if (!strchr("0123456789+-einfa.", *t)) *t = '.';
    put(w, "%s", text);
}

static void put_reduction(writer *w, const hki_reduction *r)
{
    static const char *const names[HKI_ROPS] = {"sum", "prod", "min", "max", "band", "bor", "bxor", "user"};
    if (r->finish == HKI_FINISH_SCALE) {
        put(w, " premul ");
        put_double(w, r->scale);
    } else {
        put(w, " %s", r->finish == HKI_FINISH_AVG ? "avg" : (unsigned)r->op < HKI_ROPS ? names[r->op] : "?");
    }
    if (!r->commutes) put(w, " in rank order");
}

static void put_header(writer *w, const hki_plan *p)
{
    const hki_call *c = &p->call;
    put(w, "plan %s %s, rank %u of %u", hki_op_name(c->op), p->algorithm ? p->algorithm : "none", c->rank, c->ranks);
    if (c->op != HKI_BARRIER) {
        put(w, ",");
        if (!hki_op_uneven(c->op)) put(w, " %zu", c->count);
        put(w, " %s", hk_dtype_name(c->dtype));
        if (hki_op_reduces(c->op)) put_reduction(w, &c->red);
    }
    if (hki_op_rooted(c->op)) put(w, ", root %u", c->root);
    if (c->in_place) put(w, ", in place");
    if (c->per_host) put(w, ", per host %u%s", c->per_host, c->dealt ? " dealt" : "");
    put(w, ", span %u", p->span);
    if (p->inline_slots) put(w, ", inline slots %u", p->inline_slots);
    put(w, "\n");
}

static void put_blocks(writer *w, const hki_plan *p, int buf)
{
    const hki_blocks *b = &p->blocks[buf];
    bool equal = true, packed = true;
    size_t end = 0;
    for (uint32_t i = 0; i < b->n; i++) {
        equal = equal && b->len[i] == b->len[0];
        packed = packed && (buf == HKI_TEMP || b->off[i] == end);
        end += b->len[i];
    }
    if (!b->n) return;
    put(w, "%-4s %u block%s", bufs[buf], b->n, b->n > 1 ? "s" : "");
    if (equal && packed) {
        put(w, " of %zu\n", b->len[0]);
        return;
    }
    put(w, ":");
    for (uint32_t i = 0; i < b->n; i++) {
        put(w, " %zu", b->len[i]);
        if (!packed) put(w, "@%zu", b->off[i]);
    }
    put(w, "\n");
}

/* ---- Steps ---- */

static void put_slice(writer *w, const hki_plan *p, hki_slice s)
{
    if (s.buf == HKI_MSG) {
        put(w, "from %u", s.first);
        return;
    }
    const uint32_t n = p->blocks[s.buf].n;
    put(w, "%s", bufs[s.buf]);
    if (s.first == 0 && s.n == n) return;
    put(w, "[%u", s.first);
    if (s.n > 1) put(w, "..%u", (uint32_t)(((uint64_t)s.first + s.n - 1) % n));
    put(w, "]");
}

static void put_peers(writer *w, const hki_plan *p, const hki_step *s)
{
    for (uint32_t k = 0; k < s->nto; k++) put(w, "%s%u", k ? ", " : " -> ", p->peers[s->to + k]);
}

static void put_value(writer *w, const hki_plan *p, const hki_step *s)
{
    put_slice(w, p, s->slice);
    put(w, " = ");
    if (s->kind == HKI_STEP_RECV) {
        put(w, "from %u", s->peer);
    } else if (s->kind == HKI_STEP_COPY) {
        put_slice(w, p, p->srcs[s->src]);
    } else {
        put(w, "fold(");
        for (uint32_t k = 0; k < s->nsrc; k++) {
            if (k) put(w, ", ");
            put_slice(w, p, p->srcs[s->src + k]);
        }
        put(w, ")");
    }
    if (s->finish) put(w, ", finish");
    if (!s->nto) return;
    put(w, ", send");
    put_peers(w, p, s);
}

static void put_step(writer *w, const hki_plan *p, const hki_step *s)
{
    switch ((hki_step_kind)s->kind) {
    case HKI_STEP_SEND:
        put(w, "send ");
        put_slice(w, p, s->slice);
        put_peers(w, p, s);
        break;
    case HKI_STEP_POST:
        put(w, "post t%u", s->token);
        put_peers(w, p, s);
        break;
    case HKI_STEP_AWAIT: put(w, "await t%u <- %u", s->token, s->peer); break;
    default: put_value(w, p, s); break;
    }
    put(w, "\n");
}

size_t hki_plan_print_windows(const hki_plan *p, size_t width, uint32_t depth, char *buf, size_t cap)
{
    writer w = {.buf = buf, .cap = cap};
    if (cap) *buf = 0;
    put_header(&w, p);
    if (width) put(&w, "windows %zu of %zu, depth %u\n", (p->longest + width - 1) / width, width, depth);
    for (int b = 0; b < HKI_BUFS; b++) put_blocks(&w, p, b);
    for (uint32_t i = 0; i < p->nsteps; i++) {
        put(&w, "%3u  ", i);
        put_step(&w, p, &p->steps[i]);
    }
    return w.len;
}

size_t hki_plan_print(const hki_plan *p, char *buf, size_t cap) { return hki_plan_print_windows(p, 0, 0, buf, cap); }

/* ---- Equal ---- */

static bool same_reduction(const hki_reduction *a, const hki_reduction *b)
{
    if (a->op != b->op || a->finish != b->finish || a->commutes != b->commutes) return false;
    return a->finish != HKI_FINISH_SCALE || a->scale == b->scale || (a->scale != a->scale && b->scale != b->scale);
}

static bool same_call(const hki_call *a, const hki_call *b)
{
    if (a->op != b->op || a->ranks != b->ranks || a->rank != b->rank || a->in_place != b->in_place) return false;
    if (a->per_host != b->per_host || a->dealt != b->dealt) return false;
    if (hki_op_rooted(a->op) && a->root != b->root) return false;
    if (a->op == HKI_BARRIER) return true;
    if (a->dtype != b->dtype || (!hki_op_uneven(a->op) && a->count != b->count)) return false;
    return !hki_op_reduces(a->op) || same_reduction(&a->red, &b->red);
}

static bool same_blocks(const hki_plan *a, const hki_plan *b, int buf)
{
    const hki_blocks *x = &a->blocks[buf], *y = &b->blocks[buf];
    if (x->n != y->n) return false;
    for (uint32_t i = 0; i < x->n; i++)
        if (x->len[i] != y->len[i] || (buf != HKI_TEMP && x->off[i] != y->off[i])) return false;
    return true;
}

static bool same_slice(hki_slice a, hki_slice b) { return a.buf == b.buf && a.first == b.first && a.n == b.n; }

static bool same_step(const hki_plan *a, const hki_step *x, const hki_plan *b, const hki_step *y)
{
    const bool token = x->kind == HKI_STEP_POST || x->kind == HKI_STEP_AWAIT;
    if (x->kind != y->kind || x->finish != y->finish || x->nsrc != y->nsrc || x->nto != y->nto) return false;
    if (token ? x->token != y->token : !same_slice(x->slice, y->slice)) return false;
    if ((x->kind == HKI_STEP_RECV || x->kind == HKI_STEP_AWAIT) && x->peer != y->peer) return false;
    for (uint32_t k = 0; k < x->nsrc; k++)
        if (!same_slice(a->srcs[x->src + k], b->srcs[y->src + k])) return false;
    for (uint32_t k = 0; k < x->nto; k++)
        if (a->peers[x->to + k] != b->peers[y->to + k]) return false;
    return true;
}

bool hki_plan_equal(const hki_plan *a, const hki_plan *b)
{
    if (a->status || b->status || !same_call(&a->call, &b->call) || strcmp(a->algorithm, b->algorithm)) return false;
    if (a->span != b->span || a->inline_slots != b->inline_slots || a->tokens != b->tokens || a->longest != b->longest) return false;
    for (int buf = 0; buf < HKI_BUFS; buf++)
        if (!same_blocks(a, b, buf)) return false;
    if (a->nsteps != b->nsteps) return false;
    for (uint32_t i = 0; i < a->nsteps; i++)
        if (!same_step(a, &a->steps[i], b, &b->steps[i])) return false;
    return true;
}
