/* SPDX-License-Identifier: Apache-2.0
 * Files that are written from beginning to end, and what tells one process and one thread from another in them. */
#include "os/os.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/auxv.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static uint64_t clock_ns(clockid_t which)
{
    struct timespec t;
    clock_gettime(which, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

uint64_t hki_now_ns(void) { return clock_ns(CLOCK_MONOTONIC); }
uint64_t hki_thread_cpu_ns(void) { return clock_ns(CLOCK_THREAD_CPUTIME_ID); }

uint64_t hki_cpu_ns_of(pthread_t thread)
{
    clockid_t clock;
    return pthread_getcpuclockid(thread, &clock) ? 0 : clock_ns(clock);
}

uint32_t hki_thread_id(void)
{
    static _Thread_local uint32_t id; /* in a forked child the parent's: it tells threads apart all the same */
    if (!id) id = (uint32_t)syscall(SYS_gettid);
    return id;
}

/* The kernel gives each program it starts 16 random bytes; fork() copies them, so the number of the process is mixed in. */
uint64_t hki_process_key(void)
{
    const void *chance = (const void *)getauxval(AT_RANDOM); /* NOLINT: an address by contract */
    const uint64_t h = chance ? hki_hash_bytes(7, chance, 16) : 0;
    return hki_mix(h, (uint64_t)getpid());
}

int hki_folder_make(const char *path)
{
    struct stat s;
    if (mkdir(path, 0777) && errno != EEXIST) return -errno;
    if (stat(path, &s)) return -errno;
    if (!S_ISDIR(s.st_mode)) return -ENOTDIR;
    return access(path, W_OK | X_OK) ? -errno : 0;
}

int hki_file_create(const char *path)
{
    const int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    return fd < 0 ? -errno : fd;
}

int hki_file_write(int fd, const void *bytes, size_t n)
{
    const uint8_t *p = bytes;
    while (n) {
        const ssize_t r = write(fd, p, n);
        if (r < 0 && errno == EINTR) continue;
        if (r <= 0) return r ? -errno : -EIO;
        p += r;
        n -= (size_t)r;
    }
    return 0;
}
