/* SPDX-License-Identifier: Apache-2.0 */
#include "tool.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

void tool_parse(const struct argp *argp, int argc, char **argv, unsigned flags, void *input)
{
    argp_err_exit_status = TOOL_USAGE;
    if (argp_parse(argp, argc, argv, flags, NULL, input)) exit(TOOL_USAGE);
}

long tool_number(struct argp_state *state, const char *option, const char *text, long low, long high)
{
    char *end;
    errno = 0;
    const long v = strtol(text, &end, 10);
    if (errno || end == text || *end || v < low || v > high)
        argp_error(state, "%s %s: a number from %ld to %ld is needed", option, text, low, high);
    return v;
}

size_t tool_size(struct argp_state *state, const char *option, const char *text)
{
    static const char units[] = "KMGT";
    char *end;
    errno = 0;
    const unsigned long long v = strtoull(text, &end, 10);
    unsigned shift = 0;
    const char *unit = *end ? strchr(units, *end & ~0x20) : NULL;
    if (unit && *unit) shift = 10 * (unsigned)(unit - units + 1), end++;
    if (*end == 'B' && end != text) end++;
    if (errno || end == text || *end || *text == '-' || (v << shift) >> shift != v || v << shift > SIZE_MAX / 4)
        argp_error(state, "%s %s: a size such as 64, 4K, 16M or 1G is needed", option, text);
    return (size_t)(v << shift);
}

size_t tool_word(struct argp_state *state, const char *option, const char *text, const char *const *words, size_t n)
{
    char list[400] = "";
    size_t used = 0;
    for (size_t i = 0; i < n; i++) {
        if (!strcmp(text, words[i])) return i;
        if (used < sizeof list) used += (size_t)snprintf(list + used, sizeof list - used, "%s%s", i ? ", " : "", words[i]);
    }
    argp_error(state, "%s %s: it is one of %s", option, text, list);
    return 0;
}

/* Single-letter edits between two words, `limit` if that many or more. */
static size_t distance(const char *a, const char *b, size_t limit)
{
    size_t row[64];
    const size_t m = strlen(b);
    if (m >= 63) return limit;
    for (size_t j = 0; j <= m; j++) row[j] = j;
    for (size_t i = 1; *a; a++, i++) {
        size_t corner = row[0];
        row[0] = i;
        for (size_t j = 1; j <= m; j++) {
            const size_t same = corner + (*a != b[j - 1]), above = row[j] + 1, left = row[j - 1] + 1;
            corner = row[j];
            row[j] = same < above ? same : above;
            if (left < row[j]) row[j] = left;
        }
    }
    return row[m] < limit ? row[m] : limit;
}

const char *tool_nearest(const char *text, const char *const *words, size_t n)
{
    const char *best = NULL;
    size_t least = strlen(text) / 2 + 1 < 4 ? strlen(text) / 2 + 1 : 4;
    for (size_t i = 0; i < n; i++) {
        const size_t d = distance(text, words[i], least);
        if (d < least) least = d, best = words[i];
    }
    return best;
}

void *tool_alloc(size_t bytes)
{
    void *p = calloc(1, bytes ? bytes : 1);
    if (p) return p;
    fprintf(stderr, "hocket: out of memory for %zu bytes\n", bytes);
    exit(TOOL_COMMUNICATOR);
}

uint64_t tool_now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}
