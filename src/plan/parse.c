/* SPDX-License-Identifier: Apache-2.0
 * Reading plans. A line at a time, by descent; every number is bounded before it becomes an index or a size. */
#include "plan/text.h"

#include <ctype.h>
#include <locale.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct parser {
    const char *text, *end;     /* all of it */
    const char *next;           /* the line after this one */
    const char *at, *stop;      /* what is left of this one */
    size_t line;
    hki_plan *p;
    char *error;
    hk_status status;
    size_t windows, width;      /* as the text says; width 0: it does not */
} parser;

static bool bad(parser *c, const char *format, ...) __attribute__((format(printf, 2, 3)));
static bool bad(parser *c, const char *format, ...)
{
    va_list args;
    if (c->status) return false;
    c->status = HK_INVALID;
    const int n = snprintf(c->error, HKI_TEXT_ERROR, "line %zu: ", hki_max(c->line, 1));
    va_start(args, format);
    vsnprintf(c->error + n, (size_t)(HKI_TEXT_ERROR - n), format, args);
    va_end(args);
    return false;
}

static bool no_memory(parser *c)
{
    if (!c->status) snprintf(c->error, HKI_TEXT_ERROR, "line %zu: no memory for the plan", hki_max(c->line, 1));
    c->status = HK_NO_MEMORY;
    return false;
}

/* ---- Lines and words ---- */

static void skip_blanks(parser *c)
{
    while (c->at < c->stop && (*c->at == ' ' || *c->at == '\t' || *c->at == '\r')) c->at++;
}

static bool at_end(parser *c)
{
    skip_blanks(c);
    return c->at == c->stop;
}

/* The next line that is not blank, without its comment; false after the last. */
static bool next_line(parser *c)
{
    while (c->next < c->end) {
        const char *newline = memchr(c->next, '\n', (size_t)(c->end - c->next));
        c->at = c->next;
        c->stop = newline ? newline : c->end;
        c->next = newline ? newline + 1 : c->end;
        c->line++;
        const char *comment = memchr(c->at, '#', (size_t)(c->stop - c->at));
        if (comment) c->stop = comment;
        if (!at_end(c)) return true;
    }
    return false;
}

static bool word_char(char ch) { return isalnum((unsigned char)ch) || ch == '_' || ch == '-'; }

/* Takes `word` if it comes next: a word as a whole, signs as they are. */
static bool take(parser *c, const char *word)
{
    const size_t n = strlen(word);
    skip_blanks(c);
    if ((size_t)(c->stop - c->at) < n || memcmp(c->at, word, n)) return false;
    if (isalpha((unsigned char)*word) && c->at + n < c->stop && word_char(c->at[n])) return false;
    c->at += n;
    return true;
}

static bool expected(parser *c, const char *what)
{
    char near[24];
    size_t n = 0;
    if (at_end(c)) return bad(c, "%s expected at the end", what);
    for (const char *t = c->at; t < c->stop && n + 1 < sizeof near; t++) near[n++] = isprint((unsigned char)*t) ? *t : '?';
    near[n] = 0;
    return bad(c, "%s expected, not '%s'", what, near);
}

static bool need(parser *c, const char *word)
{
    char what[24];
    if (take(c, word)) return true;
    snprintf(what, sizeof what, "'%s'", word);
    return expected(c, what);
}

static bool digit_next(parser *c) { return !at_end(c) && isdigit((unsigned char)*c->at); }

static bool number(parser *c, const char *what, uint64_t most, uint64_t *v)
{
    if (!digit_next(c)) return expected(c, what);
    *v = 0;
    for (; c->at < c->stop && isdigit((unsigned char)*c->at); c->at++) {
        *v = 10 * *v + (uint64_t)(*c->at - '0');
        if (*v > most) return bad(c, "%s is more than %llu", what, (unsigned long long)most);
    }
    return true;
}

static bool number32(parser *c, const char *what, uint32_t most, uint32_t *v)
{
    uint64_t wide = 0;
    if (!number(c, what, most, &wide)) return false;
    *v = (uint32_t)wide;
    return true;
}

/* A word into text[32]. */
static bool word(parser *c, const char *what, char text[32])
{
    size_t n = 0;
    skip_blanks(c);
    while (c->at + n < c->stop && word_char(c->at[n]) && n < 32) n++;
    if (n == 0) return expected(c, what);
    if (n == 32) return bad(c, "%s has more than 31 letters", what);
    memcpy(text, c->at, n);
    text[n] = 0;
    c->at += n;
    return true;
}

static bool end_of_line(parser *c) { return at_end(c) || expected(c, "the end of the line"); }

/* ---- Header ---- */

static bool real(parser *c, double *v)
{
    char text[40], *end;
    size_t n = 0;
    skip_blanks(c);
    while (c->at + n < c->stop && n + 1 < sizeof text && (word_char(c->at[n]) || c->at[n] == '.' || c->at[n] == '+')) {
        text[n] = c->at[n] == '.' ? *localeconv()->decimal_point : c->at[n];
        n++;
    }
    text[n] = 0;
    *v = strtod(text, &end);
    if (n == 0 || *end) return expected(c, "the factor of premul");
    c->at += n;
    return true;
}

static bool reduction(parser *c, hki_call *call)
{
    static const char *const names[HKI_ROPS] = {"sum", "prod", "min", "max", "band", "bor", "bxor", "user"};
    static const hk_redop handles[HKI_ROPS] = {HK_SUM, HK_PROD, HK_MIN, HK_MAX, HK_BAND, HK_BOR, HK_BXOR, HK_REDOPS};
    hki_reduction *r = &call->red;
    *r = (hki_reduction){.divisor = call->ranks, .commutes = true};
    if (take(c, "premul")) {
        r->finish = HKI_FINISH_SCALE;
        call->redop = HK_REDOPS;
        if (!real(c, &r->scale)) return false;
    } else if (take(c, "avg")) {
        r->finish = HKI_FINISH_AVG;
        call->redop = HK_AVG;
    } else {
        unsigned i = 0;
        while (i < HKI_ROPS && !take(c, names[i])) i++;
        if (i == HKI_ROPS) return expected(c, "a reduction");
        r->op = (hki_rop)i;
        call->redop = handles[i];
    }
    if (take(c, "in")) {
        if (!need(c, "rank") || !need(c, "order")) return false;
        r->commutes = false;
    }
    return true;
}

/* "1000 f32 sum" */
static bool payload(parser *c, hki_call *call)
{
    uint64_t count = 0;
    if (!need(c, ",") || (!hki_op_uneven(call->op) && !number(c, "the count", HKI_TEXT_ELEMS, &count))) return false;
    call->count = (size_t)count;
    unsigned t = 0;
    while (t < HK_DTYPES && !take(c, hk_dtype_name((hk_dtype)t))) t++;
    if (t == HK_DTYPES) return expected(c, "an element type");
    call->dtype = (hk_dtype)t;
    return !hki_op_reduces(call->op) || reduction(c, call);
}

static bool header(parser *c)
{
    static const size_t nothing[1] = {0};
    hki_call call = {0};
    char name[32];
    uint32_t span = 0, slots = 0;
    if (!take(c, "plan")) return expected(c, "'plan OPERATION ALGORITHM, rank R of P, ...'");
    if (!word(c, "an operation", name)) return false;
    if (!hki_op_parse(name, &call.op) || call.op >= HKI_COLLECTIVES) return bad(c, "no operation '%s' has plans", name);
    if (!word(c, "the algorithm's name", name) || !need(c, ",") || !need(c, "rank") ||
        !number32(c, "the rank", HKI_TEXT_RANKS, &call.rank) || !need(c, "of") ||
        !number32(c, "the number of ranks", HKI_TEXT_RANKS, &call.ranks))
        return false;
    if (call.rank >= call.ranks) return bad(c, "no rank %u of %u", call.rank, call.ranks);
    if (call.op != HKI_BARRIER && !payload(c, &call)) return false;
    while (take(c, ",")) {
        if (take(c, "in")) {
            if (!need(c, "place")) return false;
            call.in_place = true;
        } else if (hki_op_rooted(call.op) && take(c, "root")) {
            if (!number32(c, "the root", call.ranks - 1, &call.root)) return false;
        } else if (take(c, "per")) {
            if (!need(c, "host") || !number32(c, "the ranks of a host", call.ranks, &call.per_host)) return false;
            if (!call.per_host || call.ranks % call.per_host) return bad(c, "hosts of %u do not make up %u ranks", call.per_host, call.ranks);
            call.dealt = take(c, "dealt");
        } else if (take(c, "inline")) {
            if (!need(c, "slots") || !number32(c, "the number of slots", HKI_TEXT_STEPS, &slots)) return false;
        } else if (!need(c, "span") || !number32(c, "the span", HKI_TEXT_BLOCKS, &span)) {
            return false;
        }
    }
    if (!end_of_line(c)) return false;
    if (call.ranks == 1 && hki_op_uneven(call.op)) call.in_counts = call.out_counts = nothing;
    memcpy(c->p->name, name, sizeof name);
    hki_plan_begin(c->p, &call, c->p->name, span ? span : call.ranks);
    c->p->inline_slots = slots;
    return c->p->status ? no_memory(c) : true;
}

/* ---- Blocks ---- */

static bool grow(parser *c, void **v, uint32_t used, uint32_t *room, size_t entry, uint32_t most)
{
    if (used < *room) return true;
    if (used >= most) return bad(c, "more than %u steps, or sources or peers of all steps", most);
    const uint32_t want = *room ? 2 * *room : 16;
    void *grown = hki_grow(*v, used * entry, want * entry);
    if (!grown) return no_memory(c);
    *v = grown;
    *room = want;
    return true;
}

static bool blocks_room(parser *c, hki_blocks *b, uint32_t n)
{
    if (n <= b->room) return true;
    size_t *off = hki_grow(b->off, b->n * sizeof *off, n * sizeof *off);
    if (off) b->off = off;
    size_t *len = hki_grow(b->len, b->n * sizeof *len, n * sizeof *len);
    if (len) b->len = len;
    if (!off || !len) return no_memory(c);
    b->room = n;
    return true;
}

/* "4 blocks of 250" or "4 blocks: 250 250@300 ...", packed where no offset is given. */
static bool blocks(parser *c, int buf)
{
    hki_blocks *b = &c->p->blocks[buf];
    uint32_t n = 0;
    uint64_t len = 0, off, end = 0;
    if (c->p->nsteps) return bad(c, "blocks must be told before the first step");
    if (!number32(c, "the number of blocks", HKI_TEXT_BLOCKS, &n)) return false;
    if (buf != HKI_TEMP && n != b->n) return bad(c, "%u blocks, where this operation has %u", n, b->n);
    if (!take(c, "blocks") && !need(c, "block")) return false;
    const bool equal = take(c, "of");
    if (equal ? !number(c, "a length", HKI_TEXT_ELEMS, &len) : !need(c, ":")) return false;
    if (!blocks_room(c, b, n)) return false;
    for (uint32_t i = 0; i < n; i++) {
        if (!equal && !number(c, "a length", HKI_TEXT_ELEMS, &len)) return false;
        off = end;
        if (!equal && buf != HKI_TEMP && take(c, "@") && !number(c, "an offset", HKI_TEXT_ELEMS << 16, &off)) return false;
        if (off > HKI_TEXT_ELEMS << 16) return bad(c, "an offset is more than %llu", (unsigned long long)HKI_TEXT_ELEMS << 16);
        b->off[i] = (size_t)off;
        b->len[i] = (size_t)len;
        end = off + len;
    }
    b->n = n;
    return end_of_line(c);
}

static bool windows(parser *c)
{
    uint64_t k = 0, width = 0, depth = 0;
    if (!number(c, "the number of windows", UINT64_MAX / 16, &k) || !need(c, "of") ||
        !number(c, "the width", UINT64_MAX / 16, &width) || !need(c, ",") || !need(c, "depth") ||
        !number(c, "the depth", UINT32_MAX, &depth))
        return false;
    if (!width) return bad(c, "a window has a width of 1 at least");
    c->windows = (size_t)k;
    c->width = (size_t)width;
    return end_of_line(c);
}

/* ---- Steps ---- */

static bool buffer(parser *c, uint8_t *buf)
{
    static const char *const names[HKI_BUFS] = {"in", "out", "temp"};
    for (*buf = 0; *buf < HKI_BUFS; ++*buf)
        if (take(c, names[*buf])) return true;
    return false;
}

static bool slice(parser *c, hki_slice *s)
{
    uint32_t last;
    if (!buffer(c, &s->buf)) return expected(c, "in, out or temp");
    const uint32_t n = c->p->blocks[s->buf].n;
    if (!n) return bad(c, "that buffer has no blocks");
    s->first = 0;
    s->n = n;
    if (!take(c, "[")) return true;
    if (!number32(c, "the block", n - 1, &s->first)) return false;
    last = s->first;
    if (take(c, "..") && !number32(c, "the last block", n - 1, &last)) return false;
    if (s->buf == HKI_TEMP && last < s->first) return bad(c, "temp does not wrap around");
    s->n = (last >= s->first ? last - s->first : last + n - s->first) + 1;
    return need(c, "]");
}

static bool rank(parser *c, uint32_t *r) { return number32(c, "a rank", c->p->call.ranks - 1, r); }

static bool peers(parser *c, hki_step *s)
{
    hki_plan *p = c->p;
    s->to = p->npeers;
    if (!need(c, "->")) return false;
    do {
        if (!grow(c, (void **)&p->peers, p->npeers, &p->peers_room, sizeof *p->peers, UINT32_MAX / 4)) return false;
        if (!rank(c, &p->peers[p->npeers])) return false;
        p->npeers++;
        s->nto++;
    } while (take(c, ","));
    return true;
}

static bool source(parser *c, hki_step *s, bool message)
{
    hki_plan *p = c->p;
    if (!grow(c, (void **)&p->srcs, p->nsrcs, &p->srcs_room, sizeof *p->srcs, UINT32_MAX / 16)) return false;
    hki_slice *src = &p->srcs[p->nsrcs];
    if (message && take(c, "from")) {
        *src = hki_from(0);
        if (!rank(c, &src->first)) return false;
    } else if (!slice(c, src)) {
        return false;
    }
    p->nsrcs++;
    s->nsrc++;
    return true;
}

/* "out[3] = fold(from 0, in[3]), finish, send -> 2" */
static bool value(parser *c, hki_step *s)
{
    if (!slice(c, &s->slice) || !need(c, "=")) return false;
    if (take(c, "from")) {
        s->kind = HKI_STEP_RECV;
        if (!rank(c, &s->peer)) return false;
    } else if (take(c, "fold")) {
        s->kind = HKI_STEP_REDUCE;
        if (!need(c, "(")) return false;
        do
            if (!source(c, s, true)) return false;
        while (take(c, ","));
        if (!need(c, ")")) return false;
    } else {
        s->kind = HKI_STEP_COPY;
        if (!source(c, s, false)) return false;
    }
    while (take(c, ",")) {
        if (take(c, "finish")) s->finish = true;
        else return need(c, "send") && peers(c, s);
    }
    return true;
}

static bool token(parser *c, hki_step *s)
{
    skip_blanks(c);
    if (c->at == c->stop || *c->at != 't') return expected(c, "a token such as t0");
    c->at++;
    if (!number32(c, "the token", HKI_TEXT_TOKENS - 1, &s->token)) return false;
    if (s->token >= c->p->tokens) c->p->tokens = s->token + 1;
    return true;
}

static bool step(parser *c)
{
    hki_plan *p = c->p;
    hki_step s = {.src = p->nsrcs, .to = p->npeers};
    bool ok;
    if (take(c, "send")) {
        s.kind = HKI_STEP_SEND;
        ok = slice(c, &s.slice) && peers(c, &s);
    } else if (take(c, "post")) {
        s.kind = HKI_STEP_POST;
        ok = token(c, &s) && peers(c, &s);
        if (ok) s.peer = p->peers[s.to];
    } else if (take(c, "await")) {
        s.kind = HKI_STEP_AWAIT;
        ok = token(c, &s) && need(c, "<-") && rank(c, &s.peer);
    } else {
        ok = value(c, &s);
    }
    if (!ok || !end_of_line(c)) return false;
    if (!grow(c, (void **)&p->steps, p->nsteps, &p->steps_room, sizeof *p->steps, HKI_TEXT_STEPS)) return false;
    p->steps[p->nsteps++] = s;
    return true;
}

/* "in 4 blocks ..." tells blocks, "in ..." otherwise begins a step; a number before a step is for the reader. */
static bool line(parser *c)
{
    uint8_t buf;
    uint64_t ignored;
    const char *start = c->at;
    if (take(c, "windows")) return windows(c);
    if (buffer(c, &buf) && digit_next(c)) return blocks(c, buf);
    c->at = start;
    if (digit_next(c) && !number(c, "the step's number", UINT32_MAX, &ignored)) return false;
    return step(c);
}

static bool finish(parser *c)
{
    hki_plan *p = c->p;
    p->longest = 0;
    for (int b = 0; b < HKI_TEMP; b++)
        for (uint32_t i = 0; i < p->blocks[b].n; i++) p->longest = hki_max(p->longest, p->blocks[b].len[i]);
    if (c->width && c->windows != (p->longest + c->width - 1) / c->width)
        return bad(c, "%zu windows of %zu are not what blocks of %zu have", c->windows, c->width, p->longest);
    return true;
}

hk_status hki_plan_parse(const char *text, size_t len, size_t *used, hki_plan *out, char error[HKI_TEXT_ERROR])
{
    if (!len) text = ""; /* which may have been NULL */
    parser c = {.text = text, .end = text + len, .next = text + hki_min(*used, len), .p = out, .error = error};
    *error = 0;
    for (const char *t = text; (t = memchr(t, '\n', (size_t)(c.next - t))); t++) c.line++;
    bool more = next_line(&c), ok = more ? header(&c) : bad(&c, "there is no plan here");
    while (ok && (more = next_line(&c))) {
        const char *start = c.at;
        if (take(&c, "plan")) {
            c.next = start;
            break;
        }
        ok = line(&c);
    }
    if (ok && finish(&c)) {
        *used = (size_t)((more ? c.next : c.end) - text);
        return HK_OK;
    }
    out->status = c.status;
    out->error = "the text is no plan";
    return c.status;
}
