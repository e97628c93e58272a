/* SPDX-License-Identifier: Apache-2.0
 *
 * What this machine can do at best, measured with as little around it as possible: what the figures of a library are to be compared
 * with. Two threads, each on a CPU of its own. One line of JSON.
 *
 *   line_us       two threads swap a cache line: what one round of an 8-byte exchange costs at least
 *   copy_gbs      one thread copies 64 MiB, in bytes copied per second; copy_far_gbs: with streaming stores
 *   sum_us{}      both threads together read two arrays of so many bytes and store their sum to two arrays, with plain or with
 *                 streaming stores, whatever is faster: the least traffic of an all_reduce of two ranks
 *   tcp_us        two threads swap 8 bytes over a loopback connection; tcp_gbs: 1 MiB each way, in bytes sent per second and direction */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <emmintrin.h>
#endif

#define MIB ((size_t)1 << 20)
enum { REPEATS = 20, SIZES = 4 };
static const size_t sizes[SIZES] = {32768, 2 * MIB, 16 * MIB, 64 * MIB};

static double now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static cpu_set_t all; /* CPUs of this process at its start */

static void pin(int which)
{
    cpu_set_t one;
    for (int c = 0; c < CPU_SETSIZE; c++)
        if (CPU_ISSET(c, &all) && which-- == 0) {
            CPU_ZERO(&one);
            CPU_SET(c, &one);
            sched_setaffinity(0, sizeof one, &one);
            return;
        }
}

static void *memory(size_t bytes)
{
    void *p = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
    if (!p) exit(1);
    memset(p, 1, bytes);
    return p;
}

/* ---- Both threads do body(which); the best of REPEATS of the slower one's times, in microseconds. */
typedef void (*body)(int which);
static pthread_barrier_t gate;
static body running;
static double took[2][REPEATS];

static void *thread(void *arg)
{
    const int me = (int)(intptr_t)arg;
    pin(me);
    for (int k = 0; k < REPEATS; k++) {
        pthread_barrier_wait(&gate);
        const double begin = now_us();
        running(me);
        took[me][k] = now_us() - begin;
    }
    return NULL;
}

static double both(body b)
{
    pthread_t other;
    double best = 1e30;
    running = b;
    pthread_barrier_init(&gate, NULL, 2);
    pthread_create(&other, NULL, thread, (void *)1);
    thread((void *)0);
    pthread_join(other, NULL);
    for (int k = 0; k < REPEATS; k++) {
        const double t = took[0][k] > took[1][k] ? took[0][k] : took[1][k];
        if (t < best) best = t;
    }
    return best;
}

/* ---- A line */
enum { SWAPS = 20000 };
static struct { _Alignas(128) _Atomic uint64_t word; } lines[2][64];

static void swap_lines(int me)
{
    const uint64_t base = atomic_load(&lines[me][0].word); /* sequences go on from repeat to repeat */
    for (uint64_t k = 1; k <= SWAPS; k++) {
        const uint64_t seq = base + k * 64;
        atomic_store_explicit(&lines[me][k % 64].word, seq, memory_order_release);
        while (atomic_load_explicit(&lines[!me][k % 64].word, memory_order_acquire) < seq) { }
    }
    atomic_store(&lines[me][0].word, base + SWAPS * 64);
}

/* ---- Memory */
static float *in[2], *out[2];
static size_t bytes;

static void stream(float *to, const float *a, const float *b, size_t n)
{
#if defined(__x86_64__)
    for (size_t i = 0; i < n; i += 4) _mm_stream_ps(to + i, b ? _mm_add_ps(_mm_loadu_ps(a + i), _mm_loadu_ps(b + i)) : _mm_loadu_ps(a + i));
    _mm_sfence();
#else
    for (size_t i = 0; i < n; i++) to[i] = a[i] + (b ? b[i] : 0);
#endif
}

static void sum_plain(int me)
{
    const size_t n = bytes / 8, from = (size_t)me * n;
    const float *a = in[0] + from, *b = in[1] + from;
    float *x = out[0] + from, *y = out[1] + from;
#pragma GCC ivdep
    for (size_t i = 0; i < n; i++) x[i] = y[i] = a[i] + b[i];
}

static void sum(int me)
{
    const size_t n = bytes / 8, from = (size_t)me * n; /* half of the floats each */
    for (size_t at = from; at < from + n; at += 1024) { /* the sum of a block is still in cache when it is stored again */
        const size_t k = from + n - at < 1024 ? from + n - at : 1024;
        stream(out[0] + at, in[0] + at, in[1] + at, k);
        stream(out[1] + at, in[0] + at, in[1] + at, k);
    }
}

static double copy(int far)
{
    double best = 1e30;
    for (int k = 0; k < REPEATS; k++) {
        const double begin = now_us();
        if (far) stream(out[0], in[0], NULL, 16 * MIB);
        else memcpy(out[0], in[0], 64 * MIB);
        const double t = now_us() - begin;
        if (t < best) best = t;
    }
    return 64.0 * MIB / best / 1e3;
}

/* ---- TCP */
static int sockets[2];
static char *wire[2];
static size_t message;
static int rounds;

static void connect_pair(void)
{
    const int one = 1, listener = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof a;
    if (bind(listener, (struct sockaddr *)&a, n) || listen(listener, 1) || getsockname(listener, (struct sockaddr *)&a, &n)) exit(1);
    sockets[0] = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(sockets[0], (struct sockaddr *)&a, n)) exit(1);
    sockets[1] = accept(listener, NULL, NULL);
    close(listener);
    for (int i = 0; i < 2; i++) setsockopt(sockets[i], IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
}

static void swap_messages(int me)
{
    for (int r = 0; r < rounds; r++)
        for (size_t sent = 0, got = 0; sent < message || got < message;) {
            ssize_t n = sent < message ? send(sockets[me], wire[me] + sent, message - sent, MSG_DONTWAIT | MSG_NOSIGNAL) : 0;
            if (n > 0) sent += (size_t)n;
            n = got < message ? recv(sockets[me], wire[me] + MIB + got, message - got, MSG_DONTWAIT) : 0;
            if (n > 0) got += (size_t)n;
        }
}

int main(void)
{
    if (sched_getaffinity(0, sizeof all, &all) || CPU_COUNT(&all) < 2) return fprintf(stderr, "limits: needs two CPUs\n"), 1;
    printf("{\"line_us\": %.4f", both(swap_lines) / SWAPS);
    for (int i = 0; i < 2; i++) in[i] = memory(sizes[SIZES - 1]), out[i] = memory(sizes[SIZES - 1]), wire[i] = memory(2 * MIB);
    printf(", \"copy_gbs\": %.2f, \"copy_far_gbs\": %.2f, \"sum_us\": {", copy(0), copy(1));
    for (int i = 0; i < SIZES; i++) {
        bytes = sizes[i];
        const double plain = both(sum_plain), streaming = both(sum);
        printf("%s\"%zu\": %.2f", i ? ", " : "", bytes, plain < streaming ? plain : streaming);
    }
    connect_pair();
    message = 8, rounds = 2000;
    printf("}, \"tcp_us\": %.2f", both(swap_messages) / rounds);
    message = MIB, rounds = 20;
    printf(", \"tcp_gbs\": %.2f}\n", (double)MIB * rounds / both(swap_messages) / 1e3);
    return 0;
}
