/* SPDX-License-Identifier: Apache-2.0
 * --prefix: ranks write to pipes, whole lines come out with "[rank] " before them. */
#include "launch.h"

#include <fcntl.h>
#include <string.h>
#include <unistd.h>

void launch_output_open(launch_rank *r, int write_end[2])
{
    for (int k = 0; k < 2; k++) {
        int ends[2];
        r->out[k].n = 0;
        if (pipe2(ends, O_CLOEXEC)) continue; /* that stream goes out as it is */
        fcntl(ends[0], F_SETFL, O_NONBLOCK);
        r->out[k].fd = ends[0];
        write_end[k] = ends[1];
    }
}

static void put(int fd, const char *text, size_t n)
{
    while (n) {
        const ssize_t k = write(fd, text, n);
        if (k <= 0) return;
        text += k, n -= (size_t)k;
    }
}

/* One write a line, so that lines of other writers do not come between. */
static void put_line(int rank, int to, const char *text, size_t n)
{
    char line[sizeof((launch_line *)0)->text + 32];
    const int head = snprintf(line, 32, "[%d] ", rank);
    memcpy(line + head, text, n);
    line[(size_t)head + n] = '\n';
    put(to, line, (size_t)head + n + 1);
}

/* Passes on what the pipe holds; false when it has ended. */
static bool pass_on(launch_line *l, int rank, int to)
{
    for (;;) {
        const ssize_t got = read(l->fd, l->text + l->n, sizeof l->text - l->n);
        if (got <= 0) return got < 0;
        l->n += (size_t)got;
        size_t start = 0;
        for (const char *end; (end = memchr(l->text + start, '\n', l->n - start)); start = (size_t)(end - l->text) + 1)
            put_line(rank, to, l->text + start, (size_t)(end - l->text) - start);
        if (start == 0 && l->n == sizeof l->text) put_line(rank, to, l->text, l->n), start = l->n;
        memmove(l->text, l->text + start, l->n - start);
        l->n -= start;
    }
}

static void stop(launch_line *l, int rank, int to)
{
    if (l->n) put_line(rank, to, l->text, l->n);
    close(l->fd);
    l->fd = -1;
}

void launch_output_drain(launch_job *j, int i)
{
    for (int k = 0; k < 2; k++) {
        launch_line *l = &j->ranks[i].out[k];
        if (l->fd >= 0 && !pass_on(l, j->first_rank + i, k + 1)) stop(l, j->first_rank + i, k + 1);
    }
}

void launch_output_close(launch_job *j, int i)
{
    launch_output_drain(j, i);
    for (int k = 0; k < 2; k++)
        if (j->ranks[i].out[k].fd >= 0) stop(&j->ranks[i].out[k], j->first_rank + i, k + 1);
}
