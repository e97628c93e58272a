/* SPDX-License-Identifier: Apache-2.0
 *
 * The only room that calls the kernel: clock, chance, CPUs, memory files, sockets. Thin: no policy, no state but what it caches.
 * Functions that return int give a descriptor or 0 on success and -errno on failure. Descriptors are close-on-exec and, for
 * sockets, non-blocking. */
#ifndef HKI_OS_H
#define HKI_OS_H

#include "base/base.h"

#include <pthread.h>
#include <sys/socket.h>
#include <sys/types.h>

/* ---- Time, chance, processors */
uint64_t hki_now_us(void); /* monotonic */
uint64_t hki_now_ns(void); /* the same clock */
uint64_t hki_thread_cpu_ns(void); /* CPU time of the calling thread; a system call */
uint64_t hki_cpu_ns_of(pthread_t); /* of another, which has not been joined */
static inline void hki_pause(void)
{
#if defined __x86_64__
    __builtin_ia32_pause();
#elif defined __aarch64__
    __asm__ volatile("isb" ::: "memory");
#endif
}
void hki_yield(void);
/* Makes this process take part in hki_fence_all of others; false: the kernel does not offer it (membarrier, Linux 4.16). */
bool hki_fence_join(void);
/* A full fence on every CPU that runs a thread of a process that has joined, this one included: a few microseconds. */
void hki_fence_all(void);
void hki_random(void *buf, size_t n);
/* CPUs this process may use: affinity and cgroup quota (rounded up), at least 1. */
uint32_t hki_cpus(void);
/* Of the last-level cache that this CPU uses; a guess where the system does not say. */
size_t hki_cache_bytes(void);
uint32_t hki_affinity(void *mask_out /* 16 u64 or NULL */);

/* ---- Environment: every knob is in one table (os/env.c), which `hocket info env` prints. */
typedef struct hki_knob { const char *name, *values, *meaning; } hki_knob;
const hki_knob *hki_knobs(size_t *n);
/* The value, NULL if unset or empty. The name must be in the table. */
const char *hki_env(const char *name);
/* "5", "5s", "300ms", "2min" as microseconds (plain numbers are seconds); false if it is none. */
bool hki_parse_time(const char *text, uint64_t *us);
/* "1gbit", "100mbit", "125M" (bytes/s) as bytes per second; false if it is none. */
bool hki_parse_rate(const char *text, uint64_t *bytes_per_s);

/* ---- Who am I */
void hki_hostname(char out[64]);
/* Processes with equal keys have one kernel and one network namespace. */
uint64_t hki_machine_key(void);
/* The same, unless HOCKET_HOST_KEY pretends. */
uint64_t hki_host_key(void);
uint64_t hki_process_key(void); /* tells this process from all others */
uint32_t hki_thread_id(void);   /* as the system names it */

/* ---- Plain files */
int hki_folder_make(const char *path); /* one that is there already will do, if it can be written to */
int hki_file_create(const char *path); /* to be written, emptied if it is there */
int hki_file_write(int fd, const void *bytes, size_t n); /* all of it, whatever time that takes */

/* ---- Shared memory files */
/* A sealed memory file of that size (sparse); -errno if the kernel refuses. */
int hki_memfd(size_t bytes);
void *hki_map_shared(int fd, size_t bytes, bool writable); /* NULL on failure */
/* Only a memory file that cannot shrink: safe to touch whatever happens to it. */
void *hki_map_shared_if_sealed(int fd, size_t bytes);
void *hki_map_private(size_t bytes);                       /* zeroed, shared with nobody (but fork children) */
void hki_unmap(void *, size_t bytes);
/* Gives the pages of a range of a shared mapping back; they read as zero after. */
void hki_punch(void *, size_t bytes);
size_t hki_page(void);
/* Largest sensible address range for one memory file: RAM, at most 64 GiB, less under RLIMIT_AS. */
size_t hki_segment_limit(void);
/* A lock on the file that the kernel drops when this process ends (record lock: not inherited by fork). */
int hki_life_lock(int fd);
/* Is the life lock of the process that made this file still held? (Our own process always counts as alive.) */
bool hki_life_held(int fd);

/* What the pages at an address are. */
typedef struct hki_mapping {
    uint64_t start, end, offset, inode; /* inode 0: no file */
    bool shared;
    bool plain;                         /* private, readable, writable, no file, no stack: memory as malloc gives it */
} hki_mapping;
/* A descriptor that makes hki_mapping_at a system call instead of a search through a file; -1: this kernel has none (before Linux 6.11). */
int hki_maps_open(void);
bool hki_mapping_at(int maps, const void *address, hki_mapping *);
uint64_t hki_inode(int fd);
/* Whole pages in the place of whatever is mapped there. */
bool hki_map_over(void *at, size_t bytes, int fd, uint64_t offset);
bool hki_map_private_over(void *at, size_t bytes);
void hki_advise_huge(void *at, size_t bytes); /* where the system allows */
/* Makes the pages be there, to be written or only to be read, in one call instead of a fault each; whole pages. */
void hki_populate(void *at, size_t bytes, bool write);

/* ---- Local sockets (abstract names: nothing in the file system) */
int hki_unix_listen(const char *name, int backlog);
int hki_unix_connect(const char *name);
/* A datagram socket with a name chosen by the kernel, written to name (without the leading zero byte). */
int hki_bell_open(char name[32]);
void hki_bell_ring(int fd, const char *name);
bool hki_bell_clear(int fd); /* had it rung? */
int hki_send_fd(int sock, int fd, const void *note, size_t n);
int hki_recv_fd(int sock, int *fd, void *note, size_t n, uint64_t deadline_us);

/* ---- TCP */
/* Listens on addr ("" = any) and *port (0 = any, or within HOCKET_PORT_RANGE); *port becomes the port. */
int hki_tcp_listen(const char *addr, uint16_t *port, int backlog);
/* Starts to connect; finished when writable (hki_tcp_connected). */
int hki_tcp_dial(const char *addr, uint16_t port);
int hki_tcp_connected(int fd); /* 0, -EINPROGRESS or the error */
int hki_accept(int fd);
void hki_tcp_tune(int fd, uint64_t pace_bytes_per_s);
/* Numeric addresses of `host`, one per entry; returns how many. */
int hki_resolve(const char *host, char out[][64], int max);
/* This host's addresses, reachable ones first (loopback last), filtered by HOCKET_SOCKET_IFNAME. */
int hki_own_addresses(char out[][64], int max);
bool hki_address_is_local(const char *addr);

/* ---- Network interfaces: bytes that each has moved since the machine started, for everybody; its link in bytes per second, 0 = unknown */
typedef struct hki_interface { char name[16]; uint64_t sent, received, link; } hki_interface;
size_t hki_interfaces(hki_interface *, size_t max); /* how many */

/* ---- Streams */
/* Bytes moved, 0 if it would block, -errno (-EPIPE at end of file). */
ssize_t hki_sock_read(int fd, void *buf, size_t n);
ssize_t hki_sock_write(int fd, const void *buf, size_t n);
ssize_t hki_sock_write2(int fd, const void *a, size_t an, const void *b, size_t bn);
/* All n bytes by the deadline: 0, -ETIMEDOUT, -EPIPE or another error. */
int hki_read_full(int fd, void *buf, size_t n, uint64_t deadline_us);
int hki_write_full(int fd, const void *buf, size_t n, uint64_t deadline_us);
/* The same for pipes and other descriptors that are no sockets. */
int hki_pipe_read(int fd, void *buf, size_t n, uint64_t deadline_us);
int hki_pipe_write(int fd, const void *buf, size_t n, uint64_t deadline_us);
/* Waits until fd is readable (or writable): 1, 0 at the deadline. */
int hki_poll_fd(int fd, bool write, uint64_t deadline_us);
void hki_close(int fd);

/* ---- Readiness of many descriptors */
int hki_epoll(void);
int hki_epoll_add(int ep, int fd, bool in, bool out, uint64_t data);
int hki_epoll_mod(int ep, int fd, bool in, bool out, uint64_t data);
void hki_epoll_del(int ep, int fd);
/* Sleeps up to ms; fills data[] of ready ones, returns how many. */
int hki_epoll_wait(int ep, uint64_t *data, int max, int ms);

#endif
