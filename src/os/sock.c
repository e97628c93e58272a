/* SPDX-License-Identifier: Apache-2.0
 * Sockets: local and TCP, streams with deadlines, passing of descriptors, epoll. */
#include "os/os.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <unistd.h>

void hki_close(int fd)
{
    if (fd >= 0) close(fd);
}

static int failed(int fd)
{
    const int e = errno;
    hki_close(fd);
    return -e;
}

/* ---- Local ------------------------------------------------------------------------------------------------------------ */

static socklen_t unix_name(struct sockaddr_un *a, const char *name)
{
    memset(a, 0, sizeof *a);
    a->sun_family = AF_UNIX;
    const size_t n = strnlen(name, sizeof a->sun_path - 2);
    memcpy(a->sun_path + 1, name, n);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + n);
}

int hki_unix_listen(const char *name, int backlog)
{
    struct sockaddr_un a;
    const socklen_t n = unix_name(&a, name);
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) return -errno;
    if (bind(fd, (struct sockaddr *)&a, n) || listen(fd, backlog)) return failed(fd);
    return fd;
}

int hki_unix_connect(const char *name)
{
    struct sockaddr_un a;
    const socklen_t n = unix_name(&a, name);
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) return -errno;
    if (connect(fd, (struct sockaddr *)&a, n)) return failed(fd); /* local: done at once, or EAGAIN when the backlog is full */
    return fd;
}

int hki_bell_open(char name[32])
{
    const int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) return -errno;
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    socklen_t n = sizeof a.sun_family; /* only the family: the kernel picks an abstract name */
    if (bind(fd, (struct sockaddr *)&a, n)) return failed(fd);
    n = sizeof a;
    if (getsockname(fd, (struct sockaddr *)&a, &n)) return failed(fd);
    const size_t len = n - offsetof(struct sockaddr_un, sun_path) - 1;
    HKI_ASSERT(len < 32);
    memcpy(name, a.sun_path + 1, len);
    name[len] = 0;
    return fd;
}

void hki_bell_ring(int fd, const char *name)
{
    struct sockaddr_un a;
    const socklen_t n = unix_name(&a, name);
    while (sendto(fd, "", 1, MSG_DONTWAIT | MSG_NOSIGNAL, (struct sockaddr *)&a, n) < 0 && errno == EINTR) { }
    /* A full queue means the bell is already ringing; a vanished one, that nobody sleeps there. */
}

bool hki_bell_clear(int fd)
{
    char b[8];
    bool rung = false;
    while (recv(fd, b, sizeof b, MSG_DONTWAIT) >= 0) rung = true;
    return rung;
}

int hki_send_fd(int sock, int fd, const void *note, size_t n)
{
    struct iovec io = {.iov_base = (void *)(uintptr_t)note, .iov_len = n};
    union { struct cmsghdr h; char room[CMSG_SPACE(sizeof(int))]; } c;
    memset(&c, 0, sizeof c);
    struct msghdr m = {.msg_iov = &io, .msg_iovlen = 1};
    if (fd >= 0) {
        m.msg_control = c.room;
        m.msg_controllen = sizeof c.room;
        c.h.cmsg_level = SOL_SOCKET;
        c.h.cmsg_type = SCM_RIGHTS;
        c.h.cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(&c.h), &fd, sizeof fd);
    }
    ssize_t r;
    do r = sendmsg(sock, &m, MSG_NOSIGNAL);
    while (r < 0 && (errno == EINTR || (errno == EAGAIN && hki_poll_fd(sock, true, hki_now_us() + 5000000) == 1)));
    return r < 0 ? -errno : r == (ssize_t)n ? 0 : -EMSGSIZE;
}

int hki_recv_fd(int sock, int *fd, void *note, size_t n, uint64_t deadline_us)
{
    struct iovec io = {.iov_base = note, .iov_len = n};
    union { struct cmsghdr h; char room[CMSG_SPACE(sizeof(int))]; } c;
    struct msghdr m = {.msg_iov = &io, .msg_iovlen = 1, .msg_control = c.room, .msg_controllen = sizeof c.room};
    *fd = -1;
    if (hki_poll_fd(sock, false, deadline_us) != 1) return -ETIMEDOUT;
    ssize_t r;
    do r = recvmsg(sock, &m, MSG_CMSG_CLOEXEC);
    while (r < 0 && errno == EINTR);
    if (r < 0) return -errno;
    for (struct cmsghdr *h = CMSG_FIRSTHDR(&m); h; h = CMSG_NXTHDR(&m, h))
        if (h->cmsg_level == SOL_SOCKET && h->cmsg_type == SCM_RIGHTS && h->cmsg_len == CMSG_LEN(sizeof(int)))
            memcpy(fd, CMSG_DATA(h), sizeof *fd);
    return r == (ssize_t)n ? 0 : r == 0 ? -EPIPE : -EMSGSIZE;
}

/* ---- TCP -------------------------------------------------------------------------------------------------------------- */

/* A numeric address with a port; false if it is neither IPv4 nor IPv6. */
static bool numeric(const char *addr, uint16_t port, struct sockaddr_storage *out, socklen_t *n)
{
    memset(out, 0, sizeof *out);
    struct sockaddr_in *v4 = (struct sockaddr_in *)out;
    struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)out;
    if (inet_pton(AF_INET, addr, &v4->sin_addr) == 1) {
        v4->sin_family = AF_INET;
        v4->sin_port = htons(port);
        *n = sizeof *v4;
        return true;
    }
    memset(out, 0, sizeof *out);
    if (inet_pton(AF_INET6, addr, &v6->sin6_addr) == 1) {
        v6->sin6_family = AF_INET6;
        v6->sin6_port = htons(port);
        *n = sizeof *v6;
        return true;
    }
    return false;
}

/* Before the handshake, which settles the segment size by them: set later, a window smaller than a segment crawls. */
static void size_buffers(int fd)
{
    const char *text = hki_env("HOCKET_SOCKBUF");
    const int n = text ? atoi(text) : 0;
    if (n <= 0) return;
    setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &n, sizeof n);
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &n, sizeof n);
}

static int listen_on(const struct sockaddr_storage *a, socklen_t n, int backlog, uint16_t *port)
{
    const int fd = socket(a->ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), one = 1;
    if (fd < 0) return -errno;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    size_buffers(fd); /* accepted sockets inherit them */
    struct sockaddr_storage got;
    socklen_t gn = sizeof got;
    if (bind(fd, (const struct sockaddr *)a, n) || listen(fd, backlog) || getsockname(fd, (struct sockaddr *)&got, &gn)) return failed(fd);
    *port = ntohs(got.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&got)->sin6_port : ((struct sockaddr_in *)&got)->sin_port);
    return fd;
}

int hki_tcp_listen(const char *addr, uint16_t *port, int backlog)
{
    struct sockaddr_storage a;
    socklen_t n;
    unsigned first = *port, last = *port;
    const char *range = *port ? NULL : hki_env("HOCKET_PORT_RANGE");
    if (range && (sscanf(range, "%u-%u", &first, &last) != 2 || first == 0 || first > last || last > 65535)) return -EINVAL;
    int fd = -EADDRINUSE;
    for (unsigned p = first; p <= last && fd == -EADDRINUSE; p++) {
        if (!numeric(*addr ? addr : "0.0.0.0", (uint16_t)p, &a, &n)) return -EINVAL;
        fd = listen_on(&a, n, backlog, port);
    }
    return fd;
}

int hki_tcp_dial(const char *addr, uint16_t port)
{
    struct sockaddr_storage a;
    socklen_t n;
    if (!numeric(addr, port, &a, &n)) return -EINVAL;
    const int fd = socket(a.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) return -errno;
    hki_tcp_tune(fd, 0);
    size_buffers(fd);
    if (connect(fd, (struct sockaddr *)&a, n) && errno != EINPROGRESS) return failed(fd);
    return fd;
}

int hki_tcp_connected(int fd)
{
    struct pollfd p = {.fd = fd, .events = POLLOUT};
    if (poll(&p, 1, 0) != 1) return -EINPROGRESS;
    int e = 0;
    socklen_t n = sizeof e;
    if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &e, &n)) return -errno;
    return -e;
}

int hki_accept(int fd)
{
    int s;
    do s = accept4(fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    while (s < 0 && (errno == EINTR || errno == ECONNABORTED));
    return s < 0 ? -errno : s;
}

void hki_tcp_tune(int fd, uint64_t pace)
{
    const int one = 1, idle = 30, every = 10, tries = 3;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof one);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &every, sizeof every);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &tries, sizeof tries);
    if (pace) setsockopt(fd, SOL_SOCKET, SO_MAX_PACING_RATE, &pace, sizeof pace);
}

int hki_resolve(const char *host, char out[][64], int max)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *list = NULL;
    if (getaddrinfo(host, NULL, &hints, &list)) return 0;
    int n = 0;
    for (struct addrinfo *a = list; a && n < max; a = a->ai_next)
        if (!getnameinfo(a->ai_addr, a->ai_addrlen, out[n], 64, NULL, 0, NI_NUMERICHOST)) n++;
    freeaddrinfo(list);
    return n;
}

/* Does interface `name` with numeric address `addr` pass the comma list (prefix, =exact, ^exclude, a.b.c.d/bits)? */
static bool passes(const char *list, const char *name, const char *addr)
{
    char copy[256], *save = NULL;
    const bool inverted = *list == '^';
    snprintf(copy, sizeof copy, "%s", list + inverted);
    bool hit = false;
    for (char *t = strtok_r(copy, ",", &save); t; t = strtok_r(NULL, ",", &save)) {
        char *slash = strchr(t, '/');
        struct in_addr net, have;
        if (slash && (*slash = 0, inet_pton(AF_INET, t, &net) == 1)) {
            const int bits = atoi(slash + 1);
            const uint32_t mask = bits <= 0 ? 0 : bits >= 32 ? 0xffffffffu : ~(0xffffffffu >> bits);
            hit |= inet_pton(AF_INET, addr, &have) == 1 && ((ntohl(net.s_addr) ^ ntohl(have.s_addr)) & mask) == 0;
        } else {
            hit |= *t == '=' ? !strcmp(name, t + 1) : !strncmp(name, t, strlen(t));
        }
    }
    return hit != inverted;
}

static bool virtual_bridge(const char *name)
{
    return !strncmp(name, "docker", 6) || !strncmp(name, "virbr", 5) || !strncmp(name, "br-", 3) || !strncmp(name, "veth", 4);
}

int hki_own_addresses(char out[][64], int max)
{
    struct ifaddrs *list = NULL;
    if (getifaddrs(&list)) return 0;
    const char *filter = hki_env("HOCKET_SOCKET_IFNAME");
    int n = 0;
    for (int pass = 0; pass < 3; pass++) /* real interfaces, then bridges made by software, then loopback */
        for (struct ifaddrs *i = list; i && n < max; i = i->ifa_next) {
            if (!i->ifa_addr || !(i->ifa_flags & IFF_UP) || i->ifa_addr->sa_family != AF_INET) continue;
            const int kind = i->ifa_flags & IFF_LOOPBACK ? 2 : virtual_bridge(i->ifa_name) ? 1 : 0;
            char addr[64];
            if (kind != pass || getnameinfo(i->ifa_addr, sizeof(struct sockaddr_in), addr, sizeof addr, NULL, 0, NI_NUMERICHOST)) continue;
            if (filter && kind != 2 && !passes(filter, i->ifa_name, addr)) continue;
            memcpy(out[n++], addr, sizeof addr);
        }
    freeifaddrs(list);
    return n;
}

bool hki_address_is_local(const char *addr)
{
    struct sockaddr_storage a;
    socklen_t n;
    if (!numeric(addr, 0, &a, &n)) return false;
    const int fd = socket(a.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return false;
    const bool ok = !bind(fd, (struct sockaddr *)&a, n);
    close(fd);
    return ok;
}

/* ---- Streams ---------------------------------------------------------------------------------------------------------- */

static ssize_t moved(ssize_t r)
{
    if (r > 0) return r;
    if (r == 0) return -EPIPE;
    return errno == EAGAIN || errno == EWOULDBLOCK ? 0 : -errno;
}

ssize_t hki_sock_read(int fd, void *buf, size_t n)
{
    ssize_t r;
    do r = recv(fd, buf, n, MSG_DONTWAIT);
    while (r < 0 && errno == EINTR);
    return moved(r);
}

ssize_t hki_sock_write(int fd, const void *buf, size_t n) { return hki_sock_write2(fd, buf, n, NULL, 0); }

ssize_t hki_sock_write2(int fd, const void *a, size_t an, const void *b, size_t bn)
{
    struct iovec io[2] = {{(void *)(uintptr_t)a, an}, {(void *)(uintptr_t)b, bn}};
    struct msghdr m = {.msg_iov = io, .msg_iovlen = bn ? 2 : 1};
    ssize_t r;
    do r = sendmsg(fd, &m, MSG_DONTWAIT | MSG_NOSIGNAL);
    while (r < 0 && errno == EINTR);
    return moved(r);
}

int hki_poll_fd(int fd, bool write, uint64_t deadline_us)
{
    struct pollfd p = {.fd = fd, .events = write ? POLLOUT : POLLIN};
    for (;;) {
        const uint64_t now = hki_now_us();
        const int ms = now >= deadline_us ? 0 : (int)hki_min((deadline_us - now + 999) / 1000, 1000);
        const int r = poll(&p, 1, ms);
        if (r > 0) return 1;
        if ((r == 0 && now >= deadline_us) || (r < 0 && errno != EINTR)) return 0;
    }
}

int hki_read_full(int fd, void *buf, size_t n, uint64_t deadline_us)
{
    for (char *p = buf; n;) {
        const ssize_t r = hki_sock_read(fd, p, n);
        if (r < 0) return (int)r;
        if (r == 0 && !hki_poll_fd(fd, false, deadline_us)) return -ETIMEDOUT;
        p += r;
        n -= (size_t)r;
    }
    return 0;
}

int hki_write_full(int fd, const void *buf, size_t n, uint64_t deadline_us)
{
    for (const char *p = buf; n;) {
        const ssize_t r = hki_sock_write(fd, p, n);
        if (r < 0) return (int)r;
        if (r == 0 && !hki_poll_fd(fd, true, deadline_us)) return -ETIMEDOUT;
        p += r;
        n -= (size_t)r;
    }
    return 0;
}

int hki_pipe_read(int fd, void *buf, size_t n, uint64_t deadline_us)
{
    for (char *p = buf; n;) {
        if (!hki_poll_fd(fd, false, deadline_us)) return -ETIMEDOUT;
        const ssize_t r = read(fd, p, n);
        if (r == 0) return -EPIPE;
        if (r < 0 && errno != EINTR && errno != EAGAIN) return -errno;
        if (r > 0) p += r, n -= (size_t)r;
    }
    return 0;
}

int hki_pipe_write(int fd, const void *buf, size_t n, uint64_t deadline_us)
{
    for (const char *p = buf; n;) {
        if (!hki_poll_fd(fd, true, deadline_us)) return -ETIMEDOUT;
        const ssize_t r = write(fd, p, n);
        if (r < 0 && errno != EINTR && errno != EAGAIN) return -errno;
        if (r > 0) p += r, n -= (size_t)r;
    }
    return 0;
}

/* ---- epoll ------------------------------------------------------------------------------------------------------------ */

int hki_epoll(void)
{
    const int ep = epoll_create1(EPOLL_CLOEXEC);
    return ep < 0 ? -errno : ep;
}

static int control(int ep, int what, int fd, bool in, bool out, uint64_t data)
{
    struct epoll_event e = {.events = (in ? EPOLLIN | EPOLLRDHUP : 0u) | (out ? EPOLLOUT : 0u), .data.u64 = data};
    return epoll_ctl(ep, what, fd, &e) ? -errno : 0;
}

int hki_epoll_add(int ep, int fd, bool in, bool out, uint64_t data) { return control(ep, EPOLL_CTL_ADD, fd, in, out, data); }
int hki_epoll_mod(int ep, int fd, bool in, bool out, uint64_t data) { return control(ep, EPOLL_CTL_MOD, fd, in, out, data); }
void hki_epoll_del(int ep, int fd) { control(ep, EPOLL_CTL_DEL, fd, false, false, 0); }

int hki_epoll_wait(int ep, uint64_t *data, int max, int ms)
{
    struct epoll_event e[64];
    const int n = epoll_wait(ep, e, max < 64 ? max : 64, ms);
    for (int i = 0; i < n; i++) data[i] = e[i].data.u64;
    return n < 0 ? 0 : n;
}
