/* SPDX-License-Identifier: Apache-2.0
 *
 * What is seen of a run: hk_stats, spans, trace files, and what hocket trace makes of them. A fault is planted: one rank does something
 * else for 30 ms before each call. It must be found as the others' waiting for that rank, and not as transfer; no test asserts a time
 * that a busy machine could break by being slow elsewhere. Ranks are threads. */
#include "built.h"

#include "diag/trace_form.h"

#include <dirent.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

enum { RANKS = 4, LATE = 2, CALLS = 9, COUNT = 1000 };

typedef struct seat {
    int rank;
    hk_comm *comm;
    void (*run)(struct seat *);
    hk_stats_t stats;
    char failure[300];
} seat;

#define CHECK(s, x)                                                                                                                        \
    do {                                                                                                                                   \
        if (!(x)) {                                                                                                                        \
            snprintf((s)->failure, sizeof(s)->failure, "line %d rank %d: %s (last error: %s)", __LINE__, (s)->rank, #x,                    \
                     hk_last_error((s)->comm));                                                                                            \
            return;                                                                                                                        \
        }                                                                                                                                  \
    } while (0)
#define OK(s, call) CHECK(s, (call) == HK_OK)

static char folder[64];

/* ---- Traces as they lie -------------------------------------------------------------------------------------------------- */

static void empty_folder(void)
{
    char path[512];
    DIR *d = opendir(folder);
    for (struct dirent *e; d && (e = readdir(d));) {
        snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
        if (*e->d_name != '.') unlink(path);
    }
    if (d) closedir(d);
}

/* The bytes of the file of that rank, whose path is given back; the only one. */
static uint8_t *file_of(int rank, char path[512], size_t *len)
{
    char tail[32];
    snprintf(tail, sizeof tail, "-rank%d.hktrace", rank);
    DIR *d = opendir(folder);
    assert_non_null(d);
    *path = 0;
    for (struct dirent *e; (e = readdir(d));)
        if (strstr(e->d_name, tail)) {
            assert_true(!*path);
            snprintf(path, 512, "%s/%s", folder, e->d_name);
        }
    closedir(d);
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    struct stat s;
    fstat(fileno(f), &s);
    uint8_t *bytes = malloc((size_t)s.st_size);
    *len = fread(bytes, 1, (size_t)s.st_size, f);
    fclose(f);
    return bytes;
}

static size_t events_of(int rank, hk_tool_event *out, size_t most)
{
    char path[512], error[HK_TOOL_TEXT];
    size_t len;
    hk_tool_trace t;
    uint8_t *bytes = file_of(rank, path, &len);
    if (!hk_tool_trace_read(bytes, len, 0, &t, error)) fail_msg("%s: %s", path, error);
    assert_true(t.events <= most && t.dropped == 0 && (int)t.rank == rank);
    for (size_t i = 0; i < t.events; i++) assert_true(hk_tool_trace_event(bytes, len, i, &out[i]));
    free(bytes);
    return t.events;
}

/* What the command says; its exit code. */
static int report(const char *arguments, char *out, size_t cap)
{
    char command[600];
    snprintf(command, sizeof command, "%s/bin/hocket trace %s %s 2>&1", BINARY_DIR, folder, arguments);
    FILE *p = popen(command, "r");
    assert_non_null(p);
    const size_t n = fread(out, 1, cap - 1, p);
    out[n] = 0;
    return WEXITSTATUS(pclose(p));
}

/* The number-th number after a line's first word. */
static double field(const char *text, const char *line, int number)
{
    const char *at = strstr(text, line);
    if (!at) fail_msg("no line '%s' in:\n%s", line, text);
    at += strlen(line);
    double v = -1;
    for (int i = 0; i <= number; i++) {
        char *end;
        v = strtod(at, &end);
        if (end == at) fail_msg("line '%s' has no number %d in:\n%s", line, number, text);
        at = end;
    }
    return v;
}

/* ---- Ranks --------------------------------------------------------------------------------------------------------------- */

static void *thread_body(void *arg)
{
    seat *s = arg;
    s->run(s);
    if (!*s->failure) {
        s->stats.size = sizeof s->stats;
        hk_stats(s->comm, &s->stats);
    }
    hk_comm_destroy(s->comm);
    return NULL;
}

static void with(int ranks, const char *transport, void (*run)(seat *), seat *seats)
{
    hk_comm *comms[RANKS];
    pthread_t threads[RANKS];
    hk_config config = HK_CONFIG_INIT;
    config.transport = transport;
    config.timeout_us = 60000000;
    assert_int_equal(hk_comm_create_local_config(comms, ranks, &config), HK_OK);
    for (int r = 0; r < ranks; r++) {
        seats[r] = (seat){.rank = r, .comm = comms[r], .run = run};
        pthread_create(&threads[r], NULL, thread_body, &seats[r]);
    }
    for (int r = 0; r < ranks; r++) pthread_join(threads[r], NULL);
    for (int r = 0; r < ranks; r++)
        if (*seats[r].failure) fail_msg("%s", seats[r].failure);
}

static void watched(int ranks, const char *transport, void (*run)(seat *), seat *seats)
{
    empty_folder();
    setenv("HOCKET_TRACE", folder, 1);
    with(ranks, transport, run, seats);
    unsetenv("HOCKET_TRACE");
}

/* The planted fault. */
static void do_something_else(void) { nanosleep(&(struct timespec){.tv_nsec = 30000000}, NULL); }

static void late_rank(seat *s)
{
    float x[COUNT] = {0};
    for (int i = 0; i < CALLS; i++) {
        OK(s, hk_span_begin(s->comm, "step"));
        OK(s, hk_span_begin(s->comm, s->rank == LATE ? "something else" : "nothing"));
        if (s->rank == LATE) do_something_else();
        OK(s, hk_span_end(s->comm));
        OK(s, hk_all_reduce(x, x, COUNT, HK_F32, HK_SUM, s->comm, NULL, NULL));
        OK(s, hk_span_end(s->comm));
    }
    OK(s, hk_barrier(s->comm, NULL, NULL)); /* nobody leaves while others look when it entered */
}

static void late_rank_is_named(const char *arguments)
{
    char text[16384];
    assert_int_equal(report(arguments, text, sizeof text), 0);
    if (field(text, "\nall_reduce ", 0) != CALLS) fail_msg("not %d calls in:\n%s", CALLS, text);
    if (field(text, "\nall_reduce ", 4) < 25000) fail_msg("wait below 25 ms in:\n%s", text);
    if (field(text, "\nall_reduce ", 6) >= 15000) fail_msg("transfer of 15 ms or more in:\n%s", text);
    if (field(text, "\nrank 2 ", 0) < CALLS - 3) fail_msg("rank 2 was not last in:\n%s", text);
    if (field(text, "\nrank 2 ", 2) < 25000) fail_msg("others waited less than 25 ms in:\n%s", text);
    if (field(text, "\nsomething else ", 0) != CALLS || field(text, "\nstep ", 0) != RANKS * CALLS)
        fail_msg("spans are missing in:\n%s", text);
}

static void a_late_rank_is_seen(void **state)
{
    seat seats[RANKS];
    (void)state;
    watched(RANKS, "auto", late_rank, seats);
    late_rank_is_named("");
    for (int r = 0; r < RANKS; r++) {
        const hk_stats_t *s = &seats[r].stats;
        assert_true(s->timed >= CALLS && s->calls == CALLS + 1 && s->operations == CALLS + 1);
        assert_true(s->seen_ns > s->inside_ns && s->inside_ns >= s->waited_ns && s->operation_ns >= s->late_ns + s->transfer_ns);
        assert_true(s->span_ns >= CALLS * 25000000ull && s->span_ns <= s->seen_ns && s->trace_events >= 3 * CALLS && s->trace_dropped == 0);
        if (r == LATE) assert_true(s->late_ns < CALLS * 15000000ull);
        else assert_true(s->late_ns >= CALLS * 25000000ull);
    }
}

static void a_late_rank_is_seen_over_tcp(void **state)
{
    seat seats[RANKS];
    (void)state;
    if (!built_with("tcp")) skip();
    watched(RANKS, "tcp", late_rank, seats);
    late_rank_is_named("");
    assert_int_equal(seats[0].stats.timed, 0); /* others' entries are not seen */
}

/* The clocks of ranks 1 and 3 are set off by hours, in both directions. */
static void set_off(int rank, int64_t by_ns)
{
    char path[512], error[HK_TOOL_TEXT];
    size_t len;
    hk_tool_trace t;
    uint8_t *bytes = file_of(rank, path, &len);
    assert_true(hk_tool_trace_read(bytes, len, 0, &t, error));
    for (size_t i = 0; i < t.events; i++) {
        hk_tool_event e;
        assert_true(hk_tool_trace_event(bytes, len, i, &e));
        e.begin_ns += (uint64_t)by_ns, e.started_ns += (uint64_t)by_ns, e.end_ns += (uint64_t)by_ns;
        hki_trace_pack_event(&e, bytes + HKI_TRACE_HEAD + i * HKI_TRACE_EVENT);
        hki_trace_seal(bytes + HKI_TRACE_HEAD + i * HKI_TRACE_EVENT);
    }
    t.from_ns += (uint64_t)by_ns, t.to_ns += (uint64_t)by_ns;
    t.clock = (uint64_t)by_ns;
    hki_trace_pack_head(&t, bytes);
    hki_trace_pack_end(t.from_ns, t.to_ns, t.events, 0, bytes + len - HKI_TRACE_EVENT);
    FILE *f = fopen(path, "wb");
    assert_int_equal(fwrite(bytes, 1, len, f), len);
    fclose(f);
    free(bytes);
}

static void clocks_are_aligned(void **state)
{
    seat seats[RANKS];
    char text[16384];
    (void)state;
    watched(RANKS, "auto", late_rank, seats);
    set_off(1, 7200000000000);
    set_off(3, seats[3].stats.seen_ns > 1000 ? -1000 : 1); /* into the past only a little: the machine may have just started */
    late_rank_is_named("");
    report("", text, sizeof text);
    assert_non_null(strstr(text, "machines 3"));
    assert_non_null(strstr(text, "clock 1 was set by what ranks did together"));
    assert_non_null(strstr(text, "clock 2 was set"));
}

/* ---- Events -------------------------------------------------------------------------------------------------------------- */

static void all_kinds(seat *s)
{
    int32_t x[64] = {1}, y[64];
    hk_request *r = NULL;
    OK(s, hk_span_begin(s->comm, "outer"));
    OK(s, hk_span_begin(s->comm, "a name that is far longer than the bytes of it that are kept"));
    OK(s, hk_all_reduce(x, y, 64, HK_I32, HK_SUM, s->comm, NULL, &r));
    OK(s, hk_wait(&r));
    OK(s, hk_span_end(s->comm));
    OK(s, hk_broadcast(x, x, 3, HK_I32, 1, s->comm, NULL, NULL));
    if (s->rank == 0) OK(s, hk_send(x, 5, HK_I32, 1, s->comm, NULL, NULL));
    if (s->rank == 1) OK(s, hk_recv(x, 5, HK_I32, 0, s->comm, NULL, NULL));
    OK(s, hk_span_end(s->comm));
    CHECK(s, hk_span_end(s->comm) == HK_INVALID);
    CHECK(s, hk_span_begin(s->comm, NULL) == HK_INVALID);
    CHECK(s, hk_span_begin(NULL, "x") == HK_INVALID);
    OK(s, hk_span_begin(s->comm, "never ended"));
    OK(s, hk_barrier(s->comm, NULL, NULL));
}

static const hk_tool_event *find(const hk_tool_event *e, size_t n, uint32_t kind, const char *name)
{
    hk_tool_op op;
    for (size_t i = 0; i < n; i++) {
        if (e[i].kind != kind) continue;
        const char *is = kind == HK_EVENT_OPERATION && hk_tool_op_at(e[i].op, &op) ? op.name : e[i].name;
        if (!strcmp(is, name)) return &e[i];
    }
    fail_msg("no event %u '%s'", kind, name);
    return NULL;
}

static bool encloses(const hk_tool_event *a, const hk_tool_event *b)
{
    return a->begin_ns <= b->begin_ns && b->end_ns <= a->end_ns && a->thread == b->thread;
}

static void events_are_as_they_were(void **state)
{
    seat seats[RANKS];
    (void)state;
    watched(RANKS, "auto", all_kinds, seats);
    for (int r = 0; r < RANKS; r++) {
        hk_tool_event e[100];
        const size_t n = events_of(r, e, 100);
        const hk_tool_event *outer = find(e, n, HK_EVENT_SPAN, "outer"),
                            *inner = find(e, n, HK_EVENT_SPAN, "a name that is far longer than the "),
                            *reduce = find(e, n, HK_EVENT_OPERATION, "all_reduce"), *cast = find(e, n, HK_EVENT_OPERATION, "broadcast"),
                            *issue = find(e, n, HK_EVENT_ISSUE, "all_reduce"), *wait = find(e, n, HK_EVENT_CALL, "wait");
        assert_true(encloses(outer, inner) && encloses(inner, issue) && encloses(inner, wait) &&
                    encloses(outer, find(e, n, HK_EVENT_CALL, "broadcast")));
        assert_true(reduce->seq == 1 && reduce->bytes == 256 && reduce->dtype == HK_I32 && reduce->status == 0 &&
                    reduce->started_ns >= reduce->begin_ns);
        assert_true(issue->seq == 1 && wait->seq == 1 && reduce->begin_ns >= issue->begin_ns && reduce->end_ns <= wait->end_ns &&
                    *reduce->name);
        assert_true(cast->seq == 2 && cast->bytes == 12 && cast->root == 1);
        if (r == 0) assert_true(find(e, n, HK_EVENT_OPERATION, "send")->bytes == 20);
        if (r == 1) assert_true(find(e, n, HK_EVENT_OPERATION, "recv")->bytes == 20);
        assert_true(find(e, n, HK_EVENT_SENT, "shm")->bytes == seats[r].stats.shm.bytes_sent);
        assert_true(find(e, n, HK_EVENT_SPAN, "never ended")->end_ns >= find(e, n, HK_EVENT_OPERATION, "barrier")->end_ns);
    }
}

static void failing(seat *s)
{
    float x = 1;
    if (s->rank == 0) CHECK(s, hk_all_reduce(&x, &x, 1, HK_F32, HK_SUM, s->comm, NULL, NULL) < 0);
    if (s->rank == 1) OK(s, hk_comm_abort(s->comm));
}

static void failures_are_events(void **state)
{
    seat seats[RANKS];
    hk_tool_event e[20];
    char text[16384];
    (void)state;
    watched(2, "auto", failing, seats);
    size_t n = events_of(0, e, 20);
    for (size_t i = 0; i < n; i++)
        if (e[i].kind == HK_EVENT_OPERATION) assert_int_equal(e[i].status, HK_ABORTED);
    assert_int_equal(report("", text, sizeof text), 0);
}

static void many(seat *s)
{
    for (int i = 0; i < 3000; i++) {
        OK(s, hk_span_begin(s->comm, "turn"));
        OK(s, hk_barrier(s->comm, NULL, NULL));
        OK(s, hk_span_end(s->comm));
    }
}

/* More events than memory holds at a time. */
static void nothing_is_lost(void **state)
{
    static hk_tool_event e[30000];
    seat seats[RANKS];
    (void)state;
    watched(2, "auto", many, seats);
    for (int r = 0; r < 2; r++) {
        size_t spans = 0, operations = 0, calls = 0;
        const size_t n = events_of(r, e, HKI_COUNT(e));
        for (size_t i = 0; i < n; i++) {
            spans += e[i].kind == HK_EVENT_SPAN, operations += e[i].kind == HK_EVENT_OPERATION, calls += e[i].kind == HK_EVENT_CALL;
            if (e[i].kind == HK_EVENT_OPERATION) assert_int_equal(e[i].seq, operations);
        }
        assert_true(spans == 3000 && operations == 3000 && calls == 3000);
        assert_true(seats[r].stats.trace_events + 2 >= n && seats[r].stats.trace_dropped == 0);
    }
}

static void unseen(seat *s)
{
    for (int i = 0; i < 3 * 64; i++) OK(s, hk_span_begin(s->comm, "nobody looks"));
    OK(s, hk_span_end(s->comm));
    OK(s, hk_barrier(s->comm, NULL, NULL));
}

static void off_costs_and_counts_nothing(void **state)
{
    seat seats[RANKS];
    (void)state;
    empty_folder();
    with(2, "auto", unseen, seats);
    const hk_stats_t *s = &seats[0].stats;
    assert_true(s->operations == 1 && !s->seen_ns && !s->span_ns && !s->calls && !s->inside_ns && !s->operation_ns && !s->timed &&
                !s->trace_events);
    DIR *d = opendir(folder);
    for (struct dirent *e; (e = readdir(d));) assert_true(*e->d_name == '.');
    closedir(d);
}

static void too_many_spans(seat *s)
{
    for (int i = 0; i < 64; i++) OK(s, hk_span_begin(s->comm, "deeper"));
    CHECK(s, hk_span_begin(s->comm, "too deep") == HK_NO_MEMORY);
}

/* A caller built against the first hk_stats_t is given that much. */
static void old_callers_are_given_what_they_know(void **state)
{
    enum { OLD = offsetof(hk_stats_t, seen_ns) };
    hk_comm *comm;
    struct {
        hk_stats_t s;
    } room;
    (void)state;
    setenv("HOCKET_TRACE", folder, 1);
    assert_int_equal(hk_comm_create_local(&comm, 1), HK_OK);
    unsetenv("HOCKET_TRACE");
    memset(&room, 0x5a, sizeof room);
    room.s.size = OLD;
    assert_int_equal(hk_stats(comm, &room.s), HK_OK);
    assert_int_equal(room.s.size, OLD);
    for (size_t i = OLD; i < sizeof room; i++) assert_int_equal(((uint8_t *)&room)[i], 0x5a);
    hk_comm_destroy(comm);
}

static void lost_spans_are_counted(void **state)
{
    seat seats[RANKS];
    char text[16384];
    (void)state;
    watched(1, "auto", too_many_spans, seats);
    assert_int_equal(seats[0].stats.trace_dropped, 1);
    assert_int_equal(report("", text, sizeof text), 0);
    assert_non_null(strstr(text, "1 events could not be written"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_late_rank_is_seen),          cmocka_unit_test(a_late_rank_is_seen_over_tcp),
        cmocka_unit_test(clocks_are_aligned),           cmocka_unit_test(events_are_as_they_were),
        cmocka_unit_test(failures_are_events),          cmocka_unit_test(nothing_is_lost),
        cmocka_unit_test(off_costs_and_counts_nothing), cmocka_unit_test(old_callers_are_given_what_they_know),
        cmocka_unit_test(lost_spans_are_counted),
    };
    snprintf(folder, sizeof folder, "/tmp/hocket-seen-test-XXXXXX");
    if (!mkdtemp(folder)) return 1;
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    empty_folder();
    rmdir(folder);
    return failed;
}
