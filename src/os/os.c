/* SPDX-License-Identifier: Apache-2.0 */
#include "os/os.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

uint64_t hki_now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000u + (uint64_t)t.tv_nsec / 1000u;
}

void hki_yield(void) { sched_yield(); }

enum { FENCE_ALL = 1 << 1, FENCE_JOIN = 1 << 2 }; /* MEMBARRIER_CMD_GLOBAL_EXPEDITED and its registration */

bool hki_fence_join(void) { return syscall(SYS_membarrier, FENCE_JOIN, 0, 0) == 0; }
void hki_fence_all(void) { syscall(SYS_membarrier, FENCE_ALL, 0, 0); }

void hki_random(void *buf, size_t n)
{
    unsigned char *p = buf;
    while (n) {
        const ssize_t got = getrandom(p, n, 0);
        if (got < 0 && errno == EINTR) continue;
        HKI_ASSERT(got > 0);
        p += got;
        n -= (size_t)got;
    }
}

/* Two numbers of a file, or of two files; false: not there, or no numbers ("max"). */
static bool read_pair(const char *one, const char *two, long long *a, long long *b)
{
    FILE *f = fopen(one, "re");
    if (!f) return false;
    bool ok = fscanf(f, "%lld", a) == 1;
    if (!two) ok = ok && fscanf(f, "%lld", b) == 1;
    fclose(f);
    if (!ok || !two) return ok;
    if (!(f = fopen(two, "re"))) return false;
    ok = fscanf(f, "%lld", b) == 1;
    fclose(f);
    return ok;
}

/* The tightest quota of a group and of those it is in, in CPUs rounded up; 0 = none. at: where groups are; path: "/a/b", cut up. */
static uint32_t quota_of(const char *at, char *path, bool v2)
{
    uint32_t least = 0;
    for (;;) {
        char one[640], two[640];
        long long most, period;
        snprintf(one, sizeof one, "%s%s/%s", at, path, v2 ? "cpu.max" : "cpu.cfs_quota_us");
        snprintf(two, sizeof two, "%s%s/cpu.cfs_period_us", at, path);
        if (read_pair(one, v2 ? NULL : two, &most, &period) && most > 0 && period > 0) {
            const uint32_t n = (uint32_t)((most + period - 1) / period);
            least = least && least < n ? least : n;
        }
        char *slash = strrchr(path, '/');
        if (!slash) return least;
        *slash = 0;
    }
}

/* Of this process's control group, version 2 or 1. */
static uint32_t quota(void)
{
    char line[512];
    uint32_t least = 0;
    FILE *f = fopen("/proc/self/cgroup", "re");
    while (f && fgets(line, sizeof line, f)) {
        char *controllers = strchr(line, ':'), *path = controllers ? strchr(++controllers, ':') : NULL;
        if (!path) continue;
        *path++ = 0;
        path[strcspn(path, "\n")] = 0;
        if (!strcmp(path, "/")) *path = 0;
        const bool v2 = !*controllers, v1 = !strncmp(controllers, "cpu", 3) && (controllers[3] == ',' || !controllers[3]);
        const uint32_t n = v2 ? quota_of("/sys/fs/cgroup", path, true) : v1 ? quota_of("/sys/fs/cgroup/cpu", path, false) : 0;
        if (n && (!least || n < least)) least = n;
    }
    if (f) fclose(f);
    return least;
}

uint32_t hki_affinity(void *mask_out)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    if (sched_getaffinity(0, sizeof set, &set)) {
        const long n = sysconf(_SC_NPROCESSORS_ONLN);
        return n > 0 ? (uint32_t)n : 1;
    }
    if (mask_out) memcpy(mask_out, &set, sizeof set);
    return (uint32_t)CPU_COUNT(&set);
}

size_t hki_cache_bytes(void)
{
    const long l3 = sysconf(_SC_LEVEL3_CACHE_SIZE), l2 = sysconf(_SC_LEVEL2_CACHE_SIZE);
    return l3 > 0 ? (size_t)l3 : l2 > 0 ? (size_t)l2 : (size_t)32 << 20;
}

uint32_t hki_cpus(void)
{
    const uint32_t allowed = hki_affinity(NULL), q = quota();
    const uint32_t n = q && q < allowed ? q : allowed;
    return n ? n : 1;
}

void hki_hostname(char out[64])
{
    if (gethostname(out, 63)) strcpy(out, "?");
    out[63] = 0;
}

uint64_t hki_host_key(void)
{
    const char *pretend = hki_env("HOCKET_HOST_KEY");
    return pretend ? hki_hash_bytes(1, pretend, strlen(pretend)) : hki_machine_key();
}

uint64_t hki_machine_key(void)
{
    char id[128] = "";
    FILE *f = fopen("/proc/sys/kernel/random/boot_id", "re");
    if (f) {
        if (!fgets(id, 64, f)) id[0] = 0;
        fclose(f);
    }
    struct stat ns;
    const uint64_t net = stat("/proc/self/ns/net", &ns) ? 0 : ns.st_ino;
    return hki_mix(hki_hash_bytes(2, id, strlen(id)), net);
}

/* ---- Memory files ---------------------------------------------------------------------------------------------------- */

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U
#endif

int hki_memfd(size_t bytes)
{
    int fd = memfd_create("hocket", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL);
    if (fd < 0 && errno == EINVAL) fd = memfd_create("hocket", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0) return -errno;
    if (ftruncate(fd, (off_t)bytes) || fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)) {
        const int e = errno;
        close(fd);
        return -e;
    }
    return fd;
}

void *hki_map_shared(int fd, size_t bytes, bool writable)
{
    struct stat st;
    if (fstat(fd, &st) || st.st_size < 0 || (size_t)st.st_size < bytes) return NULL; /* else touching it could raise SIGBUS */
    void *p = mmap(NULL, bytes, PROT_READ | (writable ? PROT_WRITE : 0), MAP_SHARED | MAP_NORESERVE, fd, 0);
    return p == MAP_FAILED ? NULL : p;
}

void *hki_map_shared_if_sealed(int fd, size_t bytes)
{
    const int seals = fcntl(fd, F_GET_SEALS);
    return seals >= 0 && (seals & F_SEAL_SHRINK) ? hki_map_shared(fd, bytes, true) : NULL;
}

void *hki_map_private(size_t bytes)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return p == MAP_FAILED ? NULL : p;
}

void hki_unmap(void *p, size_t bytes)
{
    if (p) munmap(p, bytes);
}

void hki_punch(void *p, size_t bytes) { madvise(p, bytes, MADV_REMOVE); }
size_t hki_page(void) { return (size_t)sysconf(_SC_PAGESIZE); }

size_t hki_segment_limit(void)
{
    const size_t page = hki_page(), ram = (size_t)sysconf(_SC_PHYS_PAGES) * page;
    size_t limit = hki_min(ram, (size_t)64 << 30);
    struct rlimit as;
    if (!getrlimit(RLIMIT_AS, &as) && as.rlim_cur != RLIM_INFINITY) limit = hki_min(limit, (size_t)as.rlim_cur / 64);
#if defined __SANITIZE_THREAD__ || defined __SANITIZE_ADDRESS__
    limit = hki_min(limit, (size_t)1 << 30); /* shadow memory is costly */
#endif
    return limit / page * page;
}

int hki_life_lock(int fd)
{
    struct flock l = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 0, .l_len = 1};
    return fcntl(fd, F_SETLK, &l) ? -errno : 0;
}

bool hki_life_held(int fd)
{
    struct flock l = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 0, .l_len = 1};
    return fcntl(fd, F_GETLK, &l) || l.l_type != F_UNLCK;
}
