/* SPDX-License-Identifier: Apache-2.0
 *
 * Starting ranks on this machine and staying with them to the end: what `hocket run` does, and `hocket perf -n`.
 *
 * Each rank leads a process group of its own, so that what it starts ends with it. A keeper process outlives a launcher that is
 * killed just long enough to end these groups. */
#ifndef HOCKET_LAUNCH_H
#define HOCKET_LAUNCH_H

#include "tool.h"

#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <sys/types.h>

#define LAUNCH_GRACE_US 5000000u /* between asking ranks to end and killing them */

typedef struct launch_options {
    const char *name;        /* "hocket run", for messages */
    int ranks;               /* to start here */
    int node, nodes;         /* this machine among the job's; each starts as many ranks */
    const char *addr, *port; /* where rank 0 is met; nodes > 1 only */
    uint64_t timeout_us;     /* 0: none */
    bool unbound, prefix, verbose;
    const char *transport, *pace; /* NULL: as the environment says */
    int hosts_of;            /* ranks that count as one host; 0: the real hosts */
    char **argv;             /* program and arguments, NULL-terminated */
} launch_options;

/* Starts the ranks, waits for all, leaves nothing behind. Returns the exit code. */
int launch(const launch_options *);

/* ---- Between the parts of the launcher */

typedef struct launch_line { int fd; size_t n; char text[4096]; } launch_line; /* a rank's output up to the next newline */

typedef struct launch_rank {
    pid_t pid;
    bool ended;
    int code;                /* exit code, 128 + n for signal n */
    launch_line out[2];      /* --prefix: its standard output and error; fd -1 otherwise */
} launch_rank;

typedef struct launch_job {
    const launch_options *o;
    launch_rank *ranks;
    int alive, first_rank;   /* first_rank: global number of the first one here */
    int code;                /* the job's exit code, -1 while nothing has gone wrong */
    bool ending, killed;
    uint64_t limit_us, kill_us; /* UINT64_MAX: never */
    int signals;             /* signalfd */
    int exec_error[2];       /* pipe: errno of a rank that could not run the program */
    struct pollfd *polls;
    int now_fd;
    const hk_tool_now *now;  /* one a rank; NULL if the kernel refuses */
    cpu_set_t cpus;          /* allowed; empty if unknown */
    int threads;             /* OMP_NUM_THREADS of a rank */
    char id[33];             /* HOCKET_JOB */
    int master_port;         /* MASTER_PORT: free when it was looked for; 0: none */
    volatile pid_t *groups;  /* shared with the keeper: process groups to end; 0 = none */
    int keeper_pipe;
    pid_t keeper;
} launch_job;

/* launch_rank.c: forks rank i, false if the kernel refuses. */
bool launch_start(launch_job *, int i);
/* launch_keeper.c */
bool launch_keep(launch_job *);
void launch_keep_end(launch_job *);
/* launch_output.c: pipes before the fork; what the rank does with them; reading what has come. */
void launch_output_open(launch_rank *, int write_end[2]);
void launch_output_drain(launch_job *, int i);
void launch_output_close(launch_job *, int i);
/* launch_now.c */
void launch_now_open(launch_job *);
void launch_now_print(const launch_job *, FILE *);

#endif
