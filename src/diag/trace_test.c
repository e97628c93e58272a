/* SPDX-License-Identifier: Apache-2.0
 * Trace files: what is written reads the same; each cut and each changed byte is noticed; what cannot be written is counted. Histograms:
 * quantiles right within a bin. */
#include "diag/histogram.h"
#include "diag/trace.h"

#include "os/os.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cmocka.h>

enum { OPS = 15, FEW = 7 };

static char folder[64];

static uint8_t *file(const char *path, size_t *len)
{
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    fseek(f, 0, SEEK_END);
    *len = (size_t)ftell(f);
    rewind(f);
    uint8_t *bytes = malloc(*len + 1);
    assert_int_equal(fread(bytes, 1, *len, f), *len);
    fclose(f);
    return bytes;
}

static hk_tool_event event(uint64_t i)
{
    hk_tool_event e = {.kind = HK_EVENT_OPERATION + (uint32_t)(i % 6),
                       .thread = 7,
                       .begin_ns = 100 + i,
                       .started_ns = 105 + 2 * i,
                       .end_ns = 110 + 3 * i,
                       .seq = i + 1,
                       .bytes = 1000 * i,
                       .op = (uint32_t)(i % OPS),
                       .dtype = (uint32_t)(i % HK_DTYPES),
                       .root = -1,
                       .status = -(int32_t)(i % 3)};
    snprintf(e.name, sizeof e.name, "name %llu", (unsigned long long)i);
    return e;
}

/* A file of n events; its bytes. */
static uint8_t *written(uint64_t n, size_t *len)
{
    const hk_tool_trace head =
        {.uid = 0xabcdef, .owner = 5, .clock = 6, .from_ns = 99, .rank = 2, .ranks = 3, .pid = 77, .host = "somewhere"};
    hki_trace *t = hki_trace_open(folder, &head);
    char path[512];
    assert_non_null(t);
    for (uint64_t i = 0; i < n; i++) {
        const hk_tool_event e = event(i);
        hki_trace_put(t, &e);
    }
    hki_trace_end(t, 123456);
    assert_int_equal(t->error, 0);
    memcpy(path, t->path, sizeof path);
    hki_trace_free(t);
    uint8_t *bytes = file(path, len);
    unlink(path);
    return bytes;
}

static void reads_what_was_written(void **state)
{
    const uint64_t counts[] = {0, 1, FEW, HKI_TRACE_ROOM, HKI_TRACE_ROOM + 1, 3 * HKI_TRACE_ROOM};
    (void)state;
    for (unsigned k = 0; k < HKI_COUNT(counts); k++) {
        size_t len;
        uint8_t *bytes = written(counts[k], &len);
        hk_tool_trace t;
        hk_tool_event got;
        char error[HK_TOOL_TEXT];
        assert_int_equal(len, HKI_TRACE_HEAD + (counts[k] + 1) * HKI_TRACE_EVENT);
        assert_true(hki_trace_read(bytes, len, OPS, false, &t, error));
        assert_true(t.whole && t.uid == 0xabcdef && t.owner == 5 && t.clock == 6 && t.from_ns == 99 && t.to_ns == 123456);
        assert_true(t.rank == 2 && t.ranks == 3 && t.pid == 77 && t.dropped == 0 && t.events == counts[k]);
        assert_string_equal(t.host, "somewhere");
        for (uint64_t i = 0; i < counts[k]; i++) {
            const hk_tool_event want = event(i);
            assert_true(hki_trace_event(bytes, len, OPS, i, &got));
            assert_memory_equal(&got, &want, sizeof got);
        }
        assert_false(hki_trace_event(bytes, len, OPS, counts[k], &got)); /* the end is no event */
        free(bytes);
    }
}

static void every_cut_is_refused(void **state)
{
    size_t len;
    uint8_t *bytes = written(FEW, &len);
    (void)state;
    for (size_t n = 0; n < len; n++) {
        hk_tool_trace t;
        char error[HK_TOOL_TEXT] = "";
        uint8_t *exact = malloc(n ? n : 1); /* so that a sanitizer sees what reads beyond it */
        memcpy(exact, bytes, n);
        assert_false(hki_trace_read(exact, n, OPS, false, &t, error));
        assert_true(*error);
        assert_int_equal(hki_trace_read(exact, n, OPS, true, &t, error), n >= HKI_TRACE_HEAD);
        if (n >= HKI_TRACE_HEAD) assert_true(!t.whole && t.events == (n - HKI_TRACE_HEAD) / HKI_TRACE_EVENT);
        free(exact);
    }
    free(bytes);
}

static void every_changed_byte_is_refused(void **state)
{
    size_t len;
    uint8_t *bytes = written(FEW, &len);
    (void)state;
    for (size_t i = 0; i < len; i++)
        for (int bit = 0; bit < 8; bit++) {
            hk_tool_trace t;
            char error[HK_TOOL_TEXT] = "";
            bytes[i] ^= (uint8_t)(1 << bit);
            if (hki_trace_read(bytes, len, OPS, false, &t, error) || !*error) fail_msg("byte %zu bit %d", i, bit);
            bytes[i] ^= (uint8_t)(1 << bit);
        }
    free(bytes);
}

static void what_cannot_be_written_is_counted(void **state)
{
    const hk_tool_trace head = {.uid = 1, .ranks = 1};
    const hk_tool_event e = event(0);
    struct rlimit old, tight;
    (void)state;
    getrlimit(RLIMIT_FSIZE, &old);
    tight = old;
    tight.rlim_cur = HKI_TRACE_HEAD + HKI_TRACE_ROOM * HKI_TRACE_EVENT + 1000;
    signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &tight);
    hki_trace *t = hki_trace_open(folder, &head);
    for (int i = 0; i < 2 * HKI_TRACE_ROOM + 5; i++) hki_trace_put(t, &e);
    hki_trace_end(t, 9);
    setrlimit(RLIMIT_FSIZE, &old);
    assert_true(t->error < 0);
    assert_int_equal(t->written, HKI_TRACE_ROOM);
    assert_int_equal(t->dropped, HKI_TRACE_ROOM + 5);
    unlink(t->path);
    hki_trace_free(t);
    t = hki_trace_open("/nosuch/folder", &head);
    hki_trace_put(t, &e);
    hki_trace_end(t, 9);
    assert_true(t->error < 0 && t->written == 0 && t->dropped == 1);
    hki_trace_free(t);
}

static void quantiles_are_right_within_a_bin(void **state)
{
    static hki_histogram h;
    (void)state;
    assert_int_equal(hki_histogram_at(&h, 0.5), 0);
    for (uint64_t v = 1; v < (uint64_t)1 << 41; v = v + v / 5 + 1) {
        memset(&h, 0, sizeof h);
        for (int i = 0; i < 98; i++) hki_histogram_add(&h, v);
        hki_histogram_add(&h, 3 * v);
        hki_histogram_add(&h, 3 * v);
        const double half = (double)hki_histogram_at(&h, 0.5), most = (double)hki_histogram_at(&h, 0.99);
        if (half < 0.93 * (double)v || half > 1.07 * (double)v) fail_msg("%llu became %g", (unsigned long long)v, half);
        if (v < (uint64_t)1 << 40 && (most < 2.79 * (double)v || most > 3.21 * (double)v))
            fail_msg("3 * %llu became %g", (unsigned long long)v, most);
    }
    hki_histogram_add(&h, UINT64_MAX);
    assert_int_equal(h.n, 101);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_what_was_written),           cmocka_unit_test(every_cut_is_refused),
        cmocka_unit_test(every_changed_byte_is_refused),    cmocka_unit_test(what_cannot_be_written_is_counted),
        cmocka_unit_test(quantiles_are_right_within_a_bin),
    };
    snprintf(folder, sizeof folder, "/tmp/hocket-trace-test-XXXXXX");
    if (!mkdtemp(folder)) return 1;
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    rmdir(folder);
    return failed;
}
