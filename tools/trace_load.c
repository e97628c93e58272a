/* SPDX-License-Identifier: Apache-2.0
 * Files become a job: read and proven one by one, joined by owner and communicator, operations of all ranks matched. */
#include "trace.h"

#include <dirent.h>
#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static void refuse(const char *, const char *, ...) __attribute__((format(printf, 2, 3), noreturn));
static void refuse(const char *path, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fprintf(stderr, "hocket trace: %s: ", path);
    vfprintf(stderr, format, args);
    fputs("\n", stderr);
    exit(TOOL_USAGE);
}

/* ---- One file ---------------------------------------------------------------------------------------------------------- */

static uint8_t *contents(const char *path, size_t *len)
{
    struct stat s;
    FILE *f = fopen(path, "rb");
    if (!f || fstat(fileno(f), &s)) refuse(path, "%s", strerror(errno));
    if (!S_ISREG(s.st_mode)) refuse(path, "this is no file");
    uint8_t *bytes = tool_alloc((size_t)s.st_size);
    *len = fread(bytes, 1, (size_t)s.st_size, f);
    fclose(f);
    return bytes;
}

static void read_file(trace_file *file, bool partial)
{
    char error[HK_TOOL_TEXT];
    size_t len;
    uint8_t *bytes = contents(file->path, &len);
    hk_tool_trace *h = &file->head;
    if (!hk_tool_trace_read(bytes, len, partial, h, error)) {
        char worse[HK_TOOL_TEXT];
        refuse(file->path, "%s%s", error, hk_tool_trace_read(bytes, len, 1, h, worse) ? "; --partial takes what is there" : "");
    }
    file->events = tool_alloc(h->events * sizeof *file->events);
    for (size_t i = 0; i < h->events; i++) {
        hk_tool_trace_event(bytes, len, i, &file->events[i]);
        if (!h->whole && file->events[i].end_ns > h->to_ns) h->to_ns = file->events[i].end_ns;
    }
    if (h->to_ns < h->from_ns) h->to_ns = h->from_ns;
    free(bytes);
}

static int by_path(const void *a, const void *b) { return strcmp(((const trace_file *)a)->path, ((const trace_file *)b)->path); }

static void read_folder(trace_job *j, const trace_options *o)
{
    DIR *d = opendir(o->folder);
    size_t room = 0;
    if (!d) refuse(o->folder, "%s", strerror(errno));
    for (struct dirent *e; (e = readdir(d));) {
        const size_t n = strlen(e->d_name);
        if (n < 8 || strcmp(e->d_name + n - 8, ".hktrace")) continue;
        if (j->nfiles == room) {
            room = room ? 2 * room : 16;
            j->files = realloc(j->files, room * sizeof *j->files);
            if (!j->files) refuse(o->folder, "out of memory");
        }
        trace_file *f = &j->files[j->nfiles++];
        memset(f, 0, sizeof *f);
        if (snprintf(f->path, sizeof f->path, "%s/%s", o->folder, e->d_name) >= (int)sizeof f->path)
            refuse(o->folder, "its name is too long");
    }
    closedir(d);
    if (!j->nfiles) refuse(o->folder, "no trace files (*.hktrace): they are written when a job runs with HOCKET_TRACE=%s", o->folder);
    qsort(j->files, j->nfiles, sizeof *j->files, by_path);
    for (size_t i = 0; i < j->nfiles; i++) read_file(&j->files[i], o->partial);
}

/* ---- Owners and jobs --------------------------------------------------------------------------------------------------- */

static void join_owners(trace_job *j)
{
    j->owners = tool_alloc(j->nfiles * sizeof *j->owners);
    for (size_t i = 0; i < j->nfiles; i++) {
        const hk_tool_trace *h = &j->files[i].head;
        size_t k = 0;
        while (k < j->nowners && (j->owners[k].key != h->owner || j->owners[k].clock != h->clock)) k++;
        trace_owner *w = &j->owners[k];
        if (k == j->nowners) {
            *w = (trace_owner){.key = h->owner, .clock = h->clock, .pid = h->pid, .job = (uint32_t)k, .from = h->from_ns, .to = h->to_ns};
            memcpy(w->host, h->host, sizeof w->host);
            j->nowners++;
        }
        if (h->ranks > w->ranks) w->ranks = h->ranks, w->rank = h->rank;
        if (h->from_ns < w->from) w->from = h->from_ns;
        if (h->to_ns > w->to) w->to = h->to_ns;
        j->files[i].owner = (uint32_t)k;
    }
}

/* Files are sorted by path, which begins with the communicator: those of one stand together unless somebody renamed them. Joins
 * until nothing changes, so that names do not matter. */
static void join_jobs(trace_job *j)
{
    for (bool changed = true; changed;) {
        changed = false;
        for (size_t a = 0; a < j->nfiles; a++)
            for (size_t b = a + 1; b < j->nfiles; b++) {
                uint32_t *x = &j->owners[j->files[a].owner].job, *y = &j->owners[j->files[b].owner].job;
                if (j->files[a].head.uid != j->files[b].head.uid || *x == *y) continue;
                *x = *y = *x < *y ? *x : *y;
                changed = true;
            }
    }
}

static bool same_rank_twice(const trace_job *j, size_t i)
{
    const hk_tool_trace *h = &j->files[i].head;
    for (size_t k = 0; k < i; k++) {
        const hk_tool_trace *g = &j->files[k].head;
        if (g->uid != h->uid) continue;
        if (g->ranks != h->ranks)
            refuse(j->files[i].path, "it has %u ranks, but %s of the same communicator has %u", h->ranks, j->files[k].path, g->ranks);
        if (g->rank == h->rank) return true;
    }
    return false;
}

static void list_jobs(const trace_job *j, const trace_options *o, long njobs)
{
    fprintf(stderr, "hocket trace: %s: files of %ld jobs; choose one with --job, or give each run a folder of its own\n", o->folder, njobs);
    long n = 0;
    for (uint32_t id = 0; id < j->nowners; id++) {
        size_t owners = 0, first = 0;
        for (size_t k = j->nowners; k-- > 0;)
            if (j->owners[k].job == id) owners++, first = k;
        const trace_owner *w = &j->owners[first];
        if (owners)
            fprintf(stderr, "  --job %ld: %zu ranks, one of them pid %d on %s, %.3f s\n", ++n, owners, w->pid, w->host,
                    (double)(w->to - w->from) / 1e9);
    }
    exit(TOOL_USAGE);
}

/* Which job's files are to stay; the number of the job as it is in owners. */
static uint32_t choose_job(const trace_job *j, const trace_options *o)
{
    long njobs = 0;
    uint32_t chosen = UINT32_MAX;
    for (uint32_t id = 0; id < j->nowners; id++) {
        bool any = false;
        for (size_t k = 0; k < j->nowners; k++) any |= j->owners[k].job == id;
        if (any && (++njobs == o->job || !o->job)) chosen = id;
    }
    if (!o->job && njobs > 1) list_jobs(j, o, njobs);
    if (chosen == UINT32_MAX) refuse(o->folder, "there is no job %ld: it has %ld", o->job, njobs);
    return chosen;
}

static int by_rank(const void *a, const void *b)
{
    const trace_owner *x = a, *y = b;
    if (x->rank != y->rank) return x->rank < y->rank ? -1 : 1;
    return x->key < y->key ? -1 : x->key > y->key;
}

static void keep_job(trace_job *j, uint32_t id)
{
    size_t n = 0;
    for (size_t i = 0; i < j->nfiles; i++) {
        if (j->owners[j->files[i].owner].job == id) j->files[n++] = j->files[i];
        else free(j->files[i].events);
    }
    j->nfiles = n;
    n = 0;
    for (size_t k = 0; k < j->nowners; k++)
        if (j->owners[k].job == id) j->owners[n++] = j->owners[k];
    j->nowners = n;
    qsort(j->owners, n, sizeof *j->owners, by_rank);
    for (size_t i = 0; i < j->nfiles; i++) {
        trace_file *f = &j->files[i];
        for (size_t k = 0; k < n; k++)
            if (j->owners[k].key == f->head.owner && j->owners[k].clock == f->head.clock) f->owner = (uint32_t)k;
        j->dropped += f->head.dropped;
        j->partial += !f->head.whole;
    }
}

/* ---- Operations -------------------------------------------------------------------------------------------------------- */

static const trace_job *sorting; /* qsort has no argument for its comparison */

static int by_instance(const void *a, const void *b)
{
    const trace_use *x = a, *y = b;
    const hk_tool_trace *f = &sorting->files[x->file].head, *g = &sorting->files[y->file].head;
    if (f->uid != g->uid) return f->uid < g->uid ? -1 : 1;
    if (x->event->seq != y->event->seq) return x->event->seq < y->event->seq ? -1 : 1;
    return f->rank < g->rank ? -1 : f->rank > g->rank;
}

static bool collective(const hk_tool_event *e)
{
    hk_tool_op op;
    return e->kind == HK_EVENT_OPERATION && !e->status && hk_tool_op_at(e->op, &op) && op.collective;
}

static void match(trace_job *j)
{
    size_t n = 0;
    for (size_t i = 0; i < j->nfiles; i++)
        for (size_t k = 0; k < j->files[i].head.events; k++) n += collective(&j->files[i].events[k]);
    j->uses = tool_alloc(n * sizeof *j->uses);
    for (size_t i = 0; i < j->nfiles; i++)
        for (size_t k = 0; k < j->files[i].head.events; k++)
            if (collective(&j->files[i].events[k])) j->uses[j->nuses++] = (trace_use){(uint32_t)i, &j->files[i].events[k]};
    sorting = j;
    qsort(j->uses, n, sizeof *j->uses, by_instance);
}

size_t trace_instance(const trace_job *j, size_t at)
{
    size_t n = 0;
    for (; at + n < j->nuses; n++)
        if (j->files[j->uses[at + n].file].head.uid != j->files[j->uses[at].file].head.uid ||
            j->uses[at + n].event->seq != j->uses[at].event->seq)
            break;
    return n;
}

size_t trace_last(const trace_job *j, size_t at, size_t n)
{
    size_t last = at;
    for (size_t i = at; i < at + n; i++)
        if (j->uses[i].event->begin_ns > j->uses[last].event->begin_ns) last = i;
    return last;
}

/* A rank that was done before the last came did not wait for it: a root that only sends. */
uint64_t trace_late(const trace_use *u, uint64_t last_entry)
{
    const hk_tool_event *e = u->event;
    return last_entry > e->begin_ns && last_entry < e->end_ns ? last_entry - e->begin_ns : 0;
}

const char *trace_op_name(uint32_t op)
{
    hk_tool_op o;
    return hk_tool_op_at(op, &o) ? o.name : "?";
}

/* ---- All of it --------------------------------------------------------------------------------------------------------- */

static void moved(uint64_t *ns, int64_t by) { *ns = by < 0 && *ns < (uint64_t)-by ? 0 : *ns + (uint64_t)by; }

/* To one clock, counted from the first event. */
static void shift(trace_job *j)
{
    int64_t first = INT64_MAX;
    int64_t *by = tool_alloc(j->nowners * sizeof *by);
    for (size_t k = 0; k < j->nowners; k++) {
        for (size_t c = 0; c < j->nclocks; c++)
            if (j->clocks[c].key == j->owners[k].clock) by[k] = j->clocks[c].shift;
        const int64_t from = (int64_t)(j->owners[k].from & INT64_MAX) + by[k];
        if (from < first) first = from;
    }
    for (size_t k = 0; k < j->nowners; k++) moved(&j->owners[k].from, by[k] - first), moved(&j->owners[k].to, by[k] - first);
    for (size_t i = 0; i < j->nfiles; i++)
        for (size_t e = 0; e < j->files[i].head.events; e++) {
            hk_tool_event *v = &j->files[i].events[e];
            const int64_t d = by[j->files[i].owner] - first;
            moved(&v->begin_ns, d), moved(&v->started_ns, d), moved(&v->end_ns, d);
        }
    free(by);
}

void trace_load(trace_job *j, const trace_options *o)
{
    read_folder(j, o);
    for (size_t i = 0; i < j->nfiles; i++)
        if (same_rank_twice(j, i)) refuse(j->files[i].path, "another file is of the same rank of the same communicator");
    join_owners(j);
    join_jobs(j);
    keep_job(j, choose_job(j, o));
    match(j);
    trace_align(j);
    shift(j);
}

void trace_free(trace_job *j)
{
    for (size_t i = 0; i < j->nfiles; i++) free(j->files[i].events);
    free(j->files);
    free(j->owners);
    free(j->uses);
    free(j->clocks);
}
