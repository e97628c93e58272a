/* SPDX-License-Identifier: Apache-2.0 */
#include "boot/boot.h"

#include "base/wire.h"
#include "diag/log.h"
#include "os/os.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>

/* Frame: magic u32 | version u16 | kind u16 | job u64 | rank u32 | ranks u32 | bytes u32 | round u32, then `bytes` of body. */
#define HEAD 32
#define MAGIC 0x544f4248u /* "HBOT" */
#define VERSION 1
enum { COME = 1, TABLE, REFUSE };

#define PATIENCE_US 5000000 /* for a connection to say who it is */
#define STRANGERS 128       /* connections that have not said so yet */

typedef struct guest {
    int fd;
    uint32_t rank;          /* ranks: not known yet */
    uint8_t head[HEAD];
    size_t got;             /* of head and body together, in this round */
    uint64_t since_us;
} guest;

struct hki_meeting {
    uint32_t ranks, rank, round;
    uint64_t job;
    char shown[300];
    int listening[2];       /* host */
    guest *guests;          /* host: room for ranks + STRANGERS */
    uint32_t nguests;
    int fd;                 /* others */
    hki_idle idle;
};

static void put_head(uint8_t *h, int kind, const hki_meeting *m, uint32_t bytes)
{
    hki_put32(h, MAGIC);
    hki_put16(h + 4, VERSION);
    hki_put16(h + 6, (uint16_t)kind);
    hki_put64(h + 8, m->job);
    hki_put32(h + 16, m->rank);
    hki_put32(h + 20, m->ranks);
    hki_put32(h + 24, bytes);
    hki_put32(h + 28, m->round);
}

int hki_place_listen(hki_place *p, bool any_port, int out[2])
{
    out[0] = out[1] = -1;
    if (*p->local && (out[0] = hki_unix_listen(p->local, 256)) < 0) return out[0];
    if (!p->port && !any_port) return 0;
    /* One chosen address is bound; several mean that any will do. */
    out[1] = hki_tcp_listen(p->addresses == 1 ? p->address[0] : "", &p->port, 256);
    if (out[1] >= 0) return 0;
    hki_close(out[0]);
    return out[1];
}

hki_meeting *hki_meeting_host(const int listening[2], const hki_place *p, uint32_t ranks, uint32_t rank, hki_idle idle)
{
    hki_meeting *m = hki_alloc(sizeof *m);
    guest *guests = hki_alloc((ranks + STRANGERS) * sizeof *guests);
    if (!m || !guests) {
        hki_free(m);
        hki_free(guests);
        return NULL;
    }
    *m = (hki_meeting){.ranks = ranks, .rank = rank, .job = p->job, .guests = guests, .fd = -1, .idle = idle,
                       .listening = {listening[0], listening[1]}};
    memcpy(m->shown, p->shown, sizeof m->shown);
    return m;
}

void hki_meeting_close(hki_meeting *m)
{
    for (uint32_t i = 0; i < m->nguests; i++) hki_close(m->guests[i].fd);
    hki_close(m->listening[0]);
    hki_close(m->listening[1]);
    hki_close(m->fd);
    hki_free(m->guests);
    hki_free(m);
}

/* ---- The host ---------------------------------------------------------------------------------------------------------- */

static void refuse(hki_meeting *m, int fd, const char *why)
{
    uint8_t frame[HEAD + HKI_MEETING_TEXT];
    put_head(frame, REFUSE, m, HKI_MEETING_TEXT);
    hki_put_text(frame + HEAD, why, HKI_MEETING_TEXT);
    hki_write_full(fd, frame, sizeof frame, hki_now_us() + 200000);
}

static void drop(hki_meeting *m, uint32_t i)
{
    hki_close(m->guests[i].fd);
    m->guests[i] = m->guests[--m->nguests];
}

static bool present(const hki_meeting *m, uint32_t rank)
{
    for (uint32_t i = 0; i < m->nguests; i++)
        if (m->guests[i].rank == rank) return true;
    return rank == m->rank;
}

/* Who has not come; or, if all have, who came and has been silent since. */
static void missing_text(const hki_meeting *m, size_t bytes, char text[HKI_MEETING_TEXT])
{
    uint32_t absent = 0, named = 0;
    for (uint32_t r = 0; r < m->ranks; r++) absent += !present(m, r);
    int n = snprintf(text, HKI_MEETING_TEXT, "at %.80s: %s: rank", m->shown, absent ? "did not come in time" : "came, but fell silent (stopped?)");
    for (uint32_t r = 0; r < m->ranks && absent; r++)
        if (!present(m, r) && ++named <= 8) n += snprintf(text + n, (size_t)(HKI_MEETING_TEXT - n), " %u", r);
    for (uint32_t i = 0; i < m->nguests && !absent; i++)
        if (m->guests[i].got < HEAD + bytes && ++named <= 8) n += snprintf(text + n, (size_t)(HKI_MEETING_TEXT - n), " %u", m->guests[i].rank);
    snprintf(text + n, (size_t)(HKI_MEETING_TEXT - n), "%s (%u of %u are here)", named > 8 ? " ..." : "", m->ranks - absent, m->ranks);
}

/* A complete head of a newcomer. false: refused (the guest is to be dropped), with `fatal` text if the whole meeting fails. */
static bool welcome(hki_meeting *m, guest *g, size_t bytes, char *fatal)
{
    const uint8_t *h = g->head;
    char why[HKI_MEETING_TEXT];
    const uint32_t rank = hki_get32(h + 16), ranks = hki_get32(h + 20);
    if (hki_get32(h) != MAGIC || hki_get16(h + 6) != COME) return false; /* not one of us: no answer */
    if (hki_get16(h + 4) != VERSION) snprintf(why, sizeof why, "meeting version %u there, %u here", hki_get16(h + 4), VERSION);
    else if (hki_get64(h + 8) != m->job) snprintf(why, sizeof why, "another job meets at %.80s; use another port, or wait until it has started", m->shown);
    else if (ranks != m->ranks) snprintf(fatal, HKI_MEETING_TEXT, "rank %u was told of %u ranks, rank %u of %u", rank, ranks, m->rank, m->ranks);
    else if (rank >= m->ranks) snprintf(why, sizeof why, "rank %u of %u ranks", rank, ranks);
    else if (present(m, rank)) snprintf(why, sizeof why, "rank %u is there already: two processes have the same rank, or two jobs the same place", rank);
    else if (hki_get32(h + 24) != bytes) snprintf(why, sizeof why, "rank %u speaks another version of hocket", rank);
    else return g->rank = rank, true;
    refuse(m, g->fd, *fatal ? fatal : why);
    return false;
}

typedef enum heard { HEARD_MORE, HEARD_ALL, HEARD_GONE } heard;

/* Reads what there is of one guest's frame of this round. */
static heard listen_to(hki_meeting *m, guest *g, uint8_t *all, size_t bytes, char *fatal)
{
    while (g->got < HEAD + bytes) {
        const bool in_head = g->got < HEAD;
        if (!in_head && g->rank >= m->ranks && !welcome(m, g, bytes, fatal)) return HEARD_GONE;
        uint8_t *to = in_head ? g->head + g->got : all + g->rank * bytes + (g->got - HEAD);
        const ssize_t n = hki_sock_read(g->fd, to, (in_head ? HEAD : HEAD + bytes) - g->got);
        if (n < 0) return HEARD_GONE;
        if (n == 0) return HEARD_MORE;
        g->got += (size_t)n;
    }
    return hki_get32(g->head + 28) == m->round && hki_get32(g->head + 24) == bytes ? HEARD_ALL : HEARD_GONE;
}

/* Without descriptors nobody can come in any more: said at once, not by the time limit. */
static void let_in(hki_meeting *m, char *fatal)
{
    for (int k = 0; k < 2; k++) {
        int fd = 0;
        while (m->listening[k] >= 0 && m->nguests < m->ranks - 1 + STRANGERS && (fd = hki_accept(m->listening[k])) >= 0)
            m->guests[m->nguests++] = (guest){.fd = fd, .rank = m->ranks, .since_us = hki_now_us()};
        if (fd == -EMFILE || fd == -ENFILE)
            snprintf(fatal, HKI_MEETING_TEXT, "rank %u, where all %u meet, has no descriptor left for the others: raise `ulimit -n`", m->rank, m->ranks);
    }
}

static void wait_for_any(hki_meeting *m, struct pollfd *p, size_t bytes, int ms)
{
    nfds_t n = 0;
    for (int k = 0; k < 2; k++)
        if (m->listening[k] >= 0) p[n++] = (struct pollfd){.fd = m->listening[k], .events = POLLIN};
    for (uint32_t i = 0; i < m->nguests; i++)
        if (m->guests[i].got < HEAD + bytes) p[n++] = (struct pollfd){.fd = m->guests[i].fd, .events = POLLIN};
    poll(p, n, ms);
}

static hk_status collect(hki_meeting *m, uint8_t *all, size_t bytes, uint64_t deadline_us, char *text)
{
    struct pollfd *p = hki_alloc((m->ranks + STRANGERS + 2) * sizeof *p);
    if (!p) return snprintf(text, HKI_MEETING_TEXT, "out of memory"), HK_NO_MEMORY;
    hk_status status = HK_OK;
    *text = 0;
    for (;;) {
        uint32_t heard_all = 1;
        let_in(m, text);
        for (uint32_t i = 0; i < m->nguests && !*text;) {
            guest *g = &m->guests[i];
            const uint32_t rank = g->rank;
            const heard h = g->got == HEAD + bytes ? HEARD_ALL : listen_to(m, g, all, bytes, text);
            const bool stranger = g->rank >= m->ranks && hki_now_us() - g->since_us > PATIENCE_US;
            heard_all += h == HEARD_ALL;
            if (h == HEARD_GONE && rank < m->ranks && m->round) snprintf(text, HKI_MEETING_TEXT, "rank %u left while the ranks were meeting", rank);
            if (h == HEARD_GONE || stranger) drop(m, i);
            else i++;
        }
        if (*text || heard_all == m->ranks) break;
        if (hki_now_us() >= deadline_us) {
            missing_text(m, bytes, text);
            break;
        }
        wait_for_any(m, p, bytes, (int)hki_min(m->idle.call(m->idle.arg) ? 2 : 100, (deadline_us - hki_now_us()) / 1000 + 1));
    }
    if (*text) status = HK_BOOT;
    hki_free(p);
    return status;
}

/* A meeting that failed at once: those still on their way are told why as they come. Those told already make room for them. */
static void tell_late_comers(hki_meeting *m, const char *why)
{
    const uint64_t until = hki_now_us() + 1000000;
    struct pollfd p[2];
    uint32_t told = m->nguests;
    for (uint32_t i = m->nguests; i-- > 0;) {
        for (uint8_t junk[4096]; hki_sock_read(m->guests[i].fd, junk, sizeof junk) > 0;) { } /* closing over unread bytes could cut off the answer */
        drop(m, i);
    }
    for (; told + 1 < m->ranks && hki_now_us() < until;) {
        nfds_t n = 0;
        for (int k = 0; k < 2; k++)
            if (m->listening[k] >= 0) p[n++] = (struct pollfd){.fd = m->listening[k], .events = POLLIN};
        poll(p, n, 100);
        for (nfds_t k = 0; k < n; k++)
            for (int fd; (fd = hki_accept(p[k].fd)) >= 0; told++) {
                refuse(m, fd, why);
                hki_close(fd);
            }
    }
}

/* Guest i has gone in the middle of a round: the others read why instead of their next answer. */
static hk_status tell_all(hki_meeting *m, uint32_t i, char *text)
{
    snprintf(text, HKI_MEETING_TEXT, "rank %u left while the ranks were meeting", m->guests[i].rank);
    for (uint32_t j = 0; j < m->nguests; j++)
        if (j != i) refuse(m, m->guests[j].fd, text);
    return HK_BOOT;
}

static hk_status host_swap(hki_meeting *m, const void *mine, uint8_t *all, size_t bytes, uint64_t deadline_us, char *text)
{
    memcpy(all + m->rank * bytes, mine, bytes);
    for (uint32_t i = 0; i < m->nguests; i++) m->guests[i].got = 0;
    const hk_status status = collect(m, all, bytes, deadline_us, text);
    uint8_t head[HEAD];
    put_head(head, TABLE, m, (uint32_t)(m->ranks * bytes));
    for (uint32_t i = 0; i < m->nguests; i++) {
        const guest *g = &m->guests[i];
        if (status) refuse(m, g->fd, text);
        else if (g->rank < m->ranks &&
                 (hki_write_full(g->fd, head, HEAD, deadline_us) || hki_write_full(g->fd, all, m->ranks * bytes, deadline_us)))
            return tell_all(m, i, text);
    }
    if (status && m->round == 0 && hki_now_us() < deadline_us) tell_late_comers(m, text);
    m->round++;
    return status;
}

/* ---- The others -------------------------------------------------------------------------------------------------------- */

/* One attempt: the local socket, then each address. A connected descriptor, or the last error. */
static int attempt(const hki_place *p, uint64_t until_us)
{
    int fd = *p->local ? hki_unix_connect(p->local) : -ECONNREFUSED;
    for (int i = 0; fd < 0 && p->port && i < p->addresses; i++) {
        fd = hki_tcp_dial(p->address[i], p->port);
        if (fd < 0) continue;
        const int r = hki_poll_fd(fd, true, until_us) ? hki_tcp_connected(fd) : -ETIMEDOUT;
        if (r == 0) return fd;
        hki_close(fd);
        fd = r;
    }
    return fd;
}

hki_meeting *hki_meeting_join(const hki_place *p, uint32_t ranks, uint32_t rank, hki_idle idle, uint64_t deadline_us,
                              char text[HKI_MEETING_TEXT])
{
    hki_meeting *m = hki_alloc(sizeof *m);
    if (!m) return snprintf(text, HKI_MEETING_TEXT, "out of memory"), NULL;
    hki_prng chance = {.state = hki_now_us() ^ (uint64_t)rank << 40};
    uint64_t pause_us = 500;
    for (;;) {
        const uint64_t now = hki_now_us();
        const int fd = attempt(p, hki_min(deadline_us, now + 2000000));
        if (fd >= 0) {
            *m = (hki_meeting){.ranks = ranks, .rank = rank, .job = p->job, .fd = fd, .idle = idle, .listening = {-1, -1}};
            memcpy(m->shown, p->shown, sizeof m->shown);
            return m;
        }
        if (hki_now_us() >= deadline_us) {
            snprintf(text, HKI_MEETING_TEXT, "nobody answers at %.100s (%s): is the rank that meets the others started, and the address right?",
                     p->shown, strerror(-fd));
            hki_free(m);
            return NULL;
        }
        /* Back off with jitter, so that many ranks do not come again at the same moment. */
        hki_poll_fd(-1, false, hki_min(deadline_us, hki_now_us() + pause_us / 2 + hki_prng_below(&chance, pause_us)));
        pause_us = hki_min(pause_us * 2, idle.call(idle.arg) ? 2000 : 50000);
    }
}

/* Waits until there is something to read, and keeps this rank's other work moving. */
static bool patient(hki_meeting *m, uint64_t until)
{
    for (;;) {
        const uint64_t now = hki_now_us(), slice = m->idle.call(m->idle.arg) ? 2000 : 100000;
        if (hki_poll_fd(m->fd, false, hki_min(until, now + slice))) return true;
        if (now >= until) return false;
    }
}

static hk_status guest_swap(hki_meeting *m, const void *mine, uint8_t *all, size_t bytes, uint64_t deadline_us, char *text)
{
    uint8_t head[HEAD];
    put_head(head, COME, m, (uint32_t)bytes);
    /* The host keeps the time and says who is missing: a little more patience than its own, to hear that. */
    const uint64_t until = deadline_us + 1000000;
    int r = hki_write_full(m->fd, head, HEAD, until);
    if (!r) r = hki_write_full(m->fd, mine, bytes, until);
    const int sent = r;
    r = patient(m, until) ? hki_read_full(m->fd, head, HEAD, until) : -ETIMEDOUT; /* a refusal may be waiting even if writing failed */
    if (r) return snprintf(text, HKI_MEETING_TEXT, "at %.80s: %s", m->shown, r == -ETIMEDOUT ? "no answer in time" : "the rank that hosts the meeting (rank 0, or the maker of the id) died or failed"), HK_BOOT;
    const uint32_t n = hki_get32(head + 24);
    const uint16_t kind = hki_get16(head + 6);
    if (hki_get32(head) == MAGIC && kind == REFUSE && n == HKI_MEETING_TEXT) {
        uint8_t why[HKI_MEETING_TEXT];
        if (hki_read_full(m->fd, why, sizeof why, until)) return snprintf(text, HKI_MEETING_TEXT, "refused at %.80s", m->shown), HK_BOOT;
        hki_get_text(why, text, HKI_MEETING_TEXT);
        return HK_BOOT;
    }
    if (sent || hki_get32(head) != MAGIC || hki_get16(head + 4) != VERSION || kind != TABLE || n != m->ranks * bytes || hki_get32(head + 28) != m->round)
        return snprintf(text, HKI_MEETING_TEXT, "something that is not hocket, or another version of it, answers at %.80s", m->shown), HK_BOOT;
    r = hki_read_full(m->fd, all, m->ranks * bytes, until);
    m->round++;
    return r ? (snprintf(text, HKI_MEETING_TEXT, "the meeting at %.80s broke off", m->shown), HK_BOOT) : HK_OK;
}

hk_status hki_meeting_swap(hki_meeting *m, const void *mine, void *all, size_t bytes, uint64_t deadline_us, char text[HKI_MEETING_TEXT])
{
    return m->fd < 0 ? host_swap(m, mine, all, bytes, deadline_us, text) : guest_swap(m, mine, all, bytes, deadline_us, text);
}
