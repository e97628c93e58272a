/* SPDX-License-Identifier: Apache-2.0
 * The keeper: a process that does nothing until the launcher is gone, then ends the process groups that are left. The kernel
 * kills the ranks themselves (parent-death signal), not what they have started. */
#include "launch.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

static _Noreturn void keep(const launch_job *j, int pipe_end)
{
    char byte;
    sigset_t all;
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, NULL);
    setsid();
    prctl(PR_SET_NAME, "hocket-keeper");
    const int null = open("/dev/null", O_RDWR);
    for (int fd = 0; null >= 0 && fd < 3; fd++) dup2(null, fd); /* no reader waits for our copy of a pipe */
    while (read(pipe_end, &byte, 1) > 0) {}
    for (int i = 0; i < j->o->ranks; i++)
        if (j->groups[i] > 0) kill(-j->groups[i], SIGKILL);
    _exit(0);
}

bool launch_keep(launch_job *j)
{
    int ends[2];
    void *shared = mmap(NULL, (size_t)j->o->ranks * sizeof *j->groups, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED || pipe2(ends, O_CLOEXEC)) return false;
    j->groups = shared;
    j->keeper = fork();
    if (j->keeper == 0) {
        close(ends[1]);
        keep(j, ends[0]);
    }
    close(ends[0]);
    j->keeper_pipe = ends[1];
    return j->keeper > 0;
}

void launch_keep_end(launch_job *j)
{
    close(j->keeper_pipe);
    waitpid(j->keeper, NULL, 0);
}
