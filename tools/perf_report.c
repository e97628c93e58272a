/* SPDX-License-Identifier: Apache-2.0
 * Tables with nccl-tests' columns, and JSON. GB are 1e9 bytes. */
#include "perf.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const redop_names[HK_REDOPS] = {"sum", "prod", "min", "max", "avg", "band", "bor", "bxor"};

double perf_algbw(const perf_result *x) { return x->p50_us > 0 ? x->moved / x->p50_us / 1e3 : 0; }

static bool is_init(const perf_run *r) { return !strcmp(r->o->name, "init"); }

void perf_report_begin(const perf_run *r)
{
    const perf_options *o = r->o;
    if (r->rank) return;
    printf("# hocket perf %s: %d ranks, transport %s\n", o->name, r->ranks, o->transport ? o->transport : "auto");
    puts("# each rank times its calls back to back; p50, p99 and min are the slowest rank's");
    if (is_init(r)) {
        printf("# %18s  %10s %10s %10s\n", "what", "p50(us)", "p99(us)", "min(us)");
        return;
    }
    printf("# %s, %s buffers; algbw = full vector / p50, busbw = algbw * %g\n#\n", o->in_place ? "in place" : "out of place",
           o->registered ? "hk_mem_alloc" : "malloc", r->bus_factor);
    if (o->matrix) return;
    printf("# %10s  %15s  %5s  %5s  %4s  %10s %10s %10s  %11s  %11s  %6s  %s\n", "size(B)", "count(elements)", "type", "redop", "root",
           "p50(us)", "p99(us)", "min(us)", "algbw(GB/s)", "busbw(GB/s)", "#wrong", "algorithm");
    fflush(stdout);
}

static void keep(perf_run *r, const perf_result *x)
{
    if (r->n == r->room) {
        r->room = r->room ? 2 * r->room : 32;
        r->results = realloc(r->results, r->room * sizeof *x);
        if (!r->results) perf_must(NULL, "results", HK_NO_MEMORY);
    }
    r->results[r->n++] = *x;
}

void perf_report_row(perf_run *r, const perf_result *x)
{
    const perf_options *o = r->o;
    keep(r, x);
    if (r->rank || x->pair[0] >= 0) return;
    if (is_init(r)) {
        printf("  %18s  %10.1f %10.1f %10.1f\n", x->algorithm, x->p50_us, x->p99_us, x->min_us);
        return;
    }
    const double bw = perf_algbw(x);
    const char *redop = o->op && o->op->reduces ? redop_names[o->redop] : "none", *root = o->op && o->op->rooted ? "0" : "-1";
    printf("  %10zu  %15zu  %5s  %5s  %4s  ", x->bytes, x->count, hk_dtype_name(o->dtype), redop, root);
    printf("%10.2f %10.2f %10.2f  %11.3f  %11.3f  %6llu  %s\n", x->p50_us, x->p99_us, x->min_us, bw, bw * r->bus_factor,
           (unsigned long long)x->wrong, x->algorithm ? x->algorithm : "-");
    fflush(stdout);
}

static void write_result(FILE *f, const perf_run *r, const perf_result *x)
{
    const double bw = perf_algbw(x);
    fprintf(f, "  {\"bytes\": %zu, \"count\": %zu, \"p50_us\": %.3f, \"p99_us\": %.3f, \"min_us\": %.3f, ", x->bytes, x->count,
            x->p50_us, x->p99_us, x->min_us);
    fprintf(f, "\"algbw_gbs\": %.4f, \"busbw_gbs\": %.4f, \"wrong\": %llu, \"calls\": %zu, \"algorithm\": \"%s\"", bw, bw * r->bus_factor,
            (unsigned long long)x->wrong, x->calls, x->algorithm ? x->algorithm : "");
    if (x->pair[0] >= 0) fprintf(f, ", \"pair\": [%d, %d]", x->pair[0], x->pair[1]);
    fputs("}", f);
}

static bool write_json(const perf_run *r)
{
    const perf_options *o = r->o;
    FILE *f = fopen(o->json, "w");
    if (!f) return false;
    fprintf(f, "{\"op\": \"%s\", \"ranks\": %d, \"dtype\": \"%s\", \"transport\": \"%s\", \"results\": [\n", o->name, r->ranks,
            hk_dtype_name(o->dtype), o->transport ? o->transport : "auto");
    for (size_t i = 0; i < r->n; i++) {
        write_result(f, r, &r->results[i]);
        fputs(i + 1 < r->n ? ",\n" : "\n", f);
    }
    fputs("]}\n", f);
    return !fclose(f);
}

int perf_report_end(perf_run *r)
{
    uint64_t wrong = 0;
    double sum = 0;
    for (size_t i = 0; i < r->n; i++) wrong += r->results[i].wrong, sum += perf_algbw(&r->results[i]) * r->bus_factor;
    if (r->rank == 0 && !is_init(r)) {
        printf("# Out of bounds values : %llu %s\n", (unsigned long long)wrong, wrong ? "FAILED" : "OK");
        printf("# Avg bus bandwidth    : %g\n", r->n ? sum / (double)r->n : 0.0);
    }
    if (r->rank == 0 && r->o->json && !write_json(r)) {
        fprintf(stderr, "hocket perf: cannot write '%s': %s\n", r->o->json, strerror(errno));
        return TOOL_USAGE;
    }
    return wrong ? TOOL_WRONG_DATA : TOOL_OK;
}
