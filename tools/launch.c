/* SPDX-License-Identifier: Apache-2.0
 * The life of a job: one loop over signals, output and time. */
#include "launch.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

static uint64_t now_us(void) { return tool_now_ns() / 1000; }

static void signal_groups(const launch_job *j, int sig)
{
    for (int i = 0; i < j->o->ranks; i++)
        if (j->ranks[i].pid > 0 && !j->ranks[i].ended) kill(-j->ranks[i].pid, sig);
}

static void kill_all(launch_job *j)
{
    j->killed = true;
    j->kill_us = UINT64_MAX;
    signal_groups(j, SIGKILL);
}

/* Asks all ranks to end; the first reason gives the exit code. Stopped ranks are woken so that they hear it. */
static void end_job(launch_job *j, int code, int sig)
{
    if (j->code < 0) j->code = code;
    if (j->ending) return;
    j->ending = true;
    j->kill_us = now_us() + LAUNCH_GRACE_US;
    signal_groups(j, sig);
    signal_groups(j, SIGCONT);
}

static void on_stop_signal(launch_job *j, int sig)
{
    if (j->ending) return kill_all(j);
    fprintf(stderr, "%s: signal %d: ending the ranks (once more kills them)\n", j->o->name, sig);
    end_job(j, TOOL_SIGNAL + sig, sig);
}

/* Ctrl-Z: the ranks are in other process groups, so the terminal does not stop them. */
static void on_pause(const launch_job *j)
{
    signal_groups(j, SIGSTOP);
    raise(SIGSTOP);
    signal_groups(j, SIGCONT);
}

/* ---- Ends of ranks */

/* One line that names the rank; returns the job's exit code. */
static int report_end(launch_job *j, int i)
{
    const launch_rank *r = &j->ranks[i];
    const int sig = r->code > TOOL_SIGNAL ? r->code - TOOL_SIGNAL : 0;
    int error;
    if (read(j->exec_error[0], &error, sizeof error) == (ssize_t)sizeof error) {
        fprintf(stderr, "%s: cannot run '%s': %s\n", j->o->name, j->o->argv[0], strerror(error));
        return error == ENOENT ? TOOL_NOT_FOUND : TOOL_CANNOT_RUN;
    }
    fprintf(stderr, "%s: rank %d (pid %d) ", j->o->name, j->first_rank + i, (int)r->pid);
    if (sig) fprintf(stderr, "killed by signal %d (%s)\n", sig, sig == SIGKILL ? "out of memory?" : strsignal(sig));
    else fprintf(stderr, "exited with code %d\n", r->code);
    return r->code;
}

static int rank_of(const launch_job *j, pid_t pid)
{
    for (int i = 0; i < j->o->ranks; i++)
        if (j->ranks[i].pid == pid) return i;
    return -1;
}

/* Takes one ended process. -1: none; otherwise its rank, or `ranks` for a process that is none. */
static int reap_one(launch_job *j)
{
    siginfo_t info = {0};
    if (waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) || !info.si_pid) return -1;
    const int i = rank_of(j, info.si_pid);
    /* What it left in its group ends now: until the leader is reaped the group's number cannot be another's. */
    if (i >= 0) kill(-info.si_pid, SIGKILL), j->groups[i] = 0;
    waitpid(info.si_pid, NULL, 0);
    if (i < 0) return j->o->ranks;
    j->ranks[i].ended = true;
    j->ranks[i].code = info.si_code == CLD_EXITED ? info.si_status : TOOL_SIGNAL + info.si_status;
    j->alive--;
    launch_output_close(j, i);
    return i;
}

/* Of several ranks that ended together one that a signal killed is the likelier cause. */
static void reap(launch_job *j)
{
    int first = -1;
    bool first_by_signal = false;
    for (int i; (i = reap_one(j)) >= 0;) {
        if (i == j->o->ranks || j->ranks[i].code == 0 || j->ending) continue;
        const bool by_signal = j->ranks[i].code > TOOL_SIGNAL;
        if (first < 0 || (by_signal && !first_by_signal)) first = i, first_by_signal = by_signal;
    }
    if (first >= 0) end_job(j, report_end(j, first), SIGTERM);
}

/* ---- The loop */

static void on_signals(launch_job *j)
{
    struct signalfd_siginfo s;
    while (read(j->signals, &s, sizeof s) == (ssize_t)sizeof s) {
        switch (s.ssi_signo) {
        case SIGCHLD: reap(j); break;
        case SIGQUIT: launch_now_print(j, stderr); break;
        case SIGTSTP: on_pause(j); break;
        default: on_stop_signal(j, (int)s.ssi_signo); break;
        }
    }
}

static void on_time(launch_job *j)
{
    const uint64_t now = now_us();
    if (now >= j->limit_us) {
        j->limit_us = UINT64_MAX;
        fprintf(stderr, "%s: time limit of %g s passed\n", j->o->name, (double)j->o->timeout_us / 1e6);
        launch_now_print(j, stderr);
        end_job(j, TOOL_TIME_LIMIT, SIGTERM);
    }
    if (now >= j->kill_us) {
        fprintf(stderr, "%s: %d of %d ranks did not end within %u s: killed\n", j->o->name, j->alive, j->o->ranks,
                LAUNCH_GRACE_US / 1000000u);
        kill_all(j);
    }
}

static int poll_ms(const launch_job *j)
{
    const uint64_t next = j->limit_us < j->kill_us ? j->limit_us : j->kill_us, now = now_us();
    if (next == UINT64_MAX) return -1;
    return next <= now ? 0 : next - now > 3600000000u ? 3600000 : (int)((next - now) / 1000 + 1);
}

static void watch(launch_job *j)
{
    const int n = j->o->ranks;
    while (j->alive) {
        j->polls[0] = (struct pollfd){.fd = j->signals, .events = POLLIN};
        for (int k = 0; k < 2 * n; k++) j->polls[1 + k] = (struct pollfd){.fd = j->ranks[k / 2].out[k % 2].fd, .events = POLLIN};
        if (poll(j->polls, (nfds_t)(j->o->prefix ? 1 + 2 * n : 1), poll_ms(j)) < 0 && errno != EINTR) break;
        for (int i = 0; j->o->prefix && i < n; i++) launch_output_drain(j, i);
        on_signals(j);
        on_time(j);
    }
}

/* ---- Begin and end */

/* From here on signals are read, not delivered; ranks get the old mask back. Those a shell made us ignore in the background are
 * still ours to forward; an ignored hangup (nohup) stays ignored. */
static void take_signals(launch_job *j, sigset_t *old)
{
    static const int taken[] = {SIGCHLD, SIGINT, SIGTERM, SIGQUIT, SIGTSTP, SIGHUP};
    sigset_t set;
    sigemptyset(&set);
    for (unsigned i = 0; i < sizeof taken / sizeof *taken; i++) {
        struct sigaction now;
        sigaction(taken[i], NULL, &now);
        if (taken[i] == SIGHUP && now.sa_handler == SIG_IGN) continue;
        signal(taken[i], SIG_DFL);
        sigaddset(&set, taken[i]);
    }
    sigprocmask(SIG_BLOCK, &set, old);
    j->signals = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
}

static void name_job(launch_job *j)
{
    unsigned char random[16];
    if (getrandom(random, sizeof random, 0) != (ssize_t)sizeof random)
        memcpy(random, &(uint64_t[2]){tool_now_ns(), (uint64_t)getpid()}, sizeof random);
    for (int i = 0; i < 16; i++) snprintf(j->id + 2 * i, 3, "%02x", random[i]);
}

/* Where torch.distributed and others that read MASTER_ADDR meet: next to hocket's own port, or on a port free now. */
static int find_master_port(const launch_options *o)
{
    if (o->nodes > 1) {
        const long port = strtol(o->port, NULL, 10);
        return port > 0 && port < 65535 ? (int)port + 1 : 0;
    }
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof a;
    const int s = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const bool found = s >= 0 && !bind(s, (struct sockaddr *)&a, n) && !getsockname(s, (struct sockaddr *)&a, &n);
    if (s >= 0) close(s);
    return found ? ntohs(a.sin_port) : 0;
}

static void say_settings(const launch_job *j)
{
    const launch_options *o = j->o;
    if (!o->verbose && !o->prefix) return;
    if (!getenv("OMP_NUM_THREADS"))
        fprintf(stderr, "%s: OMP_NUM_THREADS=%d for each rank (unset before)\n", o->name, j->threads);
    if (!o->verbose) return;
    const int first = j->first_rank, last = first + o->ranks - 1, all = o->ranks * o->nodes;
    fprintf(stderr, "%s: ranks %d to %d of %d, %s %s\n", o->name, first, last, all, o->nodes > 1 ? "meeting at" : "job",
            o->nodes > 1 ? o->addr : j->id);
}

int launch(const launch_options *o)
{
    sigset_t old;
    launch_job j = {.o = o, .first_rank = o->node * o->ranks, .code = -1, .limit_us = UINT64_MAX, .kill_us = UINT64_MAX};
    j.ranks = tool_alloc((size_t)o->ranks * sizeof *j.ranks);
    j.polls = tool_alloc((size_t)(1 + 2 * o->ranks) * sizeof *j.polls);
    for (int i = 0; i < o->ranks; i++) j.ranks[i].out[0].fd = j.ranks[i].out[1].fd = -1;
    if (sched_getaffinity(0, sizeof j.cpus, &j.cpus)) CPU_ZERO(&j.cpus);
    const int cpus = hk_tool_cpus();
    j.threads = cpus > o->ranks ? cpus / o->ranks : 1;
    name_job(&j);
    j.master_port = find_master_port(o);
    launch_now_open(&j);
    say_settings(&j);
    take_signals(&j, &old);
    if (j.signals < 0 || pipe2(j.exec_error, O_CLOEXEC | O_NONBLOCK) || !launch_keep(&j)) {
        fprintf(stderr, "%s: %s\n", o->name, strerror(errno));
        return TOOL_COMMUNICATOR;
    }
    fflush(NULL);
    for (int i = 0; i < o->ranks && j.code < 0; i++) {
        if (launch_start(&j, i)) continue;
        fprintf(stderr, "%s: cannot start rank %d: %s\n", o->name, j.first_rank + i, strerror(errno));
        end_job(&j, TOOL_COMMUNICATOR, SIGTERM);
    }
    if (o->timeout_us) j.limit_us = now_us() + o->timeout_us;
    watch(&j);
    launch_keep_end(&j);
    sigprocmask(SIG_SETMASK, &old, NULL);
    free(j.ranks);
    free(j.polls);
    return j.code < 0 ? TOOL_OK : j.code;
}
