/* SPDX-License-Identifier: Apache-2.0
 *
 * Clocks of different machines. Nobody can be done with an all_reduce before the last has entered it. So if a rank of machine A entered at
 * a (on A's clock) and one of machine B was done at b (on B's), then b + shift(B) >= a + shift(A); each operation gives such a bound in
 * both directions, and all of them together an interval in which shift(B) - shift(A) lies. Its middle is taken, half its width is the
 * doubt: no more than the fastest operation took. Machines that share no such operation are tied through others. */
#include "trace.h"

#include <stdlib.h>
#include <string.h>

#define NO_BOUND INT64_MIN
#define FARTHEST ((int64_t)1 << 61) /* a shift beyond comes of files that were made up */

/* Operations in which every rank's result needs every rank. The uneven ones do not, where a count is 0. */
static bool joins_all(const hk_tool_event *e)
{
    static const char *const names[] = {"all_reduce", "all_gather", "reduce_scatter", "all_to_all"};
    const char *name = trace_op_name(e->op);
    if (!strcmp(name, "barrier")) return true;
    for (size_t i = 0; e->bytes && i < sizeof names / sizeof *names; i++)
        if (!strcmp(name, names[i])) return true;
    return false;
}

static void find_clocks(trace_job *j)
{
    j->clocks = tool_alloc(j->nowners * sizeof *j->clocks);
    for (size_t k = 0; k < j->nowners; k++) {
        size_t c = 0;
        while (c < j->nclocks && j->clocks[c].key != j->owners[k].clock) c++;
        if (c == j->nclocks) j->clocks[j->nclocks++] = (trace_clock){.key = j->owners[k].clock};
    }
}

static size_t clock_of(const trace_job *j, const trace_use *u)
{
    size_t c = 0;
    while (j->clocks[c].key != j->files[u->file].head.clock) c++;
    return c;
}

/* least[a * n + b]: shift(b) - shift(a) is at least that. */
static void bound(const trace_job *j, int64_t *least, size_t at, size_t ranks)
{
    const size_t n = j->nclocks;
    int64_t *entry = tool_alloc(2 * n * sizeof *entry), *done = entry + n;
    for (size_t c = 0; c < n; c++) entry[c] = NO_BOUND, done[c] = INT64_MAX;
    for (size_t i = at; i < at + ranks; i++) {
        const hk_tool_event *e = j->uses[i].event;
        const size_t c = clock_of(j, &j->uses[i]);
        if ((int64_t)e->begin_ns > entry[c]) entry[c] = (int64_t)e->begin_ns;
        if ((int64_t)e->end_ns < done[c]) done[c] = (int64_t)e->end_ns;
    }
    for (size_t a = 0; a < n; a++)
        for (size_t b = 0; b < n; b++)
            if (a != b && entry[a] != NO_BOUND && entry[b] != NO_BOUND && entry[a] - done[b] > least[a * n + b])
                least[a * n + b] = entry[a] - done[b];
    free(entry);
}

/* Ties clocks to the first one, the least doubtful next. */
static void tie(trace_job *j, const int64_t *least)
{
    const size_t n = j->nclocks;
    bool *used = tool_alloc(n * sizeof *used);
    j->clocks[0].tied = true;
    for (size_t round = 0; round < n; round++) {
        size_t a = n;
        for (size_t c = 0; c < n; c++)
            if (j->clocks[c].tied && !used[c] && (a == n || j->clocks[c].doubt < j->clocks[a].doubt)) a = c;
        if (a == n) break;
        used[a] = true;
        for (size_t b = 0; b < n; b++) {
            const int64_t low = least[a * n + b], back = least[b * n + a];
            if (used[b] || low == NO_BOUND || back == NO_BOUND) continue;
            const int64_t high = -back, middle = low / 2 + high / 2;
            const uint64_t doubt = j->clocks[a].doubt + (uint64_t)llabs(high - low) / 2;
            const int64_t shift = j->clocks[a].shift + middle;
            if ((j->clocks[b].tied && j->clocks[b].doubt <= doubt) || llabs(shift) > FARTHEST) continue;
            j->clocks[b] = (trace_clock){j->clocks[b].key, shift, doubt, true};
        }
    }
    free(used);
}

void trace_align(trace_job *j)
{
    find_clocks(j);
    const size_t n = j->nclocks;
    if (n == 1) {
        j->clocks[0].tied = true;
        return;
    }
    int64_t *least = tool_alloc(n * n * sizeof *least);
    for (size_t i = 0; i < n * n; i++) least[i] = NO_BOUND;
    for (size_t at = 0, ranks; (ranks = trace_instance(j, at)); at += ranks)
        if (joins_all(j->uses[at].event)) bound(j, least, at, ranks);
    tie(j, least);
    free(least);
}
