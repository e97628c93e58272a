/* SPDX-License-Identifier: Apache-2.0
 *
 * Chrome's trace_event form. A process is a rank; its tracks are, for each of its threads, the user's spans and under them the calls and
 * waits inside hocket, and the operations, on as many tracks as are in flight at once. An arrow leads from the last rank that entered an
 * operation to the others, which waited for it. Times are microseconds. */
#include "trace.h"

#include <stdlib.h>
#include <string.h>

enum { OPERATIONS = 1, LANES = 64 }; /* tracks 1 .. LANES: operations; a thread's are its number and, for spans, that and SPANS */
#define SPANS 0x100000000ull

typedef struct writer {
    FILE *f;
    bool comma;
} writer;

/* Names are bytes of somebody's program: what is not UTF-8 becomes '?'. */
static size_t sequence(const unsigned char *s)
{
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    const size_t n = *s < 0x80 ? 1 : *s >> 5 == 6 ? 2 : *s >> 4 == 14 ? 3 : *s >> 3 == 30 ? 4 : 0;
    uint32_t code = n > 1 ? *s & (0x7fu >> n) : *s;
    for (size_t i = 1; i < n; i++) {
        if ((s[i] & 0xc0) != 0x80) return 0;
        code = code << 6 | (s[i] & 0x3f);
    }
    return n && code >= least[n] && code <= 0x10ffff && (code < 0xd800 || code > 0xdfff) ? n : 0;
}

static void text(FILE *f, const char *s)
{
    fputc('"', f);
    for (const unsigned char *c = (const unsigned char *)s; *c;) {
        const size_t n = sequence(c);
        if (n == 1 && (*c == '"' || *c == '\\')) fprintf(f, "\\%c", *c);
        else if (n == 1 && (*c < 0x20 || *c == 0x7f)) fprintf(f, "\\u%04x", *c);
        else if (n) fwrite(c, 1, n, f);
        else fputc('?', f);
        c += n ? n : 1;
    }
    fputc('"', f);
}

static void begin(writer *w, const char *phase, uint32_t pid, uint64_t tid, const char *name)
{
    fprintf(w->f, "%s{\"ph\":\"%s\",\"pid\":%u,\"tid\":%llu,\"name\":", w->comma ? ",\n" : "", phase, pid, (unsigned long long)tid);
    text(w->f, name);
    w->comma = true;
}

static void stamp(writer *w, const char *key, uint64_t ns)
{
    fprintf(w->f, ",\"%s\":%llu.%03u", key, (unsigned long long)(ns / 1000), (unsigned)(ns % 1000));
}

static void name_track(writer *w, uint32_t pid, uint64_t tid, const char *name, uint64_t order)
{
    begin(w, "M", pid, tid, "thread_name");
    fputs(",\"args\":{\"name\":", w->f), text(w->f, name), fputs("}}", w->f);
    begin(w, "M", pid, tid, "thread_sort_index");
    fprintf(w->f, ",\"args\":{\"sort_index\":%llu}}", (unsigned long long)order);
}

static void name_process(writer *w, uint32_t pid, const trace_owner *o)
{
    char name[128];
    snprintf(name, sizeof name, "rank %u (host %s, pid %d)", o->rank, o->host, o->pid);
    begin(w, "M", pid, 0, "process_name");
    fputs(",\"args\":{\"name\":", w->f), text(w->f, name), fputs("}}", w->f);
    begin(w, "M", pid, 0, "process_sort_index");
    fprintf(w->f, ",\"args\":{\"sort_index\":%u}}", pid);
}

/* ---- Operations -------------------------------------------------------------------------------------------------------- */

typedef struct entry {
    const hk_tool_event *e;
    const hk_tool_trace *head;
} entry;

static int by_begin(const void *a, const void *b)
{
    const entry *x = a, *y = b;
    if (x->e->begin_ns != y->e->begin_ns) return x->e->begin_ns < y->e->begin_ns ? -1 : 1;
    return x->e->end_ns > y->e->end_ns ? -1 : x->e->end_ns < y->e->end_ns;
}

/* The events of one owner that are wanted, by their beginning. */
static entry *collect(const trace_job *j, uint32_t owner, bool (*wanted)(const hk_tool_event *), size_t *n)
{
    size_t room = 0;
    for (size_t i = 0; i < j->nfiles; i++) room += j->files[i].owner == owner ? j->files[i].head.events : 0;
    entry *all = tool_alloc(room * sizeof *all);
    *n = 0;
    for (size_t i = 0; i < j->nfiles; i++)
        for (size_t k = 0; j->files[i].owner == owner && k < j->files[i].head.events; k++)
            if (wanted(&j->files[i].events[k])) all[(*n)++] = (entry){&j->files[i].events[k], &j->files[i].head};
    qsort(all, *n, sizeof *all, by_begin);
    return all;
}

static bool is_operation(const hk_tool_event *e) { return e->kind == HK_EVENT_OPERATION; }
static bool is_timed(const hk_tool_event *e) { return e->kind >= HK_EVENT_SPAN && e->kind <= HK_EVENT_WAIT; }

static void write_operation(writer *w, uint32_t pid, uint64_t lane, const entry *o)
{
    const hk_tool_event *e = o->e;
    begin(w, "X", pid, lane, trace_op_name(e->op));
    stamp(w, "ts", e->begin_ns), stamp(w, "dur", e->end_ns - e->begin_ns);
    fprintf(w->f,
            ",\"cat\":\"operation\",\"args\":{\"seq\":%llu,\"bytes\":%llu,\"dtype\":\"%s\",\"algorithm\":", (unsigned long long)e->seq,
            (unsigned long long)e->bytes, hk_dtype_name((hk_dtype)e->dtype));
    text(w->f, e->name);
    fprintf(w->f, ",\"root\":%d,\"communicator\":\"%016llx\",\"rank\":%u,\"ranks\":%u,\"status\":\"%s\"", e->root,
            (unsigned long long)o->head->uid, o->head->rank, o->head->ranks, hk_status_name((hk_status)e->status));
    stamp(w, "queued_us", e->started_ns - e->begin_ns);
    fputs("}}", w->f);
}

/* Each on the first track that is free; what is beyond the last track shares it. lanes: of each operation in the order of files. */
static void write_operations(writer *w, const trace_job *j, uint32_t pid)
{
    uint64_t until[LANES] = {0};
    unsigned used = 0;
    size_t n;
    entry *all = collect(j, pid, is_operation, &n);
    for (size_t i = 0; i < n; i++) {
        unsigned lane = 0;
        while (lane + 1 < LANES && until[lane] > all[i].e->begin_ns) lane++;
        if (all[i].e->end_ns > until[lane]) until[lane] = all[i].e->end_ns;
        if (lane >= used) used = lane + 1;
        write_operation(w, pid, OPERATIONS + lane, &all[i]);
    }
    for (unsigned lane = 0; lane < used; lane++) name_track(w, pid, OPERATIONS + lane, "operations", 1000000 + lane);
    free(all);
}

/* ---- Threads ----------------------------------------------------------------------------------------------------------- */

static void write_timed(writer *w, uint32_t pid, const hk_tool_event *e)
{
    static const char *const kinds[] =
        {[HK_EVENT_SPAN] = "span", [HK_EVENT_CALL] = "call", [HK_EVENT_ISSUE] = "issue", [HK_EVENT_WAIT] = "wait"};
    const bool span = e->kind == HK_EVENT_SPAN;
    begin(w, "X", pid, e->thread + LANES + 1 + (span ? SPANS : 0), e->kind == HK_EVENT_WAIT ? "waits" : e->name);
    stamp(w, "ts", e->begin_ns), stamp(w, "dur", e->end_ns - e->begin_ns);
    fprintf(w->f, ",\"cat\":\"%s\"", kinds[e->kind]);
    if (e->seq) fprintf(w->f, ",\"args\":{\"seq\":%llu}", (unsigned long long)e->seq);
    fputs("}", w->f);
}

static int by_number(const void *a, const void *b)
{
    const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x < y ? -1 : x > y;
}

static void write_threads(writer *w, const trace_job *j, uint32_t pid)
{
    size_t n;
    entry *all = collect(j, pid, is_timed, &n);
    uint32_t *threads = tool_alloc(n * sizeof *threads);
    for (size_t i = 0; i < n; i++) {
        threads[i] = all[i].e->thread;
        write_timed(w, pid, all[i].e);
    }
    qsort(threads, n, sizeof *threads, by_number);
    for (size_t i = 0, order = 1; i < n; i++) {
        char name[64];
        if (i && threads[i] == threads[i - 1]) continue;
        snprintf(name, sizeof name, "thread %u: spans", threads[i]);
        name_track(w, pid, threads[i] + LANES + 1 + SPANS, name, order++);
        snprintf(name, sizeof name, "thread %u: calls and waits", threads[i]);
        name_track(w, pid, threads[i] + LANES + 1, name, order++);
    }
    free(threads);
    free(all);
}

/* ---- Arrows ------------------------------------------------------------------------------------------------------------ */

static void write_arrow(writer *w, const trace_job *j, const trace_use *u, const char *phase, uint64_t ns, size_t id)
{
    const trace_file *f = &j->files[u->file];
    begin(w, phase, f->owner, u->event->thread + LANES + 1, trace_op_name(u->event->op));
    stamp(w, "ts", ns);
    fprintf(w->f, ",\"cat\":\"last\",\"id\":%zu%s}", id, *phase == 'f' ? ",\"bp\":\"e\"" : "");
}

static void write_arrows(writer *w, const trace_job *j)
{
    size_t id = 0;
    for (size_t at = 0, n; (n = trace_instance(j, at)); at += n) {
        const size_t last = trace_last(j, at, n);
        for (size_t i = at; i < at + n; i++) {
            if (i == last || !trace_late(&j->uses[i], j->uses[last].event->begin_ns)) continue;
            write_arrow(w, j, &j->uses[last], "s", j->uses[last].event->begin_ns, ++id);
            write_arrow(w, j, &j->uses[i], "f", j->uses[i].event->end_ns, id);
        }
    }
}

bool trace_write_json(const trace_job *j, const char *path)
{
    writer w = {.f = fopen(path, "w")};
    if (!w.f) return false;
    fputs("{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n", w.f);
    for (uint32_t k = 0; k < j->nowners; k++) {
        name_process(&w, k, &j->owners[k]);
        write_threads(&w, j, k);
        write_operations(&w, j, k);
    }
    write_arrows(&w, j);
    fputs("\n]}\n", w.f);
    const bool bad = ferror(w.f) != 0;
    return !fclose(w.f) && !bad;
}
