/* SPDX-License-Identifier: Apache-2.0
 *
 * From a meeting to a communicator, in rounds every rank goes through alike:
 *   1. who I am and how I am set (hello). From the same table every rank draws the same conclusions, errors included.
 *   2. ranks with one host key pass their segments' descriptors through the lowest of them, by a local socket.
 *   3. who could map all of them; hosts where one could not use TCP. TCP ports of those that listen.
 * A rank that fails says so in round 3 and all fail together. */
#include "comm/comm.h"

#include "base/wire.h"
#include "boot/boot.h"
#include "diag/log.h"
#include "os/os.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- Round 1: the hello, 640 bytes ---------------------------------------------------------------------------------------- */

#define HELLO 640

typedef struct hello {
    uint32_t version, wire;
    int32_t pid;
    uint32_t cpus, transport, strict, slots, shares; /* shares: has a memory file that others can map */
    uint64_t host_key, token, nonce, slot_bytes, machine;
    uint64_t forced_hash;
    char host[64], bell[32], forced[64], address[HKI_ADDRESSES][64];
    uint64_t mask[16]; /* CPUs it may run on */
} hello;

static void pack_hello(const hello *h, uint8_t p[HELLO])
{
    const uint32_t words[] = {h->version, h->wire, (uint32_t)h->pid, h->cpus, h->transport, h->strict, h->slots, h->shares};
    const uint64_t longs[] = {h->host_key, h->token, h->nonce, h->slot_bytes, h->machine};
    memset(p, 0, HELLO);
    for (size_t i = 0; i < HKI_COUNT(words); i++) hki_put32(p + 4 * i, words[i]);
    for (size_t i = 0; i < HKI_COUNT(longs); i++) hki_put64(p + 32 + 8 * i, longs[i]);
    hki_put_text(p + 72, h->host, 64);
    hki_put_text(p + 136, h->bell, 32);
    hki_put_text(p + 168, h->forced, 64);
    for (int i = 0; i < HKI_ADDRESSES; i++) hki_put_text(p + 232 + 64 * i, h->address[i], 64);
    for (int i = 0; i < 16; i++) hki_put64(p + 488 + 8 * i, h->mask[i]);
    hki_put64(p + 616, h->forced_hash);
}

static void unpack_hello(const uint8_t p[HELLO], hello *h)
{
    uint32_t *const words[] = {&h->version, &h->wire, (uint32_t *)&h->pid, &h->cpus, &h->transport, &h->strict, &h->slots, &h->shares};
    uint64_t *const longs[] = {&h->host_key, &h->token, &h->nonce, &h->slot_bytes, &h->machine};
    for (size_t i = 0; i < HKI_COUNT(words); i++) *words[i] = hki_get32(p + 4 * i);
    for (size_t i = 0; i < HKI_COUNT(longs); i++) *longs[i] = hki_get64(p + 32 + 8 * i);
    hki_get_text(p + 72, h->host, 64);
    hki_get_text(p + 136, h->bell, 32);
    hki_get_text(p + 168, h->forced, 64);
    for (int i = 0; i < HKI_ADDRESSES; i++) hki_get_text(p + 232 + 64 * i, h->address[i], 64);
    for (int i = 0; i < 16; i++) h->mask[i] = hki_get64(p + 488 + 8 * i);
    h->forced_hash = hki_get64(p + 616);
}

static void my_hello(const hki_engine *e, const hki_settings *s, const hk_config *config, hello *h)
{
    const char *wire = hki_env("HOCKET_WIRE_VERSION"), *algo = config && config->algorithm ? config->algorithm : hki_env("HOCKET_ALGO");
    *h = (hello){.version = HK_VERSION, .wire = wire ? (uint32_t)strtoul(wire, NULL, 10) : HKI_WIRE_VERSION, .pid = (int32_t)getpid(),
                 .cpus = hki_cpus(), .transport = s->transport, .strict = s->strict, .slots = s->slots,
                 .shares = e->segment->fd >= 0 && e->fd_listener >= 0 && hki_transport_near(), .host_key = hki_host_key(), .machine = hki_machine_key(),
                 .token = e->segment->token, .slot_bytes = s->slot_bytes, .forced_hash = s->forced_hash};
    hki_random(&h->nonce, sizeof h->nonce);
    hki_affinity(h->mask);
    hki_hostname(h->host);
    memcpy(h->bell, e->bell_name, sizeof h->bell);
    snprintf(h->forced, sizeof h->forced, "%s", algo ? algo : "");
    hki_own_addresses(h->address, HKI_ADDRESSES);
}

/* Settings that would make ranks choose differently. The text names the first rank that differs from rank 0, with both values. */
static bool agree(const hello *h, uint32_t ranks, char error[160])
{
    static const char *const transports[] = {"auto", "shm", "tcp"};
    for (uint32_t r = 1; r < ranks; r++) {
        char a[96] = "", b[96] = "";
        const char *what = NULL;
        const hello *x = &h[0], *y = &h[r];
        if (x->wire != y->wire) what = "wire version", snprintf(a, 96, "%u", x->wire), snprintf(b, 96, "%u", y->wire);
        else if (x->forced_hash != y->forced_hash) what = "HOCKET_ALGO", snprintf(a, 96, "'%.30s'", x->forced), snprintf(b, 96, "'%.30s'", y->forced);
        else if (x->transport != y->transport)
            what = "transport", snprintf(a, 96, "%s", transports[x->transport % 3]), snprintf(b, 96, "%s", transports[y->transport % 3]);
        else if (x->strict != y->strict) what = "determinism", snprintf(a, 96, "%s", x->strict ? "strict" : "run"), snprintf(b, 96, "%s", y->strict ? "strict" : "run");
        else if (x->slot_bytes != y->slot_bytes) what = "HOCKET_SLOT_BYTES", snprintf(a, 96, "%llu", (unsigned long long)x->slot_bytes), snprintf(b, 96, "%llu", (unsigned long long)y->slot_bytes);
        else if (x->slots != y->slots) what = "HOCKET_SLOTS", snprintf(a, 96, "%u", x->slots), snprintf(b, 96, "%u", y->slots);
        if (what) return snprintf(error, 160, "%s differs: %.30s on rank 0 (%.16s), %.30s on rank %u (%.16s)", what, a, x->host, b, r,
                                  y->host), false;
    }
    return true;
}

/* ---- Round 2: descriptors ---------------------------------------------------------------------------------------------------- */

typedef struct party {
    hki_engine *engine;
    const hki_settings *settings;
    hello *hellos;
    hki_peer *peer;
    uint32_t ranks, rank;
    uint64_t deadline_us;
} party;

static uint32_t leader_of(const party *p, uint32_t rank)
{
    uint32_t r = 0;
    while (p->hellos[r].host_key != p->hellos[rank].host_key) r++;
    return r;
}

static bool same_process(const party *p, uint32_t r) { return p->hellos[r].token == p->engine->segment->token; }

/* The first rank of each process speaks for it. */
static bool speaks(const party *p, uint32_t r)
{
    for (uint32_t q = 0; q < r; q++)
        if (p->hellos[q].token == p->hellos[r].token) return false;
    return true;
}

static bool in_group(const party *p, uint32_t r) { return leader_of(p, r) == leader_of(p, p->rank) && speaks(p, r); }

static void adopt(party *p, int fd, uint32_t r)
{
    hki_lock_take(&p->engine->lock);
    hki_view *v = hki_engine_view(p->engine, fd, p->hellos[r].token, p->hellos[r].bell);
    if (!v) hki_close(fd);
    else {
        p->peer[r].view = v;
        for (uint32_t q = r + 1; q < p->ranks; q++) /* other ranks of that process */
            if (p->hellos[q].token == p->hellos[r].token) p->peer[q].view = v, v->users++;
    }
    hki_lock_give(&p->engine->lock);
}

/* Takes the descriptors of the others of the host as they come; false if not all have by the deadline. */
static bool take_all(party *p, int *fds, int *socks)
{
    uint32_t expected = 0, got = 0;
    for (uint32_t r = 0; r < p->ranks; r++) {
        fds[r] = socks[r] = -1;
        expected += in_group(p, r) && !same_process(p, r);
    }
    while (got < expected && hki_poll_fd(p->engine->fd_listener, false, p->deadline_us) == 1) {
        const int s = hki_accept(p->engine->fd_listener);
        uint32_t r = UINT32_MAX;
        int fd = -1;
        if (s < 0) continue;
        const uint64_t until = hki_min(p->deadline_us, hki_now_us() + 2000000);
        if (hki_recv_fd(s, &fd, &r, sizeof r, until) || r >= p->ranks || fd < 0 || fds[r] >= 0 || !in_group(p, r)) {
            hki_close(fd);
            hki_close(s);
            continue;
        }
        fds[r] = fd;
        socks[r] = s;
        got++;
    }
    return got == expected;
}

/* The lowest rank of a host takes everyone's descriptor, then hands each all the others'. */
static void lead(party *p)
{
    int *fds = hki_alloc(p->ranks * sizeof *fds), *socks = hki_alloc(p->ranks * sizeof *socks);
    if (fds && socks) {
        const bool all = take_all(p, fds, socks);
        for (uint32_t to = 0; all && to < p->ranks; to++)
            for (uint32_t r = 0; socks[to] >= 0 && r < p->ranks; r++) {
                if (r == to || !in_group(p, r)) continue;
                hki_send_fd(socks[to], fds[r] >= 0 ? fds[r] : p->engine->segment->fd, &r, sizeof r);
            }
        for (uint32_t r = 0; r < p->ranks; r++) {
            if (fds[r] >= 0) adopt(p, fds[r], r);
            hki_close(socks[r]);
        }
    }
    hki_free(fds);
    hki_free(socks);
}

static void follow(party *p)
{
    char name[64];
    snprintf(name, sizeof name, "hocket-fd-%016llx", (unsigned long long)p->hellos[leader_of(p, p->rank)].token);
    int s = -1;
    while ((s = hki_unix_connect(name)) == -EAGAIN && hki_now_us() < p->deadline_us) hki_poll_fd(-1, false, hki_now_us() + 1000);
    uint32_t me = p->rank, expected = 0;
    for (uint32_t r = 0; r < p->ranks; r++) expected += in_group(p, r) && !same_process(p, r);
    if (s >= 0 && !hki_send_fd(s, p->engine->segment->fd, &me, sizeof me))
        for (uint32_t i = 0; i < expected; i++) {
            uint32_t r = UINT32_MAX;
            int fd = -1;
            if (hki_recv_fd(s, &fd, &r, sizeof r, p->deadline_us)) break;
            if (fd >= 0 && r < p->ranks && in_group(p, r) && !same_process(p, r) && !p->peer[r].view) adopt(p, fd, r);
            else hki_close(fd);
        }
    hki_close(s);
}

static bool share_memory(party *p)
{
    const uint32_t leader = leader_of(p, p->rank);
    for (uint32_t r = 0; r < p->ranks; r++) /* ranks of this very process */
        if (same_process(p, r)) {
            hki_lock_take(&p->engine->lock);
            hki_view *v = hki_engine_view(p->engine, -1, p->hellos[r].token, "");
            if (!v && (v = hki_view_of(p->engine->segment, p->engine->bell_name))) {
                v->users = 1;
                v->next = p->engine->views;
                p->engine->views = v;
            }
            p->peer[r].view = v;
            hki_lock_give(&p->engine->lock);
        }
    bool possible = p->settings->transport != HKI_ONLY_TCP; /* only if all of the host have something to pass */
    for (uint32_t r = 0; r < p->ranks; r++) possible &= leader_of(p, r) != leader || p->hellos[r].shares;
    if (possible && speaks(p, p->rank)) {
        if (same_process(p, leader)) lead(p);
        else follow(p);
    }
    hki_life_lock(p->engine->segment->fd);
    for (uint32_t r = 0; r < p->ranks; r++)
        if (leader_of(p, r) == leader && !p->peer[r].view) return false;
    return true;
}

/* ---- Round 3: results ---------------------------------------------------------------------------------------------------------- */

typedef struct outcome { uint8_t shares, ok, port[2]; char error[124]; } outcome;

static void introduce(party *p)
{
    for (uint32_t r = 0; r < p->ranks; r++) {
        const hello *h = &p->hellos[r];
        hki_peer *q = &p->peer[r];
        memcpy(q->host, h->host, sizeof q->host);
        memcpy(q->bell, h->bell, sizeof q->bell);
        memcpy(q->address, h->address, sizeof q->address);
        q->pid = h->pid;
        q->host_key = h->host_key;
        q->token = h->token;
    }
}

/* Ranks of a host where everyone mapped everyone form a group; others are alone. Returns whether any two ranks need TCP. */
static bool form_groups(party *p, const outcome *o)
{
    bool apart = false;
    for (uint32_t r = 0; r < p->ranks; r++) {
        bool all = p->settings->transport != HKI_ONLY_TCP;
        for (uint32_t q = 0; q < p->ranks; q++) all &= leader_of(p, q) != leader_of(p, r) || o[q].shares;
        p->peer[r].group = all ? leader_of(p, r) : r;
        apart |= p->peer[r].group != p->peer[0].group;
    }
    for (uint32_t r = 0; r < p->ranks; r++) {
        hki_peer *q = &p->peer[r];
        if (r == p->rank || !q->view || (q->group == p->peer[p->rank].group)) continue;
        hki_lock_take(&p->engine->lock);
        hki_engine_unview(p->engine, q->view);
        q->view = NULL;
        hki_lock_give(&p->engine->lock);
    }
    return apart && p->ranks > 1;
}

static void open_port(party *p, outcome *mine)
{
    char error[160] = "";
    hki_lock_take(&p->engine->lock);
    if (hki_engine_listen(p->engine, error)) hki_put16(mine->port, p->engine->tcp_port);
    else mine->ok = 0, snprintf(mine->error, sizeof mine->error, "%.120s", error);
    hki_lock_give(&p->engine->lock);
}

static hk_status settle(party *p, hki_meeting *m, char text[HKI_MEETING_TEXT])
{
    outcome mine = {.ok = 1, .shares = share_memory(p)}, *all = hki_alloc(p->ranks * sizeof *all);
    if (!all) return snprintf(text, HKI_MEETING_TEXT, "out of memory"), HK_NO_MEMORY;
    hk_status status = hki_meeting_swap(m, &mine, all, sizeof mine, p->deadline_us, text);
    const bool apart = !status && form_groups(p, all);
    if (!status && apart && p->settings->transport == HKI_ONLY_SHM) {
        snprintf(text, HKI_MEETING_TEXT, "transport shm was asked for, but not all ranks can share memory (other hosts, or memory files refused)");
        status = HK_UNSUPPORTED;
    }
    if (!status && apart) {
        if (!mine.shares) HKI_LOG(INFO, SHM, p->rank, "memory cannot be shared with all ranks of this host: TCP is used between them");
        open_port(p, &mine);
        status = hki_meeting_swap(m, &mine, all, sizeof mine, p->deadline_us, text);
        for (uint32_t r = 0; !status && r < p->ranks; r++) {
            p->peer[r].port = hki_get16(all[r].port);
            if (!all[r].ok) {
                char why[124];
                hki_get_text((const uint8_t *)all[r].error, why, sizeof why);
                snprintf(text, HKI_MEETING_TEXT, "rank %u cannot use TCP: %.120s", r, why);
                status = HK_BOOT;
            }
        }
    }
    hki_free(all);
    return status;
}

/* ---- All together --------------------------------------------------------------------------------------------------------------- */

static hk_status swap_hellos(party *p, hki_meeting *m, const hk_config *config, char text[HKI_MEETING_TEXT])
{
    uint8_t mine[HELLO], *all = hki_alloc(p->ranks * (size_t)HELLO);
    hello h;
    if (!all) return snprintf(text, HKI_MEETING_TEXT, "out of memory"), HK_NO_MEMORY;
    my_hello(p->engine, p->settings, config, &h);
    pack_hello(&h, mine);
    hk_status status = hki_meeting_swap(m, mine, all, HELLO, p->deadline_us, text);
    for (uint32_t r = 0; !status && r < p->ranks; r++) unpack_hello(all + r * (size_t)HELLO, &p->hellos[r]);
    hki_free(all);
    if (!status && !agree(p->hellos, p->ranks, text)) status = HK_BOOT;
    return status;
}

/* Do ranks outnumber CPUs on the machine of rank r (hosts may be pretended, CPUs not)? Ranks bound to one CPU each have the CPUs of all of them together; a quota counts
 * for each process alike. */
static bool crowded_at(const party *p, uint32_t r)
{
    uint32_t here = 0, cpus = 0, quota = 0;
    uint64_t mask[16] = {0};
    for (uint32_t q = 0; q < p->ranks; q++) {
        const hello *h = &p->hellos[q];
        if (h->machine != p->hellos[r].machine) continue;
        uint32_t own = 0;
        here++;
        for (int i = 0; i < 16; i++) mask[i] |= h->mask[i], own += (uint32_t)__builtin_popcountll(h->mask[i]);
        if (h->cpus < own) quota = h->cpus;
    }
    for (int i = 0; i < 16; i++) cpus += (uint32_t)__builtin_popcountll(mask[i]);
    return here > (quota ? quota : cpus);
}

static bool crowded(const party *p)
{
    for (uint32_t r = 0; r < p->ranks; r++)
        if (crowded_at(p, r)) return true;
    return false;
}

static hk_status assemble(party *p, hki_meeting *m, const hk_config *config, hk_comm **comm, char text[HKI_MEETING_TEXT])
{
    hk_status status = swap_hellos(p, m, config, text);
    if (!status) introduce(p);
    if (!status) status = settle(p, m, text);
    hki_peers *block = status ? NULL : hki_alloc(sizeof *block);
    hki_peer **peers = block ? hki_alloc(p->ranks * sizeof *peers) : NULL;
    if (!status && !peers) status = HK_NO_MEMORY, snprintf(text, HKI_MEETING_TEXT, "out of memory");
    if (!status) {
        for (uint32_t r = 0; r < p->ranks; r++) peers[r] = &p->peer[r];
        *block = (hki_peers){.users = 1, .n = p->ranks, .peer = p->peer, .crowded = crowded(p)};
        status = hki_comm_make(comm, p->engine, p->settings, block, peers, p->ranks, p->rank, hki_mix(p->hellos[0].nonce, p->ranks), text);
    }
    /* Everyone's area is published before anyone is let go. */
    uint8_t ok = status == HK_OK, *all = hki_alloc(p->ranks);
    char ignored[HKI_MEETING_TEXT];
    if (!all && !status) status = HK_NO_MEMORY, snprintf(text, HKI_MEETING_TEXT, "out of memory");
    if (all && (status == HK_OK || *comm)) {
        const hk_status end = hki_meeting_swap(m, &ok, all, 1, p->deadline_us, status ? ignored : text);
        if (!status) status = end;
    }
    hki_free(all);
    if (!status) return HK_OK;
    if (*comm) {
        hk_comm_destroy(*comm); /* frees the engine's count, the block and the peers too */
        *comm = NULL;
        p->engine = NULL;
        p->peer = NULL;
    } else {
        hki_free(block);
        hki_free(peers);
    }
    return status;
}

static hk_status meet(hk_comm **comm, hki_meeting *m, uint32_t ranks, uint32_t rank, hki_engine *e, const hki_settings *s, const hk_config *config,
                      uint64_t deadline_us)
{
    char text[HKI_MEETING_TEXT] = "out of memory";
    party p = {.engine = e, .settings = s, .ranks = ranks, .rank = rank, .deadline_us = deadline_us};
    p.hellos = hki_alloc(ranks * sizeof *p.hellos);
    p.peer = hki_alloc(ranks * sizeof *p.peer);
    hk_status status = p.hellos && p.peer ? assemble(&p, m, config, comm, text) : HK_NO_MEMORY;
    if (status) {
        for (uint32_t r = 0; p.engine && p.peer && r < ranks; r++)
            if (p.peer[r].view) {
                hki_lock_take(&e->lock);
                hki_engine_unview(e, p.peer[r].view);
                hki_lock_give(&e->lock);
            }
        hki_free(p.peer);
        if (p.engine) hki_engine_put(e);
        hki_error(NULL, status, "rank %u of %u: %s", rank, ranks, text);
        HKI_LOG(WARN, BOOTSTRAP, rank, "%s", text);
    } else {
        HKI_LOG(INFO, INIT, rank, "rank %u of %u on %s, %s", rank, ranks, p.hellos[rank].host,
                !(*comm)->any_tcp ? "shared memory" : s->transport == HKI_ONLY_TCP ? "TCP" : "shared memory and TCP");
    }
    hki_free(p.hellos);
    hki_meeting_close(m);
    return status;
}

/* ---- Ids: the maker keeps the listening sockets until its communicator is made ------------------------------------------------- */

typedef struct minted { struct minted *next; hki_place place; int listening[2]; } minted;
static struct { pthread_mutex_t lock; minted *list; } mint = {.lock = PTHREAD_MUTEX_INITIALIZER};

#define ID_MAGIC 0x31304469u /* "iD01" */

static void pack_id(const hki_place *p, hk_id *id)
{
    uint8_t *b = (uint8_t *)id->bytes;
    memset(id, 0, sizeof *id);
    hki_put32(b, ID_MAGIC);
    hki_put16(b + 4, p->port);
    hki_put64(b + 8, p->job);
    for (int i = 0; i < 3 && i < p->addresses; i++) hki_put_text(b + 16 + 37 * i, p->address[i], 37);
}

static bool unpack_id(const hk_id *id, hki_place *p)
{
    const uint8_t *b = (const uint8_t *)id->bytes;
    memset(p, 0, sizeof *p);
    if (hki_get32(b) != ID_MAGIC) return false;
    p->port = hki_get16(b + 4);
    p->job = hki_get64(b + 8);
    for (int i = 0; i < 3; i++) {
        hki_get_text(b + 16 + 37 * i, p->address[i], 37);
        if (*p->address[i]) p->addresses = i + 1;
    }
    snprintf(p->local, sizeof p->local, "hocket-id-%016llx", (unsigned long long)p->job);
    snprintf(p->shown, sizeof p->shown, "the id's maker (%s port %u)", p->addresses ? p->address[0] : "this host", p->port);
    return true;
}

HK_API hk_status hk_id_create(hk_id *id)
{
    if (!id) return hki_error(NULL, HK_INVALID, "hk_id_create: id is NULL");
    minted *n = hki_alloc(sizeof *n);
    if (!n) return hki_error(NULL, HK_NO_MEMORY, "out of memory");
    hki_place *p = &n->place;
    hki_random(&p->job, sizeof p->job);
    p->addresses = hki_own_addresses(p->address, 3);
    snprintf(p->local, sizeof p->local, "hocket-id-%016llx", (unsigned long long)p->job);
    hki_place any = *p;
    any.addresses = 0;
    const int r = hki_place_listen(&any, true, n->listening);
    if (r < 0) {
        hki_free(n);
        return hki_error(NULL, HK_SYSTEM, "hk_id_create: no port to listen on: %s", strerror(-r));
    }
    p->port = any.port;
    pack_id(p, id);
    unpack_id(id, p);
    pthread_mutex_lock(&mint.lock);
    n->next = mint.list;
    mint.list = n;
    pthread_mutex_unlock(&mint.lock);
    return HK_OK;
}

/* The sockets of an id made in this process and not yet used. */
static bool claim(uint64_t job, int listening[2])
{
    bool found = false;
    pthread_mutex_lock(&mint.lock);
    for (minted **at = &mint.list; *at; at = &(*at)->next) {
        minted *n = *at;
        if (n->place.job != job) continue;
        memcpy(listening, n->listening, sizeof n->listening);
        *at = n->next;
        hki_free(n);
        found = true;
        break;
    }
    pthread_mutex_unlock(&mint.lock);
    return found;
}

/* While ranks meet, this rank's other communicators go on: a peer may have to finish an operation with it before it can come. */
static bool go_on(void *arg)
{
    hki_engine *e = arg;
    hki_lock_take(&e->lock);
    const bool busy = e->comms != NULL;
    if (busy) {
        hki_engine_pump(e);
        hki_engine_check(e, hki_now_us());
    }
    hki_lock_give(&e->lock);
    return busy;
}

/* host: this rank listens at the place (listening[]: already open, or both -1). */
static hk_status create_at(hk_comm **comm, hki_place *place, bool host, int listening[2], uint32_t ranks, uint32_t rank, const hk_config *config)
{
    char error[HKI_MEETING_TEXT];
    hki_settings s;
    hk_status status = hki_settings_read(&s, config, error);
    hki_engine *e = status ? NULL : hki_engine_get(&status, error);
    const uint64_t deadline = hki_now_us() + s.init_timeout_us;
    hki_meeting *m = NULL;
    if (!status && host && listening[0] < 0 && listening[1] < 0) {
        const int r = hki_place_listen(place, false, listening);
        if (r == -EADDRINUSE) snprintf(error, sizeof error, "%.120s is in use: another job or program has it. Choose another port", place->shown);
        else if (r == -EADDRNOTAVAIL) {
            char own[HKI_PLACE_ADDRESSES][64];
            const int n = hki_own_addresses(own, HKI_PLACE_ADDRESSES);
            snprintf(error, sizeof error, "%.100s is not an address of this host (has: %.40s%s%.40s)", place->shown, n ? own[0] : "none",
                     n > 1 ? ", " : "", n > 1 ? own[1] : "");
        } else if (r < 0) snprintf(error, sizeof error, "cannot listen at %.120s: %s", place->shown, strerror(-r));
        if (r < 0) status = HK_BOOT;
    }
    if (!status) {
        const hki_idle idle = {go_on, e};
        m = host ? hki_meeting_host(listening, place, ranks, rank, idle) : hki_meeting_join(place, ranks, rank, idle, deadline, error);
        if (!m && host) snprintf(error, sizeof error, "out of memory");
        if (!m) status = host ? HK_NO_MEMORY : HK_BOOT;
    }
    if (status) {
        if (host && !m) hki_close(listening[0]), hki_close(listening[1]);
        if (e) hki_engine_put(e);
        return hki_error(NULL, status, "rank %u of %u: %s", rank, ranks, error);
    }
    return meet(comm, m, ranks, rank, e, &s, config, deadline);
}

HK_API hk_status hk_comm_create(hk_comm **comm, int ranks, int rank, const hk_id *id, const hk_config *config)
{
    hki_place place;
    if (!comm || !id) return hki_error(NULL, HK_INVALID, "hk_comm_create: %s is NULL", comm ? "id" : "comm");
    *comm = NULL;
    if (ranks < 1 || ranks > 65536 || rank < 0 || rank >= ranks)
        return hki_error(NULL, HK_INVALID, "hk_comm_create: rank %d of %d ranks: ranks count from 0 to ranks - 1", rank, ranks);
    if (!unpack_id(id, &place)) return hki_error(NULL, HK_INVALID, "hk_comm_create: id was not made by hk_id_create");
    int listening[2] = {-1, -1};
    const bool host = claim(place.job, listening);
    return create_at(comm, &place, host, listening, (uint32_t)ranks, (uint32_t)rank, config);
}

HK_API hk_status hk_comm_create_env(hk_comm **comm, const hk_config *config)
{
    char text[512];
    hki_launch l;
    if (!comm) return hki_error(NULL, HK_INVALID, "hk_comm_create_env: comm is NULL");
    *comm = NULL;
    if (!hki_launch_read(&l, text)) return hki_error(NULL, HK_BOOT, "%s", text);
    int listening[2] = {-1, -1};
    if (l.pmi_fd >= 0) {
        char error[HKI_MEETING_TEXT];
        hki_settings s;
        const hk_status bad = hki_settings_read(&s, config, error);
        if (bad) return hki_error(NULL, bad, "%s", error);
        hki_place any = l.place;
        any.addresses = 0; /* listens on all of them */
        const int r = l.rank == 0 ? hki_place_listen(&any, true, listening) : 0;
        if (r < 0) return hki_error(NULL, HK_SYSTEM, "rank 0 of %u: no port to listen on: %s", l.ranks, strerror(-r));
        l.place.port = any.port;
        if (!hki_pmi_swap_place(l.pmi_fd, &l.place, l.rank == 0, hki_now_us() + s.init_timeout_us, error)) {
            hki_close(listening[1]);
            return hki_error(NULL, HK_BOOT, "rank %u of %u: %s", l.rank, l.ranks, error);
        }
    }
    const hk_status status = create_at(comm, &l.place, l.rank == 0, listening, l.ranks, l.rank, config);
    if (!status) hki_comm_show_launcher(*comm);
    return status;
}
