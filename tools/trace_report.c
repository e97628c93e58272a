/* SPDX-License-Identifier: Apache-2.0
 * The report of hocket trace: tables for reading. docs/seeing.md tells what each figure means. */
#include "trace.h"

#include <stdlib.h>
#include <string.h>

typedef struct samples {
    double *v;
    size_t n, room;
} samples; /* microseconds */

static void keep(samples *s, uint64_t ns)
{
    if (s->n == s->room) {
        double *more = tool_alloc((s->room = s->room ? 2 * s->room : 64) * sizeof *more);
        if (s->n) memcpy(more, s->v, s->n * sizeof *more);
        free(s->v);
        s->v = more;
    }
    s->v[s->n++] = (double)ns / 1e3;
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* Sorts; 0 of nothing. */
static double quantile(samples *s, double q)
{
    if (!s->n) return 0;
    qsort(s->v, s->n, sizeof *s->v, by_value);
    const size_t i = (size_t)(q * (double)s->n);
    return s->v[i < s->n ? i : s->n - 1];
}

static double percent(double part, double whole) { return whole > 0 ? 100 * part / whole : 0; }

/* ---- Ranks ------------------------------------------------------------------------------------------------------------- */

typedef struct interval {
    uint64_t from, to;
} interval;

static int by_from(const void *a, const void *b)
{
    const interval *x = a, *y = b;
    return x->from < y->from ? -1 : x->from > y->from;
}

/* Time in at least one of them; sorts. */
static uint64_t covered(interval *v, size_t n)
{
    uint64_t sum = 0, end = 0;
    qsort(v, n, sizeof *v, by_from);
    for (size_t i = 0; i < n; i++) {
        const uint64_t from = v[i].from > end ? v[i].from : end;
        if (v[i].to > from) sum += v[i].to - from;
        if (v[i].to > end) end = v[i].to;
    }
    return sum;
}

typedef struct shares {
    uint64_t operating, hidden, inside, in_spans, sent, sent_tcp; /* hidden: operating, and no caller inside hocket */
} shares;

static shares shares_of(const trace_job *j, uint32_t owner)
{
    shares s = {0};
    size_t room = 0, operations = 0, spans = 0, calls = 0;
    for (size_t i = 0; i < j->nfiles; i++) room += j->files[i].owner == owner ? j->files[i].head.events : 0;
    interval *op = tool_alloc(room * sizeof *op), *span = tool_alloc(room * sizeof *span), *call = tool_alloc(room * sizeof *call);
    for (size_t i = 0; i < j->nfiles; i++)
        for (size_t k = 0; j->files[i].owner == owner && k < j->files[i].head.events; k++) {
            const hk_tool_event *e = &j->files[i].events[k];
            const interval when = {e->begin_ns, e->end_ns};
            if (e->kind == HK_EVENT_OPERATION) op[operations++] = when;
            else if (e->kind == HK_EVENT_SPAN) span[spans++] = when;
            else if (e->kind == HK_EVENT_CALL || e->kind == HK_EVENT_ISSUE) call[calls++] = when, s.inside += when.to - when.from;
            else if (e->kind == HK_EVENT_SENT) s.sent += e->bytes, s.sent_tcp += strcmp(e->name, "tcp") ? 0 : e->bytes;
        }
    s.operating = covered(op, operations);
    s.in_spans = covered(span, spans);
    const uint64_t called = covered(call, calls);
    memcpy(op + operations, call, calls * sizeof *op); /* of one event each, so there is room */
    s.hidden = covered(op, operations + calls) - called;
    free(op), free(span), free(call);
    return s;
}

static void ranks(const trace_job *j, const trace_options *o, FILE *to)
{
    fprintf(to, "\n%-6s %9s %9s %13s %10s %10s %11s %9s", "rank", "time(s)", "spans(%)", "operations(%)", "exposed(%)", "overlap(%)",
            "sent(MB)", "GB/s");
    fprintf(to, "%s  %s\n", o->link ? "  link(%)" : "", "host, pid");
    for (uint32_t k = 0; k < j->nowners; k++) {
        const trace_owner *w = &j->owners[k];
        const shares s = shares_of(j, k);
        const double wall = (double)(w->to - w->from), seconds = (double)s.operating / 1e9;
        const uint64_t sent = s.sent_tcp ? s.sent_tcp : s.sent;
        const double rate = seconds > 0 ? (double)sent / seconds : 0;
        fprintf(to, "%-6u %9.3f %9.1f %13.1f %10.1f %10.1f %11.2f %9.3f", w->rank, wall / 1e9, percent((double)s.in_spans, wall),
                percent((double)s.operating, wall), percent((double)s.inside, wall),
                percent((double)s.hidden, (double)s.operating), (double)s.sent / 1e6, rate / 1e9);
        if (o->link) fprintf(to, "  %7.1f", percent(rate, (double)o->link));
        fprintf(to, "  %s, %d\n", w->host, w->pid);
    }
}

/* ---- Operations -------------------------------------------------------------------------------------------------------- */

enum { OPS = 256 };
typedef struct kind {
    size_t count, failed;
    double bytes;
    samples duration, late, transfer, queued;
} kind;

static void keep_use(kind *k, const trace_use *u, bool alone, uint64_t last)
{
    const hk_tool_event *e = u->event;
    const uint64_t late = alone ? 0 : trace_late(u, last);
    keep(&k->duration, e->end_ns - e->begin_ns);
    keep(&k->queued, e->started_ns - e->begin_ns);
    if (alone) return;
    keep(&k->late, late);
    keep(&k->transfer, e->end_ns - e->begin_ns - late);
}

static void count_kinds(const trace_job *j, kind *kinds)
{
    hk_tool_op op;
    for (size_t at = 0, n; (n = trace_instance(j, at)); at += n) {
        kind *k = &kinds[j->uses[at].event->op % OPS];
        const uint64_t last = j->uses[trace_last(j, at, n)].event->begin_ns;
        k->count++;
        k->bytes += (double)j->uses[at].event->bytes;
        for (size_t i = at; i < at + n; i++) keep_use(&kinds[j->uses[i].event->op % OPS], &j->uses[i], n == 1, last);
    }
    for (size_t i = 0; i < j->nfiles; i++)
        for (size_t e = 0; e < j->files[i].head.events; e++) { /* sends and receives have no others to compare with */
            const hk_tool_event *v = &j->files[i].events[e];
            if (v->kind != HK_EVENT_OPERATION || !hk_tool_op_at(v->op, &op)) continue;
            kind *k = &kinds[v->op % OPS];
            k->failed += v->status != 0;
            if (op.collective || v->status) continue;
            k->count++;
            k->bytes += (double)v->bytes;
            keep_use(k, &(trace_use){(uint32_t)i, v}, true, 0);
        }
}

static void operations(const trace_job *j, FILE *to)
{
    kind *kinds = tool_alloc(OPS * sizeof *kinds);
    count_kinds(j, kinds);
    fprintf(to, "\n%-16s %8s %12s %11s %11s %11s %11s %11s %11s %11s\n", "operation", "count", "MB", "p50(us)", "p99(us)", "wait p50",
            "wait p99", "transfer p50", "p99", "queue p50");
    for (uint32_t op = 0; op < OPS; op++) {
        kind *k = &kinds[op];
        if (!k->count && !k->failed) continue;
        fprintf(to, "%-16s %8zu %12.3f %11.1f %11.1f", trace_op_name(op), k->count, k->bytes / 1e6, quantile(&k->duration, 0.5),
                quantile(&k->duration, 0.99));
        if (k->late.n)
            fprintf(to, " %11.1f %11.1f %12.1f %11.1f", quantile(&k->late, 0.5), quantile(&k->late, 0.99), quantile(&k->transfer, 0.5),
                    quantile(&k->transfer, 0.99));
        else fprintf(to, " %11s %11s %12s %11s", "-", "-", "-", "-");
        fprintf(to, " %11.1f", quantile(&k->queued, 0.5));
        if (k->failed) fprintf(to, "  %zu failed", k->failed);
        fputs("\n", to);
        free(k->duration.v), free(k->late.v), free(k->transfer.v), free(k->queued.v);
    }
    free(kinds);
}

/* ---- Who came last ----------------------------------------------------------------------------------------------------- */

typedef struct lateness {
    size_t times;
    samples waits;
    double total;
} lateness;

/* For each operation, what the others waited on average for the one that came last. */
static void last_arrivals(const trace_job *j, FILE *to)
{
    lateness *all = tool_alloc(j->nowners * sizeof *all);
    size_t operations = 0;
    for (size_t at = 0, n; (n = trace_instance(j, at)); at += n) {
        const size_t last = trace_last(j, at, n);
        lateness *l = &all[j->files[j->uses[last].file].owner];
        uint64_t sum = 0;
        if (n == 1) continue;
        for (size_t i = at; i < at + n; i++) sum += trace_late(&j->uses[i], j->uses[last].event->begin_ns);
        operations++;
        l->times++;
        l->total += (double)sum / 1e9;
        keep(&l->waits, sum / (n - 1));
    }
    if (operations)
        fprintf(to, "\n%-14s %8s %9s %22s %22s\n", "last to enter", "times", "of all(%)", "others waited p50(us)", "in all, summed(s)");
    for (size_t k = 0; k < j->nowners; k++) {
        lateness *l = &all[k];
        if (l->times)
            fprintf(to, "rank %-9u %8zu %9.1f %22.1f %22.3f\n", j->owners[k].rank, l->times, percent((double)l->times, (double)operations),
                    quantile(&l->waits, 0.5), l->total);
        free(l->waits.v);
    }
    free(all);
}

/* ---- Sizes and spans --------------------------------------------------------------------------------------------------- */

static void size_text(unsigned shift, char out[24])
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
    snprintf(out, 24, "%llu %s", 1ull << shift % 10, units[shift / 10]);
}

static void sizes(const trace_job *j, FILE *to)
{
    size_t count[61] = {0}, most = 0;
    for (size_t at = 0, n; (n = trace_instance(j, at)); at += n) {
        const uint64_t bytes = j->uses[at].event->bytes;
        const unsigned bin = bytes ? 63u - (unsigned)__builtin_clzll(bytes) : 60;
        if (bytes && bin < 60 && ++count[bin] > most) most = count[bin];
    }
    if (most) fprintf(to, "\n%-20s %8s\n", "size of collectives", "count");
    for (unsigned bin = 0; bin < 60; bin++) {
        char low[24];
        if (!count[bin]) continue;
        size_text(bin, low);
        fprintf(to, "%-12s or more %7zu  %.*s\n", low, count[bin], (int)(1 + 39 * count[bin] / most),
                "########################################");
    }
}

enum { SPANS = 30 }; /* names shown */
typedef struct named {
    const char *name;
    size_t count;
    double total;
} named;

static int by_name(const void *a, const void *b) { return strcmp(((const named *)a)->name, ((const named *)b)->name); }
static int by_total(const void *a, const void *b)
{
    const named *x = a, *y = b;
    return x->total > y->total ? -1 : x->total < y->total;
}

static void print_name(const char *name, FILE *to)
{
    int n = 0;
    for (; *name; name++, n++) fputc((unsigned char)*name < 0x20 || *name == 0x7f ? '?' : *name, to);
    fprintf(to, "%*s", n < 40 ? 40 - n : 1, "");
}

/* Of each name the sum, the longest first. */
static named *span_totals(const trace_job *j, size_t *names)
{
    size_t n = 0, room = 0;
    for (size_t i = 0; i < j->nfiles; i++) room += j->files[i].head.events;
    named *all = tool_alloc(room * sizeof *all);
    for (size_t i = 0; i < j->nfiles; i++)
        for (size_t e = 0; e < j->files[i].head.events; e++) {
            const hk_tool_event *v = &j->files[i].events[e];
            if (v->kind == HK_EVENT_SPAN) all[n++] = (named){v->name, 1, (double)(v->end_ns - v->begin_ns) / 1e9};
        }
    qsort(all, n, sizeof *all, by_name);
    *names = 0;
    for (size_t i = 0; i < n; i++) {
        named *last = *names ? &all[*names - 1] : NULL;
        if (last && !strcmp(last->name, all[i].name)) last->count++, last->total += all[i].total;
        else all[(*names)++] = all[i];
    }
    qsort(all, *names, sizeof *all, by_total);
    return all;
}

static void spans(const trace_job *j, FILE *to)
{
    size_t names;
    named *all = span_totals(j, &names);
    if (names) fprintf(to, "\n%-40s%8s %12s %12s\n", "span", "count", "all ranks(s)", "mean(ms)");
    for (size_t i = 0; i < names && i < SPANS; i++) {
        print_name(all[i].name, to);
        fprintf(to, "%8zu %12.3f %12.3f\n", all[i].count, all[i].total, 1e3 * all[i].total / (double)all[i].count);
    }
    if (names > SPANS) fprintf(to, "(and %zu more names)\n", names - SPANS);
    free(all);
}

/* ---- All of it --------------------------------------------------------------------------------------------------------- */

static size_t communicators(const trace_job *j, size_t *missing)
{
    size_t n = 0;
    *missing = 0;
    for (size_t i = 0; i < j->nfiles; i++) {
        size_t before = 0, all = 0;
        for (size_t k = 0; k < j->nfiles; k++)
            if (j->files[k].head.uid == j->files[i].head.uid) all++, before += k < i;
        if (before) continue;
        n++;
        *missing += j->files[i].head.ranks - all;
    }
    return n;
}

static void warn(const trace_job *j, size_t missing, FILE *to)
{
    if (missing) fprintf(to, "# files of %zu ranks are missing: waits are those for the ranks that are here\n", missing);
    if (j->partial)
        fprintf(to, "# %zu files have no end: what is missing there is not counted, their bytes sent are not known\n", j->partial);
    if (j->dropped) fprintf(to, "# %llu events could not be written and are missing\n", (unsigned long long)j->dropped);
    for (size_t c = 1; c < j->nclocks; c++) {
        if (j->clocks[c].tied)
            fprintf(to, "# clock %zu was set by what ranks did together, within %.1f us\n", c, (double)j->clocks[c].doubt / 1e3);
        else
            fprintf(to,
                    "# clock %zu could not be set: its ranks did nothing together with others; their times mean nothing to the others\n",
                    c);
    }
}

void trace_report(const trace_job *j, const trace_options *o, FILE *to)
{
    size_t missing;
    uint64_t end = 0;
    const size_t comms = communicators(j, &missing);
    for (size_t k = 0; k < j->nowners; k++) end = j->owners[k].to > end ? j->owners[k].to : end;
    fprintf(to, "# %s: ranks %zu, communicators %zu, machines %zu, time %.3f s\n", o->folder, j->nowners, comms, j->nclocks,
            (double)end / 1e9);
    warn(j, missing, to);
    ranks(j, o, to);
    operations(j, to);
    last_arrivals(j, to);
    sizes(j, to);
    spans(j, to);
}
