/* SPDX-License-Identifier: Apache-2.0 */
#include "net/tcp_link.h"

#include "diag/log.h"
#include "os/os.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define STRANGER_US 10000000  /* for a connection to say hello: its rank may be computing between dialling and the next call */
#define PARKED_US 60000000    /* for its communicator to come into being */
#define PARKED 1024
#define TRY_US 2000000        /* for one address of a peer to accept a connection */
#define ANSWER_US 30000000    /* and to answer it: the peer accepts when it next is inside the library */
#define GRACE_US 150000       /* between a broken link and blaming its rank: the cause may be on its way from another */

/* ---- The process's end --------------------------------------------------------------------------------------------------- */

static hki_tcp *open_end(int epoll, uint64_t token, uint16_t *port, char error[160])
{
    hki_tcp *t = hki_alloc(sizeof *t);
    if (!t) return snprintf(error, 160, "out of memory"), NULL;
    t->epoll = epoll;
    t->token = token;
    *port = 0;
    t->listener = hki_tcp_listen("", port, 1024);
    if (t->listener >= 0 && !hki_epoll_add(epoll, t->listener, true, false, 1)) return t;
    const char *range = hki_env("HOCKET_PORT_RANGE");
    if (t->listener == -EADDRINUSE && range) snprintf(error, 160, "all ports of HOCKET_PORT_RANGE=%.40s are in use: each process needs one", range);
    else if (t->listener == -EINVAL && range) snprintf(error, 160, "HOCKET_PORT_RANGE='%.40s' is not FIRST-LAST", range);
    else snprintf(error, 160, "cannot listen on a TCP port: %.80s (see `ulimit -n`)", strerror(t->listener < 0 ? -t->listener : EMFILE));
    hki_close(t->listener);
    hki_free(t);
    return NULL;
}

static void close_end(hki_tcp *t)
{
    while (t->links) hki_link_free(t->links);
    hki_epoll_del(t->epoll, t->listener);
    hki_close(t->listener);
    hki_free(t);
}

/* Bytes that may leave now, of `want`. The bucket holds 2 ms worth. */
size_t hki_tcp_allowance(hki_tcp *t, size_t want)
{
    if (!t->rate) return want;
    const uint64_t now = hki_now_us(), room = hki_max(t->rate / 500, 65536);
    if (now > t->filled_us) {
        t->bucket = hki_min(room, t->bucket + (now - t->filled_us) * t->rate / 1000000);
        t->filled_us = now;
    }
    /* Only hki_tcp_progress lowers the flag: it then tries all links, while this one may not be the only one that waits. */
    if (t->bucket >= hki_min(want, 16384)) return hki_min(want, t->bucket);
    t->paced = true;
    return 0;
}

/* ---- Greeting ---------------------------------------------------------------------------------------------------------------- */

static hki_tcp_comm *find(hki_tcp *t, uint64_t uid, uint32_t rank)
{
    hki_tcp_comm *c = t->comms;
    while (c && !(c->shape.uid == uid && c->shape.rank == rank)) c = c->next;
    return c;
}

static void give_up(hki_link *l)
{
    l->comm = NULL;
    hki_link_broke(l);
}

static void welcome(hki_link *l, hki_tcp_comm *c)
{
    const hki_tcp_hello *h = &l->hello;
    const bool sane = h->from < c->shape.ranks && h->from != c->shape.rank && h->channel < c->shape.channels && h->index < HKI_SOCKETS;
    hki_link *old = sane ? c->in[hki_tcp_at(c, h->channel, h->from, h->index)] : NULL;
    const bool good = sane && (!old || !old->used);
    if (good && old) give_up(old); /* whoever dials again has given up the attempt before */
    l->peer = h->from;
    l->channel = h->channel;
    l->index = h->index;
    if (l->state == HKI_PARKED) l->tcp->parked--, l->state = HKI_GREETING;
    if (!good || !hki_link_attach(l, c)) {
        hki_link_greet(l, 2);
        hki_link_broke(l);
        return;
    }
    hki_tcp_tune(l->fd, 0);
    hki_link_greet(l, 1);
    if (l->state == HKI_CLOSED) return;
    l->state = HKI_UP;
    hki_link_tell_end(l);
}

/* A late comer to a communicator that has ended here: welcome, and goodbye or the reason. */
static bool tell_the_end(hki_link *l)
{
    hki_tcp *t = l->tcp;
    for (uint32_t i = 0; i < t->nended && i < HKI_ENDED; i++) {
        if (t->ended[i].uid != l->hello.uid || t->ended[i].rank != l->hello.to) continue;
        hki_link_greet(l, 1);
        if (t->ended[i].notice.status) hki_link_note(l, &(hki_frame){.kind = HKI_FRAME_FAIL}, &t->ended[i].notice);
        else hki_link_note(l, &(hki_frame){.kind = HKI_FRAME_GOODBYE}, NULL);
        return true; /* left in GREETING: swept, and closed by then at the other end */
    }
    return false;
}

void hki_tcp_greeted(hki_link *l)
{
    hki_tcp *t = l->tcp;
    hki_tcp_comm *c = find(t, l->hello.uid, l->hello.to);
    if (l->hello.token != t->token) {
        hki_link_greet(l, 2); /* another process was meant: a shared address, a reused port */
        hki_link_broke(l);
    } else if (c) {
        welcome(l, c);
    } else if (!tell_the_end(l) && t->parked < PARKED) {
        l->state = HKI_PARKED;
        l->since_us = hki_now_us();
        t->parked++;
        hki_epoll_mod(t->epoll, l->fd, false, false, (uint64_t)(uintptr_t)l);
        l->want_in = l->want_out = false;
    }
}

static void begin(hki_link *l)
{
    l->state = HKI_GREETING;
    l->since_us = hki_now_us();
    hki_link_greet(l, 0);
    hki_link_tell_end(l);
    hki_link_watch(l);
}

/* Connections wait, and go on if descriptors come free. */
static void starved(hki_tcp *t)
{
    if (!t->starved) HKI_LOG(WARN, NET, -1, "no descriptor left for a connection to another rank: raise `ulimit -n` (each pair of ranks needs up to 6)");
    t->starved = true;
}

/* Tries the next of the peer's addresses, in turn, for as long as somebody waits. */
static void dial(hki_link *l)
{
    const hki_peer *p = l->comm->peers[l->peer];
    const bool same_host = p->host_key == l->comm->peers[l->comm->shape.rank]->host_key;
    for (int tries = 0; tries <= HKI_ADDRESSES && l->fd < 0; tries++, l->address++) {
        const uint32_t k = l->address % (HKI_ADDRESSES + 1);
        const char *address = k == 0 ? (same_host ? "127.0.0.1" : "") : p->address[k - 1];
        if (*address && (same_host || strncmp(address, "127.", 4))) l->fd = hki_tcp_dial(address, p->port);
        if (l->fd == -EMFILE || l->fd == -ENFILE) starved(l->tcp);
    }
    l->since_us = hki_now_us();
    l->state = HKI_DIALLING;
    l->want_in = false;
    l->want_out = true;
    l->inbox_bytes = l->notes_bytes = l->notes_sent = 0;
    l->told_end = false;
    if (l->fd >= 0 && hki_epoll_add(l->tcp->epoll, l->fd, false, true, (uint64_t)(uintptr_t)l)) hki_link_broke(l);
}

hki_link *hki_tcp_dial_rank(hki_tcp_comm *c, uint32_t peer, uint32_t channel, uint32_t index)
{
    hki_link **at = &c->out[hki_tcp_at(c, channel, peer, index)];
    if (*at) return *at;
    hki_link *l = hki_alloc(sizeof *l);
    if (!l) return NULL;
    l->tcp = c->tcp;
    l->fd = -1;
    l->out = true;
    l->peer = peer;
    l->channel = channel;
    l->index = index;
    l->hello = (hki_tcp_hello){.uid = c->shape.uid, .token = c->peers[peer]->token, .from = c->shape.rank, .to = peer, .channel = channel, .index = index};
    l->next = c->tcp->links;
    c->tcp->links = l;
    if (!hki_link_attach(l, c)) {
        hki_link_free(l);
        return *at = NULL;
    }
    dial(l);
    return l;
}

/* A refused connection means that nobody listens there any more: the process has gone, or has left. */
static bool dialled(hki_link *l)
{
    const int r = hki_tcp_connected(l->fd);
    if (r == 0) return begin(l), true;
    if (r == -EINPROGRESS) return false;
    hki_link_broke(l);
    if (r != -ECONNREFUSED || ++l->refused <= HKI_ADDRESSES) return dial(l), true;
    l->state = HKI_CLOSED;
    if (!l->comm->left[l->peer] && !l->comm->lost_us[l->peer]) l->comm->lost_us[l->peer] = hki_now_us();
    return true;
}

/* ---- Progress ------------------------------------------------------------------------------------------------------------------- */

static bool let_in(hki_tcp *t)
{
    bool any = false;
    int fd;
    for (; (fd = hki_accept(t->listener)) >= 0; any = true)
        if (!hki_link_new(t, fd, false, HKI_GREETING)) hki_close(fd);
    if (fd == -EMFILE || fd == -ENFILE) starved(t);
    return any;
}

/* Links that took too long: strangers, parked ones, addresses that do not answer. Those without a communicator are freed. */
static void sweep(hki_tcp *t, uint64_t now)
{
    for (hki_link *l = t->links, *next; l; l = next) {
        next = l->next;
        const uint64_t age = now - l->since_us;
        if (!l->comm && (l->state == HKI_CLOSED || (l->state == HKI_GREETING && age > STRANGER_US) || (l->state == HKI_PARKED && age > PARKED_US))) {
            hki_link_free(l);
            continue;
        }
        if (!l->out || (l->state != HKI_DIALLING && l->state != HKI_GREETING)) continue;
        if (l->fd >= 0 && age > (l->state == HKI_DIALLING ? TRY_US : ANSWER_US)) hki_link_broke(l);
        if (l->fd < 0) dial(l);
    }
}

static bool progress(hki_tcp *t, bool *paced)
{
    uint64_t ready[64];
    bool moved = false;
    const int n = hki_epoll_wait(t->epoll, ready, HKI_COUNT(ready), 0);
    for (int i = 0; i < n; i++) {
        hki_link *l = (hki_link *)(uintptr_t)ready[i];
        if (ready[i] == 1) moved |= let_in(t);
        if (ready[i] <= 1) continue;
        if (l->fd < 0) continue; /* closed by what was handled before */
        if (l->state == HKI_DIALLING) {
            moved |= dialled(l);
            continue;
        }
        if (l->want_out) moved |= hki_link_write(l);
        if (l->state == HKI_PARKED) hki_link_broke(l); /* only an error wakes a parked link */
        else moved |= hki_link_read(l);
    }
    if (t->paced) {
        t->paced = false;
        for (hki_link *l = t->links; l && !t->paced; l = l->next)
            if (l->q_used) moved |= hki_link_write(l);
    }
    *paced = t->paced;
    return moved;
}

/* ---- A communicator's end ---------------------------------------------------------------------------------------------------------- */

static void leave(hki_tcp_comm *);

static hki_tcp_comm *join(hki_tcp *t, const hki_shape *s, hki_peer *const *peers, uint64_t pace)
{
    hki_tcp_comm *c = hki_alloc(sizeof *c);
    if (!c) return NULL;
    c->tcp = t;
    c->shape = *s;
    c->peers = peers;
    const size_t lanes = (size_t)s->channels * s->ranks;
    c->sockets = hki_min(hki_max(s->sockets, 1), HKI_SOCKETS); /* one stream fills a loopback, and 1 Gbit/s better than two */
    c->out = hki_alloc(lanes * HKI_SOCKETS * sizeof *c->out);
    c->in = hki_alloc(lanes * HKI_SOCKETS * sizeof *c->in);
    c->expected = hki_alloc(lanes * sizeof *c->expected);
    c->own = hki_alloc(HKI_KNOWN * sizeof *c->own);
    c->known = hki_alloc((size_t)s->ranks * HKI_KNOWN * sizeof *c->known);
    c->lost_us = hki_alloc(s->ranks * sizeof *c->lost_us);
    c->left = hki_alloc(s->ranks * sizeof *c->left);
    c->waits = hki_alloc(s->ranks * sizeof *c->waits);
    c->next = t->comms;
    t->comms = c;
    if (!c->out || !c->in || !c->expected || !c->own || !c->known || !c->lost_us || !c->left || !c->waits) {
        leave(c);
        return NULL;
    }
    if (pace) t->rate = pace;
    for (hki_link *l = t->links, *next; l; l = next) { /* those that came early */
        next = l->next;
        if (l->state == HKI_PARKED && l->hello.uid == s->uid && l->hello.to == s->rank) welcome(l, c);
    }
    return c;
}

static bool unsent(const hki_tcp_comm *c)
{
    for (const hki_link *l = c->tcp->links; l; l = l->next)
        if (l->comm == c && (l->state == HKI_UP || l->state == HKI_GREETING) && (l->q_used || l->notes_bytes)) return true;
    return false;
}

/* Says goodbye, waits a moment for it to leave, reads what is still coming (closing over unread bytes would reset the connection and
 * could take the goodbye with it), and closes. */
static void leave(hki_tcp_comm *c)
{
    hki_tcp *t = c->tcp;
    const uint64_t until = hki_now_us() + 300000;
    for (hki_link *l = t->links; l; l = l->next)
        if (l->comm == c && (l->state == HKI_UP || (l->out && l->state == HKI_GREETING))) hki_link_note(l, &(hki_frame){.kind = HKI_FRAME_GOODBYE}, NULL);
    while (unsent(c) && hki_now_us() < until)
        for (hki_link *l = t->links; l; l = l->next)
            if (l->comm == c) {
                if (!hki_link_write(l) && l->fd >= 0) hki_poll_fd(l->fd, true, hki_now_us() + 1000);
                hki_link_read(l);
            }
    const uint32_t e = t->nended++ % HKI_ENDED;
    t->ended[e].uid = c->shape.uid;
    t->ended[e].rank = c->shape.rank;
    t->ended[e].notice = c->told;
    hki_tcp_comm **at = &t->comms;
    while (*at && *at != c) at = &(*at)->next;
    if (*at) *at = c->next;
    for (hki_link *l = t->links, *next; l; l = next) {
        next = l->next;
        if (l->comm != c) continue;
        for (uint8_t junk[4096]; l->fd >= 0 && hki_sock_read(l->fd, junk, sizeof junk) > 0;) { }
        hki_link_free(l);
    }
    hki_free(c->out);
    hki_free(c->in);
    hki_free(c->expected);
    hki_free(c->own);
    hki_free(c->known);
    hki_free(c->lost_us);
    hki_free(c->left);
    hki_free(c->waits);
    hki_free(c);
}

static void enter(hki_tcp_comm *c, const hki_record *r)
{
    c->own[r->seq % HKI_KNOWN] = *r;
    c->entered = r->seq;
}

static void probe(hki_tcp_comm *c, uint32_t rank, uint64_t now_us)
{
    sweep(c->tcp, now_us);
    hki_link *l = hki_tcp_dial_rank(c, rank, 0, 0);
    if (!l || l->state != HKI_UP) return;
    for (uint64_t seq = l->told; seq < c->entered;) {
        if (c->entered - ++seq >= HKI_KNOWN) continue;
        const hki_record *r = &c->own[seq % HKI_KNOWN];
        hki_frame f = {.kind = HKI_FRAME_CALL, .seq = r->seq, .fingerprint = r->fingerprint};
        memcpy(f.desc, r->body, sizeof f.desc);
        hki_link_note(l, &f, NULL);
        l->told = seq;
    }
}

static void tell_wait(hki_tcp_comm *c, uint32_t waiting_for, uint64_t now_us)
{
    if (waiting_for == c->told_wait_for && now_us - c->told_wait_us < HKI_TELL_US) return;
    c->told_wait_us = now_us;
    c->told_wait_for = waiting_for;
    const hki_frame f = {.kind = HKI_FRAME_WAIT, .seq = c->entered, .extra = waiting_for};
    for (uint32_t r = 0; r < c->shape.ranks; r++) {
        hki_link *out = c->out[hki_tcp_at(c, 0, r, 0)], *in = c->in[hki_tcp_at(c, 0, r, 0)]; /* where calls are told too */
        hki_link *l = out && out->state == HKI_UP ? out : in;
        if (l && l->state == HKI_UP) hki_link_note(l, &f, NULL);
    }
}

static bool waits(hki_tcp_comm *c, uint32_t rank, uint64_t now_us, uint32_t *waiting_for)
{
    const struct hki_told_wait *w = &c->waits[rank];
    *waiting_for = w->waiting_for;
    return w->heard_us && now_us - w->heard_us < 3 * HKI_TELL_US;
}

static bool entered(hki_tcp_comm *c, uint32_t rank, uint64_t seq, hki_record *r)
{
    *r = c->known[rank * HKI_KNOWN + seq % HKI_KNOWN];
    return r->seq == seq;
}

/* The notice has left for rank on some link. A link in the middle of a message that its reader does not take cannot carry it, so there
 * may have to be another: *spare is a channel without a link there. */
static bool has_been_told(const hki_tcp_comm *c, uint32_t r, uint32_t *spare)
{
    const hki_shape *s = &c->shape;
    *spare = s->channels;
    for (uint32_t k = 0; k < s->channels; k++) {
        const hki_link *out = c->out[hki_tcp_at(c, k, r, 0)], *in = c->in[hki_tcp_at(c, k, r, 0)];
        if ((out && out->told_end && !out->notes_bytes) || (in && in->told_end && !in->notes_bytes)) return true;
        if (!out) *spare = k;
    }
    return false;
}

static bool fail(hki_tcp_comm *c, const hki_notice *n)
{
    const bool again = c->failed;
    bool all = true;
    if (!again) c->told = *n;
    c->failed = true;
    hki_tcp_let_go(c);
    for (hki_link *l = c->tcp->links; l; l = l->next)
        if (l->comm == c) hki_link_tell_end(l);
    for (uint32_t r = 0; r < c->shape.ranks; r++) {
        uint32_t spare;
        const bool sees = c->peers[r]->group == c->peers[c->shape.rank]->group; /* a group's ranks see each other's memory */
        if (sees || c->left[r] || c->lost_us[r] || has_been_told(c, r, &spare)) continue;
        if (again && spare < c->shape.channels) hki_tcp_dial_rank(c, r, spare, 0);
        all = false;
    }
    return all;
}

static bool notice(hki_tcp_comm *c, hki_notice *n, uint64_t now_us)
{
    if (c->heard) return *n = c->notice, true;
    for (uint32_t r = 0; r < c->shape.ranks; r++)
        if (c->lost_us[r] && !c->left[r] && now_us > c->lost_us[r] + GRACE_US) {
            *n = (hki_notice){.status = HK_PEER_LOST, .culprit = r};
            return true;
        }
    return false;
}

/* Goodbye on one link may overtake messages on another: rank has left once every link from it has said so, and a moment has passed for
 * those not accepted yet. */
static bool has_left(hki_tcp_comm *c, uint32_t rank)
{
    if (!c->left[rank] || hki_now_us() < c->lost_us[rank] + GRACE_US) return false;
    for (uint32_t k = 0; k < c->shape.channels * HKI_SOCKETS; k++) {
        const hki_link *in = c->in[hki_tcp_at(c, k / HKI_SOCKETS, rank, k % HKI_SOCKETS)];
        if (in && !in->goodbye && in->state != HKI_CLOSED) return false;
    }
    return true;
}

static const struct hki_remote verbs = {open_end, close_end, progress, join, leave, hki_tcp_port, enter, probe, tell_wait, waits, entered, fail, notice, has_left};

const hki_transport hki_transport_tcp = {
    .name = "tcp", .summary = "one listening port a process, one socket a lane, dialled on first use", .remote = &verbs};
