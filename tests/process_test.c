/* SPDX-License-Identifier: Apache-2.0
 *
 * Ranks as processes: what survivors say of a rank that dies, stops, leaves, never comes or comes wrongly; fork; exit without destroy.
 * Each rank is a child of this program; it reports by its exit code, and by a line it sends through a pipe. */
#include "built.h"

#include <errno.h>
#include <fcntl.h>
#include <hocket/plan.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <netinet/in.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#define MAX 16
enum { FINE = 0, FAILED = 9 };

typedef struct world {
    int ranks;
    pid_t pid[MAX];
    int code[MAX];              /* exit code, or -signal */
    char said[MAX][700];
    double seconds;
} world;

typedef int (*body)(int rank, int ranks, int out);

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void say(int out, const char *format, ...)
{
    char line[700];
    va_list args;
    va_start(args, format);
    const int n = vsnprintf(line, sizeof line, format, args);
    va_end(args);
    if (write(out, line, (size_t)(n < (int)sizeof line ? n : (int)sizeof line - 1)) < 0) _exit(99);
}

static void set(const char *name, int value)
{
    char text[16];
    snprintf(text, sizeof text, "%d", value);
    setenv(name, text, 1);
}

static int pipes[MAX];

static void start(world *w, int ranks, body run)
{
    static int job;
    char name[64];
    memset(w, 0, sizeof *w);
    w->ranks = ranks;
    snprintf(name, sizeof name, "test-%d-%d", (int)getpid(), ++job);
    w->seconds = now();
    for (int r = 0; r < ranks; r++) {
        int p[2];
        assert_int_equal(pipe2(p, O_CLOEXEC), 0);
        pipes[r] = p[0];
        w->pid[r] = fork();
        if (w->pid[r] == 0) {
            alarm(60); /* a hang is a failure, not a hang of the tests */
            setenv("HOCKET_JOB", name, 1);
            set("HOCKET_RANK", r);
            set("HOCKET_RANKS", ranks);
            _exit(run(r, ranks, p[1]));
        }
        close(p[1]);
    }
}

static void finish(world *w)
{
    for (int r = 0; r < w->ranks; r++) {
        int status;
        waitpid(w->pid[r], &status, 0);
        w->code[r] = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
        for (ssize_t n, at = 0; (n = read(pipes[r], w->said[r] + at, sizeof w->said[r] - 1 - (size_t)at)) > 0;) at += n;
        close(pipes[r]);
    }
    w->seconds = now() - w->seconds;
}

static void hear(int rank, char *line, size_t n) /* the next thing rank says */
{
    const ssize_t got = read(pipes[rank], line, n - 1);
    line[got > 0 ? got : 0] = 0;
}

static void expect(const world *w, int rank, int code, const char *text)
{
    if (w->code[rank] != code || (text && !strstr(w->said[rank], text)))
        fail_msg("rank %d of %d ended with %d (wanted %d) and said '%s' (wanted '%s')", rank, w->ranks, w->code[rank], code, w->said[rank], text ? text : "");
}

/* All ranks do that and end well, over each transport there is. */
static void all_fine(int ranks, body run)
{
    world w;
    for (int k = 0; k < 1 + built_with("tcp"); k++) {
        setenv("HOCKET_TRANSPORT", k ? "tcp" : "auto", 1);
        start(&w, ranks, run);
        finish(&w);
        for (int r = 0; r < ranks; r++) expect(&w, r, FINE, NULL);
    }
    unsetenv("HOCKET_TRANSPORT");
}

/* ---- Bodies ------------------------------------------------------------------------------------------------------------------------ */

static hk_comm *join(int out)
{
    hk_comm *comm;
    if (hk_comm_create_env(&comm, NULL)) {
        say(out, "%s", hk_last_error(NULL));
        _exit(FAILED);
    }
    return comm;
}

static size_t elements = 1000000;
static bool shared_buffers; /* that peers see */

/* All-reduces until something breaks, then says what. */
static int loop(int rank, int ranks, int out)
{
    hk_comm *comm = join(out);
    void *x = calloc(elements, sizeof(float)), *y = calloc(elements, sizeof(float));
    if (shared_buffers && (hk_mem_alloc(comm, elements * sizeof(float), &x) || hk_mem_alloc(comm, elements * sizeof(float), &y))) return FAILED;
    hk_status status = hk_barrier(comm, NULL, NULL);
    say(out, "up\n");
    while (!status) status = hk_all_reduce(x, y, elements, HK_F32, HK_SUM, comm, NULL, NULL);
    const hk_status again = hk_barrier(comm, NULL, NULL);
    say(out, "%s %s", hk_status_name(status), hk_last_error(comm));
    const double begin = now();
    hk_comm_destroy(comm);
    if (again != status || now() - begin > 2) return FAILED;
    (void)rank, (void)ranks;
    return FINE;
}

static void kill_one(const char *transport, size_t n, int signal, int victim, const char *name)
{
    world w;
    char line[64], text[32];
    elements = n;
    setenv("HOCKET_TRANSPORT", transport, 1);
    start(&w, 4, loop);
    for (int r = 0; r < 4; r++) hear(r, line, sizeof line);
    kill(w.pid[victim], signal);
    const double begin = now();
    if (signal == SIGSTOP) {
        for (int r = 0; r < 4; r++)
            if (r != victim) { /* the stopped one is waited for last */
                struct pollfd p = {.fd = pipes[r], .events = POLLIN};
                poll(&p, 1, 30000);
            }
        kill(w.pid[victim], SIGKILL);
    }
    finish(&w);
    unsetenv("HOCKET_TRANSPORT");
    snprintf(text, sizeof text, "rank %d (host", victim);
    for (int r = 0; r < 4; r++) {
        if (r == victim) continue;
        expect(&w, r, FINE, name);
        expect(&w, r, FINE, text);
    }
    print_message("%s, %zu elements: all said %s after %.2f s\n", transport, n, name, now() - begin);
}

static void killed_over_shm(void **state)
{
    if (!built_with("shm")) skip();
    for (int k = 0; k < 4; k++) kill_one("shm", k % 2 ? 1000000 : 10, SIGKILL, k, "HK_PEER_LOST");
    shared_buffers = true; /* the dead rank may have been storing into memory of others, and they reading its own */
    for (int k = 0; k < 8; k++) kill_one("shm", 1000000, SIGKILL, k % 4, "HK_PEER_LOST");
    shared_buffers = false;
}

static void killed_over_tcp(void **state)
{
    if (!built_with("tcp")) skip();
    for (int k = 0; k < 4; k++) kill_one("tcp", k % 2 ? 1000000 : 10, SIGKILL, k, "HK_PEER_LOST");
}

static void stopped(void **state)
{
    setenv("HOCKET_TIMEOUT", "1", 1);
    setenv("HOCKET_ALGO", "ring", 1); /* where most ranks wait for one that waits itself */
    for (int k = 0; k < 4; k++) {
        if (built_with("tcp")) kill_one("tcp", 1000, SIGSTOP, k, "HK_TIMEOUT");
        if (built_with("shm")) kill_one("shm", 1000, SIGSTOP, k, "HK_TIMEOUT");
    }
    unsetenv("HOCKET_ALGO");
    unsetenv("HOCKET_TIMEOUT");
}

static int never_comes(int rank, int ranks, int out)
{
    if (rank == 2) return FINE;
    return hk_comm_destroy(join(out)) ? FAILED : FINE;
}

static void missing(void **state)
{
    world w;
    setenv("HOCKET_INIT_TIMEOUT", "500ms", 1);
    start(&w, 4, never_comes);
    finish(&w);
    unsetenv("HOCKET_INIT_TIMEOUT");
    for (int r = 0; r < 4; r++)
        if (r != 2) expect(&w, r, FAILED, "did not come in time: rank 2");
}

static int told_wrongly(int rank, int ranks, int out)
{
    if (rank == 1) setenv("HOCKET_RANKS", "5", 1);
    return hk_comm_destroy(join(out)) ? FAILED : FINE;
}

static void wrong_number(void **state)
{
    world w;
    setenv("HOCKET_INIT_TIMEOUT", "2", 1);
    start(&w, 3, told_wrongly);
    finish(&w);
    unsetenv("HOCKET_INIT_TIMEOUT");
    for (int r = 0; r < 3; r++) expect(&w, r, FAILED, "rank 1 was told of 5 ranks");
}

static int other_algorithm(int rank, int ranks, int out)
{
    setenv("HOCKET_ALGO", rank == 1 ? "all_reduce:circulant" : "all_reduce:ring", 1);
    return hk_comm_destroy(join(out)) ? FAILED : FINE;
}

static int other_version(int rank, int ranks, int out)
{
    if (rank == 1) setenv("HOCKET_WIRE_VERSION", "7", 1);
    return hk_comm_destroy(join(out)) ? FAILED : FINE;
}

static void settings_differ(void **state)
{
    world w;
    const bool both = can(HKI_ALL_REDUCE, "ring") && can(HKI_ALL_REDUCE, "circulant");
    if (both) {
        start(&w, 3, other_algorithm);
        finish(&w);
    }
    for (int r = 0; both && r < 3; r++) expect(&w, r, FAILED, "HOCKET_ALGO differs: 'all_reduce:ring' on rank 0");
    start(&w, 2, other_version);
    finish(&w);
    for (int r = 0; r < 2; r++) expect(&w, r, FAILED, "wire version differs: 1 on rank 0");
}

static int forks(int rank, int ranks, int out)
{
    hk_comm *comm = join(out);
    int32_t x = 1, y;
    for (int k = 0; k < 3; k++) {
        hk_request *under_way = NULL; /* and with it a progress thread, which the child has not */
        y = 1;
        if (hk_all_reduce(&y, &y, 1, HK_I32, HK_SUM, comm, NULL, &under_way)) return FAILED;
        const pid_t child = fork();
        if (child == 0) {
            hk_request *copy = under_way;
            if (hk_wait(&copy) != HK_FORKED) _exit(2);
            if (k == 0) _exit(hk_all_reduce(&x, &x, 1, HK_I32, HK_SUM, comm, NULL, NULL) == HK_FORKED && strstr(hk_last_error(NULL), "fork") ? 0 : 1);
            if (k == 1) exit(0);
            execl("/bin/true", "true", (char *)NULL);
            _exit(1);
        }
        int status;
        waitpid(child, &status, 0);
        if (status || hk_wait(&under_way) || y != ranks) return FAILED;
        for (int i = 0; i < 100; i++) {
            x = 1;
            if (hk_all_reduce(&x, &x, 1, HK_I32, HK_SUM, comm, NULL, NULL) || x != ranks) return FAILED;
        }
    }
    return hk_comm_destroy(comm) ? FAILED : FINE;
}

static void forked(void **state)
{
    all_fine(3, forks);
}

/* A child of the victim holds all its descriptors open: its death must be seen all the same. */
static int dies_with_a_child(int rank, int ranks, int out)
{
    hk_comm *comm = join(out);
    int32_t x = 1;
    hk_barrier(comm, NULL, NULL);
    if (rank == 1) {
        if (fork() == 0) {
            alarm(8);
            for (;;) pause();
        }
        kill(getpid(), SIGKILL);
    }
    const hk_status status = hk_all_reduce(&x, &x, 1, HK_I32, HK_SUM, comm, NULL, NULL);
    say(out, "%s", hk_last_error(comm));
    return status == HK_PEER_LOST ? FINE : FAILED;
}

static void child_holds_descriptors(void **state)
{
    world w;
    start(&w, 3, dies_with_a_child);
    close(pipes[1]); /* its child holds the other end */
    pipes[1] = open("/dev/null", O_RDONLY | O_CLOEXEC);
    finish(&w);
    expect(&w, 0, FINE, "rank 1 (host");
    expect(&w, 2, FINE, "rank 1 (host");
}

/* Sends and leaves at once, without waiting for its request: destroy sees to it that what was sent arrives, however late it is taken. */
static int sends_and_leaves(int rank, int ranks, int out)
{
    hk_comm *comm = join(out);
    static float v[70000];
    for (int k = 0; k < 2; k++) {
        const size_t n = k ? 70000 : 16;
        hk_request *request = NULL;
        if (rank == 0) {
            for (size_t i = 0; i < n; i++) v[i] = (float)(i % 1000) + (float)k;
            if (hk_send(v, n, HK_F32, 1, comm, NULL, &request)) return FAILED;
            if (k) hk_request_free(&request);
            else if (hk_wait(&request)) return FAILED;
        } else {
            usleep(k * 300000); /* a rank that computes meanwhile */
            if (hk_recv(v, n, HK_F32, 0, comm, NULL, NULL)) return FAILED;
            for (size_t i = 0; i < n; i++)
                if (v[i] != (float)(i % 1000) + (float)k) return FAILED;
        }
    }
    return hk_comm_destroy(comm) ? FAILED : FINE;
}

static void send_then_leave(void **state)
{
    all_fine(2, sends_and_leaves);
}

static int just_exits(int rank, int ranks, int out)
{
    hk_comm *comm = join(out);
    int32_t x = 1;
    if (hk_all_reduce(&x, &x, 1, HK_I32, HK_SUM, comm, NULL, NULL) || x != ranks) return FAILED;
    hk_request *never = NULL; /* the progress thread waits for it when the process ends */
    static int32_t y;
    if (hk_recv(&y, 1, HK_I32, (rank + 1) % ranks, comm, NULL, &never)) return FAILED;
    exit(rank);
}

static void no_destroy(void **state)
{
    world w;
    start(&w, 4, just_exits);
    finish(&w);
    for (int r = 0; r < 4; r++) expect(&w, r, r, NULL);
}

static int again_and_again(int rank, int ranks, int out)
{
    uint32_t chance = (uint32_t)rank * 2654435761u + 1;
    for (int k = 0; k < 100; k++) {
        chance = chance * 1664525u + 1013904223u;
        if (chance >> 30 == 0) usleep(chance >> 18 & 8191); /* ranks that come at different times */
        hk_comm *comm = join(out);
        int64_t x = k + rank, y;
        if (hk_all_reduce(&x, &y, 1, HK_I64, HK_SUM, comm, NULL, NULL) || y != (int64_t)k * ranks + ranks * (ranks - 1) / 2) return FAILED;
        if (hk_comm_destroy(comm)) return FAILED;
    }
    return FINE;
}

static void init_again(void **state)
{
    all_fine(3, again_and_again);
}

/* Ids go through a pipe here, as through any other means. */
static int id_pipe[2];

static int by_id(int rank, int ranks, int out)
{
    hk_id id;
    hk_comm *comm;
    memset(&id, 0, sizeof id);
    if (hk_comm_create(&comm, ranks, rank, &id, NULL) != HK_INVALID || hk_comm_create(&comm, 2, 2, &id, NULL) != HK_INVALID) return FAILED;
    if (rank == 1) { /* any rank may make it */
        if (hk_id_create(&id)) return FAILED;
        for (int r = 1; r < ranks; r++)
            if (write(id_pipe[1], &id, sizeof id) != sizeof id) return FAILED;
    } else if (read(id_pipe[0], &id, sizeof id) != sizeof id) {
        return FAILED;
    }
    if (hk_comm_create(&comm, ranks, rank, &id, NULL)) {
        say(out, "%s", hk_last_error(NULL));
        return FAILED;
    }
    int32_t x = 1;
    if (hk_all_reduce(&x, &x, 1, HK_I32, HK_SUM, comm, NULL, NULL) || x != ranks) return FAILED;
    return hk_comm_destroy(comm) ? FAILED : FINE;
}

static void ids(void **state)
{
    world w;
    assert_int_equal(pipe2(id_pipe, O_CLOEXEC), 0);
    start(&w, 4, by_id);
    finish(&w);
    for (int r = 0; r < 4; r++) expect(&w, r, FINE, NULL);
    close(id_pipe[0]);
    close(id_pipe[1]);
}

static int busy_port;

static int at_port(int rank, int ranks, int out)
{
    unsetenv("HOCKET_JOB");
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    set("MASTER_PORT", busy_port);
    return hk_comm_destroy(join(out)) ? FAILED : FINE;
}

static void ports(void **state)
{
    world w;
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof a;
    const int s = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(s, (struct sockaddr *)&a, sizeof a), 0);
    assert_int_equal(listen(s, 8), 0);
    getsockname(s, (struct sockaddr *)&a, &n);
    busy_port = ntohs(a.sin_port);
    setenv("HOCKET_INIT_TIMEOUT", "1", 1);
    start(&w, 2, at_port);
    finish(&w);
    expect(&w, 0, FAILED, "is in use");
    expect(&w, 1, FAILED, NULL);
    unsetenv("HOCKET_INIT_TIMEOUT");
    close(s);
    for (int k = 0; k < 3; k++) { /* the port of a job that has just ended */
        start(&w, 3, at_port);
        finish(&w);
        for (int r = 0; r < 3; r++) expect(&w, r, FINE, NULL);
    }
}

/* reduce_scatter and all_gather by their default algorithms, and whether all of hosts alike is known to be. */
static bool by_hosts(hk_comm *comm, bool alike)
{
    enum { N = 5000, MOST = 7 };
    static int32_t x[MOST * N], y[MOST * N];
    const int rank = hk_comm_rank(comm), ranks = hk_comm_ranks(comm);
    if (!strncmp(hk_tool_algorithm(comm, "all_reduce", 20 * N, HK_I32, HK_SUM), "two_level", 9) != alike) return false;
    for (int n = 1; n <= N; n *= 17) {
        for (int i = 0; i < ranks * n; i++) x[i] = rank * 3 + i;
        if (hk_reduce_scatter(x, y, (size_t)n, HK_I32, HK_SUM, comm, NULL, NULL)) return false;
        for (int i = 0; i < n; i++)
            if (y[i] != 3 * ranks * (ranks - 1) / 2 + ranks * (rank * n + i)) return false;
        if (hk_all_gather(x, y, (size_t)n, HK_I32, comm, NULL, NULL)) return false;
        for (int i = 0; i < ranks * n; i++)
            if (y[i] != i / n * 3 + i % n) return false;
    }
    return true;
}

/* Two pretended hosts: memory inside, TCP between; every algorithm's messages cross both. */
static int mixed(int rank, int ranks, int out)
{
    const bool alike = ranks > 2 && ranks % 2 == 0;
    set("HOCKET_HOST_KEY", rank / 2);
    hk_comm *comm = join(out);
    enum { N = 100000 };
    static int32_t x[N], y[N];
    for (int i = 0; i < N; i++) x[i] = rank * 3 + i;
    for (int n = 1; n <= N; n *= 10) {
        if (hk_all_reduce(x, y, (size_t)n, HK_I32, HK_SUM, comm, NULL, NULL)) return FAILED;
        for (int i = 0; i < n; i++)
            if (y[i] != 3 * ranks * (ranks - 1) / 2 + ranks * i) return FAILED;
    }
    hk_stats_t s = {.size = sizeof s};
    hk_stats(comm, &s);
    hk_comm *dealt, *odd; /* ranks go to the hosts in turn; in no order, where there are enough for one */
    if (hk_comm_split(comm, 0, rank % 2, &dealt) || hk_comm_split(comm, 0, rank == 1 ? ranks : rank, &odd)) return FAILED;
    if (!by_hosts(comm, alike) || !by_hosts(dealt, alike) || !by_hosts(odd, false)) return FAILED;
    if (hk_comm_destroy(dealt) || hk_comm_destroy(odd)) return FAILED;
    const bool mate = rank % 2 || rank + 1 < ranks;
    if ((ranks > 2 && !s.tcp.bytes_sent) || (mate && !s.shm.bytes_sent)) return FAILED;
    hk_status status = hk_send(x, N, HK_I32, (rank + 1) % ranks, comm, NULL, &(hk_request *){NULL});
    if (!status) status = hk_recv(y, N, HK_I32, (rank + ranks - 1) % ranks, comm, NULL, NULL);
    if (status || y[7] != (rank + ranks - 1) % ranks * 3 + 7) return FAILED;
    return hk_comm_destroy(comm) ? FAILED : FINE;
}

static void mixed_job(void **state)
{
    if (!built_with("tcp") || !built_with("shm")) skip();
    world w;
    for (int ranks = 2; ranks <= 7; ranks++) {
        start(&w, ranks, mixed);
        finish(&w);
        for (int r = 0; r < ranks; r++) expect(&w, r, FINE, NULL);
    }
}

/* ---- Sleepers ------------------------------------------------------------------------------------------------------------------------ */

/* One-way messages to ranks that sleep, also to such as the sender never hears from. A message without a call to wake up is found by the
 * sleeper's own look every 50 ms: 60 of those would take 3 s. */
static int sleeps(int rank, int ranks, int out)
{
    hk_comm *comm = join(out);
    const double begin = now();
    for (int k = 0; k < 60; k++) {
        int x = k;
        if (rank == ranks - 1) usleep(2000); /* until the others sleep: what is tested, not how it is kept in step */
        if (hk_broadcast(&x, &x, 1, HK_I32, ranks - 1, comm, NULL, NULL) || x != k) return FAILED;
        if (hk_barrier(comm, NULL, NULL)) return FAILED; /* takes the other channel: on that of the broadcast nothing ever comes back */
    }
    const double took = now() - begin;
    say(out, "%.2f s", took);
    return hk_comm_destroy(comm) || took > 1.5 ? FAILED : FINE;
}

static void woken(void **state)
{
    static const char *const transports[] = {"shm", "tcp"};
    world w;
    for (int t = 0; t < 2; t++) {
        if (!built_with(transports[t])) continue;
        setenv("HOCKET_TRANSPORT", transports[t], 1);
        for (int ranks = 2; ranks <= 5; ranks++) {
            start(&w, ranks, sleeps);
            finish(&w);
            for (int r = 0; r < ranks; r++) expect(&w, r, FINE, NULL);
        }
        unsetenv("HOCKET_TRANSPORT");
    }
}

/* ---- Memory that the program has, seen by peers ------------------------------------------------------------------------------------- */

enum { FLOATS = 1 << 18, BYTES = FLOATS * 4 };

static float *pages(void *at)
{
    float *p = mmap(at, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | (at ? MAP_FIXED : 0), -1, 0);
    return p == MAP_FAILED ? NULL : p;
}

/* All-reduces x into y and looks at the values. lent: bytes that this rank lent or put; < 0: wrong. */
static long checked(hk_comm *comm, float *x, float *y, float salt)
{
    hk_stats_t before = {.size = sizeof before}, after = before;
    const int rank = hk_comm_rank(comm), ranks = hk_comm_ranks(comm);
    for (int i = 0; i < FLOATS; i++) x[i] = (float)(rank + 1) * (float)(i % 1000) + salt;
    hk_stats(comm, &before);
    if (hk_all_reduce(x, y, FLOATS, HK_F32, HK_SUM, comm, NULL, NULL)) return -1;
    hk_stats(comm, &after);
    for (int i = 0; i < FLOATS; i++)
        if (y[i] != (float)(ranks * (ranks + 1) / 2) * (float)(i % 1000) + (float)ranks * salt) return -2;
    return (long)(after.bytes_lent - before.bytes_lent);
}

#define NEED(condition) do { if (!(condition)) { say(out, "line %d: %s", __LINE__, hk_last_error(comm)); return FAILED; } } while (0)

static int registers(int rank, int ranks, int out)
{
    hk_comm *comm = join(out);
    char small[64], *odd = malloc(BYTES);
    float *x = pages(NULL), *y = pages(NULL), *z = malloc(BYTES);
    NEED(x && y && z && odd);
    NEED(hk_mem_register(comm, small, sizeof small) == HK_UNSUPPORTED && strstr(hk_last_error(comm), "no whole page"));
    float *file = mmap(NULL, BYTES, PROT_READ, MAP_PRIVATE, open("/proc/self/exe", O_RDONLY), 0);
    NEED(file != MAP_FAILED && hk_mem_register(comm, file, 65536) == HK_UNSUPPORTED && strstr(hk_last_error(comm), "not plain memory"));
    NEED(hk_mem_deregister(comm, small) == HK_INVALID);
    NEED(checked(comm, x, y, 1) == 0);
    for (int i = 0; i < FLOATS; i++) y[i] = (float)i;
    NEED(hk_mem_register(comm, x, BYTES) == HK_OK && hk_mem_register(comm, y, BYTES) == HK_OK && hk_mem_register(comm, odd, BYTES) == HK_OK);
    NEED(hk_mem_register(comm, x, 8192) == HK_UNSUPPORTED && strstr(hk_last_error(comm), "already"));
    for (int i = 0; i < FLOATS; i++) NEED(y[i] == (float)i);
    NEED(checked(comm, x, y, 2) > 0);
    NEED(checked(comm, x, z, 3) > 0 && checked(comm, z, y, 4) > 0);
    float *inner = (float *)(void *)odd; /* from malloc: its first and last page are not whole, the rest lends all the same */
    NEED(checked(comm, inner, y, 5) > 0 && checked(comm, x, inner, 6) > 0);
    /* Freed, and something else at the same address: the same call, the pages that peers knew are no longer meant. */
    const int stale = rank != 1; /* not on all ranks */
    if (stale) NEED(munmap(x, BYTES) == 0 && pages(x) == x);
    const long lent = checked(comm, x, z, 7);
    NEED(stale ? lent == 0 : lent > 0);
    if (stale) NEED(hk_mem_deregister(comm, x) == HK_INVALID && hk_mem_register(comm, x, BYTES) == HK_OK);
    NEED(checked(comm, x, z, 8) > 0);
    /* Moved elsewhere, as realloc does: it keeps its contents whatever happens to its old address. */
    float *moved = mremap(y, BYTES, BYTES, MREMAP_MAYMOVE | MREMAP_FIXED, pages(NULL));
    NEED(moved != MAP_FAILED && pages(y) == y);
    for (int i = 0; i < FLOATS; i++) moved[i] = (float)(2 * i);
    NEED(checked(comm, x, y, 9) >= 0 && checked(comm, y, z, 10) == 0);
    NEED(hk_mem_register(comm, y, BYTES) == HK_OK && checked(comm, y, z, 11) > 0);
    for (int i = 0; i < FLOATS; i++) NEED(moved[i] == (float)(2 * i));
    NEED(hk_mem_deregister(comm, y) == HK_OK && hk_mem_deregister(comm, y) == HK_INVALID);
    for (int i = 0; i < FLOATS; i++) NEED(y[i] == (float)(rank + 1) * (float)(i % 1000) + 11);
    NEED(checked(comm, y, z, 12) == 0);
    /* While an operation is under way its memory stays where it is; other memory may come and go. */
    hk_request *request;
    NEED(hk_recv(z, FLOATS, HK_F32, (rank + ranks - 1) % ranks, comm, NULL, &request) == HK_OK);
    NEED(hk_mem_register(comm, z, BYTES) == HK_INVALID && strstr(hk_last_error(comm), "under way"));
    NEED(hk_mem_register(comm, y, BYTES) == HK_OK && hk_mem_deregister(comm, y) == HK_OK);
    NEED(hk_send(x, FLOATS, HK_F32, (rank + 1) % ranks, comm, NULL, NULL) == HK_OK && hk_wait(&request) == HK_OK);
    for (int i = 0; i < FLOATS; i++) NEED(z[i] == (float)((rank + ranks - 1) % ranks + 1) * (float)(i % 1000) + 9);
    free(odd);
    free(z);
    return hk_comm_destroy(comm) ? FAILED : FINE;
}

static void registered(void **state)
{
    if (!built_with("shm")) skip();
    world w;
    for (int ranks = 2; ranks <= 4; ranks++) {
        start(&w, ranks, registers);
        finish(&w);
        for (int r = 0; r < ranks; r++) expect(&w, r, FINE, NULL);
    }
}

int main(void)
{
    setenv("HOCKET_DEBUG", "VERSION", 1);
    signal(SIGPIPE, SIG_IGN);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(killed_over_shm), cmocka_unit_test(killed_over_tcp), cmocka_unit_test(stopped), cmocka_unit_test(missing),
        cmocka_unit_test(wrong_number), cmocka_unit_test(settings_differ), cmocka_unit_test(forked), cmocka_unit_test(send_then_leave), cmocka_unit_test(child_holds_descriptors),
        cmocka_unit_test(no_destroy), cmocka_unit_test(init_again), cmocka_unit_test(ids), cmocka_unit_test(ports), cmocka_unit_test(mixed_job), cmocka_unit_test(registered), cmocka_unit_test(woken)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
