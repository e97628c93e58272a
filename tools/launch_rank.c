/* SPDX-License-Identifier: Apache-2.0
 * Between fork and exec: everything that makes a process rank i of the job. */
#include "launch.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <unistd.h>

static void set_number(const char *name, long v)
{
    char text[24];
    snprintf(text, sizeof text, "%ld", v);
    setenv(name, text, 1);
}

/* CPUs of one rank: its share of the allowed ones where they outnumber the ranks, else allowed CPU i mod C. */
static int share(const launch_job *j)
{
    const int c = CPU_COUNT(&j->cpus);
    return c > j->o->ranks ? c / j->o->ranks : 1;
}

static void bind_cpus(const launch_job *j, int i)
{
    const int c = CPU_COUNT(&j->cpus), each = share(j);
    if (j->o->unbound || c == 0) return;
    cpu_set_t mine;
    CPU_ZERO(&mine);
    for (int cpu = 0, k = 0; cpu < CPU_SETSIZE; cpu++) {
        if (!CPU_ISSET(cpu, &j->cpus)) continue;
        if (k / each == i % (c / each)) CPU_SET(cpu, &mine);
        k++;
    }
    sched_setaffinity(0, sizeof mine, &mine);
}

static void set_meeting_place(const launch_job *j)
{
    static const char *const others[] = {"HOCKET_JOB",  "HOCKET_ADDR", "HOCKET_PORT",
                                         "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_USE_AGENT_STORE"};
    for (unsigned i = 0; i < sizeof others / sizeof *others; i++) unsetenv(others[i]); /* an outer job's */
    if (j->o->nodes > 1) {
        setenv("HOCKET_ADDR", j->o->addr, 1);
        setenv("HOCKET_PORT", j->o->port, 1);
    } else {
        setenv("HOCKET_JOB", j->id, 1);
    }
    if (!j->master_port) return;
    setenv("MASTER_ADDR", j->o->nodes > 1 ? j->o->addr : "127.0.0.1", 1);
    set_number("MASTER_PORT", j->master_port);
}

static void set_environment(const launch_job *j, int i)
{
    const launch_options *o = j->o;
    set_number("HOCKET_RANK", j->first_rank + i), set_number("RANK", j->first_rank + i);
    set_number("HOCKET_RANKS", o->ranks * o->nodes), set_number("WORLD_SIZE", o->ranks * o->nodes);
    set_number("LOCAL_RANK", i), set_number("LOCAL_WORLD_SIZE", o->ranks);
    set_meeting_place(j);
    if (!getenv("OMP_NUM_THREADS")) set_number("OMP_NUM_THREADS", j->threads);
    if (o->transport) setenv("HOCKET_TRANSPORT", o->transport, 1);
    if (o->pace) setenv("HOCKET_PACE", o->pace, 1);
    if (o->hosts_of) {
        char key[48];
        snprintf(key, sizeof key, "fake-%d.%d", o->node, i / o->hosts_of);
        setenv("HOCKET_HOST_KEY", key, 1);
    }
    if (j->now) set_number("HOCKET_NOW_FD", j->now_fd), set_number("HOCKET_NOW_SLOT", i);
    else unsetenv("HOCKET_NOW_FD"), unsetenv("HOCKET_NOW_SLOT");
}

/* The first rank reads our standard input, unless that is a terminal: a process group in the background may not. */
static void set_streams(int i, const int out[2])
{
    if (i > 0 || isatty(STDIN_FILENO)) {
        const int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
        if (null >= 0) dup2(null, STDIN_FILENO);
    }
    if (out[0] >= 0) dup2(out[0], STDOUT_FILENO);
    if (out[1] >= 0) dup2(out[1], STDERR_FILENO);
}

static _Noreturn void become(const launch_job *j, int i, pid_t launcher, const int out[2])
{
    sigset_t none;
    setpgid(0, 0);
    j->groups[i] = getpid();
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != launcher) _exit(TOOL_SIGNAL + SIGKILL); /* it ended before the line above */
    set_streams(i, out);
    set_environment(j, i);
    bind_cpus(j, i);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    execvp(j->o->argv[0], j->o->argv);
    const int error = errno;
    if (write(j->exec_error[1], &error, sizeof error) < 0) _exit(TOOL_CANNOT_RUN);
    _exit(error == ENOENT ? TOOL_NOT_FOUND : TOOL_CANNOT_RUN);
}

bool launch_start(launch_job *j, int i)
{
    int out[2] = {-1, -1};
    const pid_t launcher = getpid();
    if (j->o->prefix) launch_output_open(&j->ranks[i], out);
    const pid_t pid = fork();
    if (pid == 0) become(j, i, launcher, out);
    const int error = errno;
    for (int k = 0; k < 2; k++)
        if (out[k] >= 0) close(out[k]);
    errno = error;
    if (pid < 0) return false;
    setpgid(pid, pid); /* the child does the same: whoever comes first */
    j->groups[i] = pid;
    j->ranks[i].pid = pid;
    j->alive++;
    return true;
}
