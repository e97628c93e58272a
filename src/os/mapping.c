/* SPDX-License-Identifier: Apache-2.0
 * What an address is a mapping of, as the kernel sees it, and mappings put in the place of others. */
#include "os/os.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* Linux 6.11's question to /proc/self/maps (PROCMAP_QUERY, linux/fs.h), which headers of older systems lack. */
typedef struct question {
    uint64_t size, flags, address;
    uint64_t start, end, is, page_bytes, offset, inode;
    uint32_t major, minor, name_bytes, build_id_bytes;
    uint64_t name, build_id;
} question;
_Static_assert(sizeof(question) == 104, "as the kernel has it");
#define ASK _IOWR('f', 17, question)
enum { READABLE = 1, WRITABLE = 2, SHARED = 8 };

static bool ask(int maps, uintptr_t address, hki_mapping *m)
{
    char name[64] = "";
    question q = {.size = sizeof q, .address = address, .name_bytes = sizeof name, .name = (uintptr_t)name};
    if (ioctl(maps, ASK, &q)) return false;
    *m = (hki_mapping){.start = q.start, .end = q.end, .offset = q.offset, .inode = q.inode, .shared = q.is & SHARED,
                       .plain = (q.is & READABLE) && (q.is & WRITABLE) && !(q.is & SHARED) && !q.inode && strncmp(name, "[stack", 6)};
    return true;
}

/* The same from the text, tens of microseconds. */
static bool look_up(uintptr_t address, hki_mapping *m)
{
    char text[512];
    bool found = false;
    FILE *f = fopen("/proc/self/maps", "re");
    while (f && !found && fgets(text, sizeof text, f)) {
        unsigned long start, end, offset, inode;
        char rights[8] = "", name[64] = "";
        if (sscanf(text, "%lx-%lx %7s %lx %*x:%*x %lu %63s", &start, &end, rights, &offset, &inode, name) < 5) continue;
        if (address < start || address >= end) continue;
        *m = (hki_mapping){.start = start, .end = end, .offset = offset, .inode = inode, .shared = rights[3] == 's',
                           .plain = !strcmp(rights, "rw-p") && !inode && strncmp(name, "[stack", 6)};
        found = true;
    }
    if (f) fclose(f);
    return found;
}

int hki_maps_open(void)
{
    const int fd = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
    hki_mapping m;
    if (fd >= 0 && ask(fd, (uintptr_t)&hki_maps_open, &m)) return fd;
    if (fd >= 0) close(fd);
    return -1;
}

bool hki_mapping_at(int maps, const void *address, hki_mapping *m)
{
    return maps >= 0 ? ask(maps, (uintptr_t)address, m) : look_up((uintptr_t)address, m);
}

uint64_t hki_inode(int fd)
{
    struct stat st;
    return fstat(fd, &st) ? 0 : st.st_ino;
}

bool hki_map_over(void *at, size_t bytes, int fd, uint64_t offset)
{
    return mmap(at, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED | MAP_NORESERVE, fd, (off_t)offset) != MAP_FAILED;
}

bool hki_map_private_over(void *at, size_t bytes)
{
    return mmap(at, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != MAP_FAILED;
}

/* Linux 5.14; before, the pages come one by one. */
enum { POPULATE_READ = 22, POPULATE_WRITE = 23 };
void hki_populate(void *at, size_t bytes, bool write) { madvise(at, bytes, write ? POPULATE_WRITE : POPULATE_READ); }

void hki_advise_huge(void *at, size_t bytes) { madvise(at, bytes, MADV_HUGEPAGE); }
