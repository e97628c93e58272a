/* SPDX-License-Identifier: Apache-2.0
 * The table that HOCKET_STATS=1 prints when a communicator is destroyed: one write, so that ranks do not mix their lines. */
#include "comm/comm.h"

#include "os/os.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

typedef struct page {
    char text[8192];
    size_t n;
} page;

static void say(page *, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void say(page *p, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    const int n = vsnprintf(p->text + p->n, sizeof p->text - p->n, format, args);
    va_end(args);
    if (n > 0) p->n = hki_min(p->n + (size_t)n, sizeof p->text - 1);
}

static double us(uint64_t ns) { return (double)ns / 1e3; }

static void rows(page *p, const hki_seen *s)
{
    bool any = false;
    for (unsigned op = 0; op < HKI_OPS; op++) {
        const hki_tally *a = &s->tally[op];
        if (!a->durations.n) continue;
        if (!any)
            say(p, "  %-16s %9s %14s %10s %10s  %10s %10s  %10s %10s\n", "operation", "count", "bytes", "p50(us)", "p99(us)", "wait p50",
                "p99", "transfer", "p99");
        any = true;
        say(p, "  %-16s %9llu %14llu %10.1f %10.1f", hki_op_name((hki_op)op), (unsigned long long)a->durations.n,
            (unsigned long long)a->bytes, us(hki_histogram_at(&a->durations, 0.5)), us(hki_histogram_at(&a->durations, 0.99)));
        if (!a->late.n) say(p, "  %10s %10s  %10s %10s\n", "-", "-", "-", "-");
        else
            say(p, "  %10.1f %10.1f  %10.1f %10.1f\n", us(hki_histogram_at(&a->late, 0.5)), us(hki_histogram_at(&a->late, 0.99)),
                us(hki_histogram_at(&a->transfers, 0.5)), us(hki_histogram_at(&a->transfers, 0.99)));
    }
}

/* What the machine's interfaces moved meanwhile, whoever had them do it. */
static void interfaces(page *p, const hki_seen *s, double wall)
{
    hki_interface now[HKI_SEEN_INTERFACES];
    const size_t n = hki_interfaces(now, HKI_SEEN_INTERFACES);
    for (size_t i = 0; i < n; i++) {
        size_t k = 0;
        while (k < s->interfaces && strcmp(s->before[k].name, now[i].name)) k++;
        if (k == s->interfaces) continue;
        const uint64_t sent = now[i].sent - s->before[k].sent, received = now[i].received - s->before[k].received;
        if (!sent && !received) continue;
        say(p, "  %s (all of the machine): sent %llu bytes, %.1f MB/s", now[i].name, (unsigned long long)sent, (double)sent / 1e6 / wall);
        if (now[i].link) say(p, ", %.1f %% of its link", 100 * (double)sent / (double)now[i].link / wall);
        say(p, "; received %llu\n", (unsigned long long)received);
    }
}

void hki_seen_print(const hk_comm *comm, const hk_stats_t *t)
{
    page p;
    char who[160];
    const double wall = (double)t->seen_ns / 1e9, share = t->seen_ns ? 100.0 / (double)t->seen_ns : 0;
    p.n = 0;
    hki_rank_text(comm->peers, comm->shape.ranks, comm->shape.rank, who, sizeof who);
    say(&p, "hocket stats: %s of %u, %.3f s: %.1f %% in spans, %.1f %% inside hocket (%.1f %% waiting), %.3f s CPU there, %.3f s of the progress thread\n", who,
        comm->shape.ranks, wall, share * (double)t->span_ns, share * (double)t->inside_ns, share * (double)t->waited_ns,
        (double)t->cpu_ns / 1e9, (double)t->progress_cpu_ns / 1e9);
    rows(&p, comm->seen);
    const struct {
        const char *name;
        const hk_link_stats *link;
    } links[] = {{"shm", &t->shm}, {"tcp", &t->tcp}};
    for (unsigned i = 0; i < HKI_COUNT(links); i++)
        if (links[i].link->messages_sent || links[i].link->messages_received)
            say(&p, "  %s: sent %llu bytes in %llu messages, received %llu in %llu\n", links[i].name,
                (unsigned long long)links[i].link->bytes_sent, (unsigned long long)links[i].link->messages_sent,
                (unsigned long long)links[i].link->bytes_received, (unsigned long long)links[i].link->messages_received);
    if (wall > 0) interfaces(&p, comm->seen, wall);
    if (t->trace_dropped) say(&p, "  %llu events of the trace or spans lost\n", (unsigned long long)t->trace_dropped);
    if (hki_file_write(2, p.text, p.n)) {} /* a table that cannot be written must not stop the job */
}
