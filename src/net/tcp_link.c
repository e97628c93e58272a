/* SPDX-License-Identifier: Apache-2.0 */
#include "net/tcp_link.h"

#include "base/wire.h"
#include "diag/log.h"
#include "os/os.h"

#include <errno.h>

hki_link *hki_link_new(hki_tcp *t, int fd, bool out, hki_link_state state)
{
    hki_link *l = hki_alloc(sizeof *l);
    if (!l) return NULL;
    l->tcp = t;
    l->fd = fd;
    l->out = out;
    l->state = state;
    l->since_us = hki_now_us();
    l->want_in = state != HKI_DIALLING;
    l->want_out = state == HKI_DIALLING;
    if (hki_epoll_add(t->epoll, fd, l->want_in, l->want_out, (uint64_t)(uintptr_t)l)) {
        hki_free(l);
        return NULL;
    }
    l->next = t->links;
    t->links = l;
    return l;
}

void hki_link_free(hki_link *l)
{
    hki_link **at = &l->tcp->links;
    while (*at && *at != l) at = &(*at)->next;
    if (*at) *at = l->next;
    if (l->state == HKI_PARKED) l->tcp->parked--;
    if (l->fd >= 0) {
        hki_epoll_del(l->tcp->epoll, l->fd);
        hki_close(l->fd);
    }
    hki_free(l->read_ahead);
    hki_free(l->queue);
    hki_free(l->parcels);
    hki_free(l);
}

/* Registers interest in what this link can use now: reading unless its ring is full, writing if something waits to leave. */
void hki_link_watch(hki_link *l)
{
    if (l->fd < 0) return;
    const bool full = l->complete == HKI_READ_AHEAD;
    const bool in = l->state != HKI_DIALLING && !full;
    const bool out = l->state == HKI_DIALLING || ((l->q_used || l->notes_bytes) && !l->tcp->paced && l->state == HKI_UP) ||
                     (l->notes_bytes && l->state == HKI_GREETING);
    if (in == l->want_in && out == l->want_out) return;
    l->want_in = in;
    l->want_out = out;
    hki_epoll_mod(l->tcp->epoll, l->fd, in, out, (uint64_t)(uintptr_t)l);
}

/* Before it is up an outgoing link is only an attempt: it is made again (tcp.c, sweep). */
void hki_link_broke(hki_link *l)
{
    if (l->state == HKI_CLOSED || l->fd < 0) return;
    hki_epoll_del(l->tcp->epoll, l->fd);
    hki_close(l->fd);
    l->fd = -1;
    if (l->state == HKI_PARKED) l->tcp->parked--;
    const bool attempt = l->out && l->state != HKI_UP;
    l->state = attempt ? HKI_DIALLING : HKI_CLOSED;
    if (!attempt && l->comm && !l->goodbye && !l->comm->left[l->peer] && !l->comm->lost_us[l->peer]) l->comm->lost_us[l->peer] = hki_now_us();
}

bool hki_link_attach(hki_link *l, hki_tcp_comm *c)
{
    const hki_shape *s = &c->shape;
    const size_t small = hki_min(s->slot_bytes, HKI_BACKWARD);
    l->queue_room = l->out ? s->slot_bytes : small;
    l->ahead_room = l->out ? small : s->slot_bytes;
    l->queue = hki_alloc(s->slots * (HKI_FRAME_HEAD + l->queue_room));
    l->parcels = hki_alloc(s->slots * sizeof *l->parcels);
    l->read_ahead = hki_alloc(HKI_READ_AHEAD * l->ahead_room);
    if (!l->queue || !l->parcels || !l->read_ahead) return false;
    l->comm = c;
    (l->out ? c->out : c->in)[hki_tcp_at(c, l->channel, l->peer, l->index)] = l;
    return true;
}

void hki_link_greet(hki_link *l, uint32_t welcome)
{
    hki_tcp_hello h = l->hello;
    h.welcome = welcome;
    hki_hello_pack(&h, l->notes + l->notes_bytes);
    l->notes_bytes += HKI_HELLO;
    hki_link_write(l);
}

void hki_link_tell_end(hki_link *l)
{
    const bool greeted = l->state == HKI_UP || (l->out && l->state == HKI_GREETING); /* right behind our hello is soon enough */
    if (!l->comm->failed || l->told_end || !greeted) return;
    l->told_end = true;
    hki_link_note(l, &(hki_frame){.kind = HKI_FRAME_FAIL}, &l->comm->told);
}

void hki_link_note(hki_link *l, const hki_frame *given, const hki_notice *payload)
{
    hki_frame f = *given;
    f.bytes = payload ? sizeof *payload : 0;
    if (l->state == HKI_CLOSED || l->notes_bytes + HKI_FRAME_HEAD + f.bytes > HKI_NOTES) return;
    hki_frame_pack(&f, l->notes + l->notes_bytes);
    if (payload) memcpy(l->notes + l->notes_bytes + HKI_FRAME_HEAD, payload, f.bytes);
    l->notes_bytes += HKI_FRAME_HEAD + f.bytes;
    hki_link_write(l);
}

/* ---- Writing ------------------------------------------------------------------------------------------------------------ */

/* The peer has closed; what it said before, perhaps why, can still be read. */
static void cannot_write(hki_link *l)
{
    hki_link_read(l);
    hki_link_broke(l);
}

static bool write_notes(hki_link *l, bool *moved)
{
    while (l->notes_sent < l->notes_bytes) {
        const ssize_t n = hki_sock_write(l->fd, l->notes + l->notes_sent, l->notes_bytes - l->notes_sent);
        if (n < 0) return cannot_write(l), false;
        if (n == 0) return false;
        l->notes_sent += (size_t)n;
        *moved = true;
    }
    l->notes_sent = l->notes_bytes = 0;
    return true;
}

/* As much of the oldest message as the socket takes, at most `most` bytes. */
static ssize_t write_some(hki_link *l, const hki_parcel *c, size_t most)
{
    const uint8_t *head = l->queue + l->q_first * (HKI_FRAME_HEAD + l->queue_room);
    if (!c->lent) return hki_sock_write(l->fd, head + l->sent, most);
    const uint8_t *lent = c->lent;
    if (l->sent >= HKI_FRAME_HEAD) return hki_sock_write(l->fd, lent + (l->sent - HKI_FRAME_HEAD), most);
    const size_t rest = HKI_FRAME_HEAD - l->sent;
    return hki_sock_write2(l->fd, head + l->sent, hki_min(rest, most), lent, most > rest ? most - rest : 0);
}

bool hki_link_write(hki_link *l)
{
    bool moved = false;
    if (l->state == HKI_GREETING || l->state == HKI_UP) {
        while (l->fd >= 0) {
            if (l->sent == 0 && !write_notes(l, &moved)) break; /* notes go between messages, never into one */
            if (l->state != HKI_UP || !l->q_used) break;
            const hki_parcel *c = &l->parcels[l->q_first];
            const size_t total = HKI_FRAME_HEAD + c->bytes, allowed = hki_tcp_allowance(l->tcp, total - l->sent);
            if (!allowed) break;
            const ssize_t n = write_some(l, c, allowed);
            if (n < 0) cannot_write(l);
            if (n <= 0) break;
            if (l->tcp->rate) l->tcp->bucket -= (uint64_t)n;
            moved = true;
            l->sent += (size_t)n;
            if (l->sent < total) continue;
            if (c->unsent) --*c->unsent;
            l->sent = 0;
            l->q_first = (l->q_first + 1) % l->comm->shape.slots;
            l->q_used--;
        }
        hki_link_watch(l);
    }
    return moved;
}

/* ---- Reading ------------------------------------------------------------------------------------------------------------ */

static void corrupt(hki_link *l)
{
    if (l->comm && !l->comm->heard) {
        l->comm->notice = (hki_notice){.status = HK_CORRUPT, .culprit = l->peer};
        l->comm->heard = true;
    }
    hki_link_broke(l);
}

static void learn(hki_tcp_comm *c, uint32_t peer, const hki_frame *f)
{
    if (!f->seq) return;
    hki_record *r = &c->known[peer * HKI_KNOWN + f->seq % HKI_KNOWN];
    if (r->seq > f->seq) return;
    r->seq = f->seq;
    r->fingerprint = f->fingerprint;
    memcpy(r->body, f->desc, sizeof f->desc);
}

static void take_inbox(hki_link *l, size_t n)
{
    l->inbox_bytes -= n;
    memmove(l->inbox, l->inbox + n, l->inbox_bytes);
}

/* The answer to our hello. */
static bool answered(hki_link *l)
{
    hki_tcp_hello h;
    if (l->inbox_bytes < HKI_HELLO) return false;
    const bool good = hki_hello_parse(l->inbox, &h) && h.welcome == 1 && h.uid == l->hello.uid && h.from == l->hello.from && h.to == l->hello.to;
    take_inbox(l, HKI_HELLO);
    if (!good) return hki_link_broke(l), false; /* somebody else: tcp.c tries the next address */
    l->state = HKI_UP;
    l->since_us = hki_now_us();
    l->refused = 0;
    hki_link_tell_end(l);
    return true;
}

/* A note is complete in the inbox, or not yet. */
static bool note(hki_link *l, const hki_frame *f)
{
    if (l->inbox_bytes < HKI_FRAME_HEAD + f->bytes) return false;
    hki_tcp_comm *c = l->comm;
    if (f->kind == HKI_FRAME_FAIL && !c->heard) {
        memcpy(&c->notice, l->inbox + HKI_FRAME_HEAD, sizeof c->notice);
        c->heard = true;
    }
    if (f->kind == HKI_FRAME_CALL) learn(c, l->peer, f);
    if (f->kind == HKI_FRAME_WAIT) c->waits[l->peer] = (struct hki_told_wait){hki_now_us(), f->extra};
    if (f->kind == HKI_FRAME_GOODBYE) {
        l->goodbye = c->left[l->peer] = true;
        c->lost_us[l->peer] = hki_now_us();
    }
    take_inbox(l, HKI_FRAME_HEAD + f->bytes);
    return true;
}

static uint8_t *payload_at(hki_link *l, uint32_t slot) { return l->place[slot] ? l->place[slot] : l->read_ahead + slot * l->ahead_room; }

/* A message begins: is it one whose place is known? */
static void begin_message(hki_link *l, const hki_frame *f)
{
    const uint32_t slot = (l->first + l->complete) % HKI_READ_AHEAD;
    hki_expected *e = &l->comm->expected[l->channel * l->comm->shape.ranks + l->peer];
    const bool known = e->place && e->number == f->extra && e->bytes == f->bytes && e->fingerprint == f->fingerprint;
    l->frame[slot] = *f;
    l->place[slot] = known ? e->place : NULL;
    l->got = 0;
    l->reading = l->used = true;
}

/* A message of which a part has left must be sent to its end, as notices follow it: the rest is copied now. */
static void keep_lent(hki_link *l, uint32_t slot)
{
    hki_parcel *c = &l->parcels[slot];
    if (c->lent) memcpy(l->queue + slot * (HKI_FRAME_HEAD + l->queue_room) + HKI_FRAME_HEAD, c->lent, c->bytes);
    c->lent = NULL;
    c->unsent = NULL;
}

void hki_tcp_let_go(hki_tcp_comm *c)
{
    memset(c->expected, 0, (size_t)c->shape.channels * c->shape.ranks * sizeof *c->expected);
    for (hki_link *l = c->tcp->links; l; l = l->next) {
        if (l->comm != c) continue;
        memset(l->place, 0, sizeof l->place);
        for (uint32_t k = 0; k < l->q_used; k++) keep_lent(l, (l->q_first + k) % c->shape.slots);
    }
}

/* Moves what the inbox has of the message being read. */
static void fill(hki_link *l)
{
    const uint32_t slot = (l->first + l->complete) % HKI_READ_AHEAD;
    const size_t n = hki_min(l->inbox_bytes, l->frame[slot].bytes - l->got);
    memcpy(payload_at(l, slot) + l->got, l->inbox, n);
    take_inbox(l, n);
    l->got += n;
    if (l->got == l->frame[slot].bytes) {
        l->reading = false;
        l->complete++;
    }
}

/* Understands as much of the inbox as it can; false when more bytes (or room) are needed first. */
static bool understand(hki_link *l)
{
    hki_frame f;
    if (l->state == HKI_GREETING && l->out) return answered(l);
    if (l->state == HKI_GREETING) {
        if (l->inbox_bytes < HKI_HELLO) return false;
        if (!hki_hello_parse(l->inbox, &l->hello) || l->hello.welcome) return hki_link_broke(l), false;
        take_inbox(l, HKI_HELLO);
        hki_tcp_greeted(l);
        return l->comm != NULL;
    }
    /* A dialler that is gone already may have left its notice right behind its hello. */
    if (l->state != HKI_UP && !(l->state == HKI_CLOSED && l->comm)) return false;
    if (l->reading) return fill(l), !l->reading;
    if (l->inbox_bytes < HKI_FRAME_HEAD) return false;
    if (!hki_frame_parse(l->inbox, l->ahead_room, &f)) return corrupt(l), false;
    if (f.kind != HKI_FRAME_DATA) return note(l, &f);
    if (l->complete == HKI_READ_AHEAD) return false;
    learn(l->comm, l->peer, &f);
    begin_message(l, &f);
    take_inbox(l, HKI_FRAME_HEAD);
    return fill(l), !l->reading;
}

bool hki_link_read(hki_link *l)
{
    bool moved = false;
    while (l->state == HKI_GREETING || l->state == HKI_UP) {
        while (l->inbox_bytes && understand(l)) moved = true;
        if ((l->state != HKI_GREETING && l->state != HKI_UP) || (l->inbox_bytes && !l->reading && l->complete == HKI_READ_AHEAD)) break;
        ssize_t n;
        size_t want;
        if (l->reading && l->inbox_bytes == 0) { /* the rest of a message goes straight where it belongs */
            const uint32_t slot = (l->first + l->complete) % HKI_READ_AHEAD;
            want = l->frame[slot].bytes - l->got;
            n = hki_sock_read(l->fd, payload_at(l, slot) + l->got, want);
            if (n > 0) l->got += (size_t)n;
            if (n > 0 && l->got == l->frame[slot].bytes) l->reading = false, l->complete++;
        } else {
            if (l->inbox_bytes == HKI_INBOX) break;
            want = HKI_INBOX - l->inbox_bytes;
            n = hki_sock_read(l->fd, l->inbox + l->inbox_bytes, want);
            if (n > 0) l->inbox_bytes += (size_t)n;
        }
        if (n < 0) hki_link_broke(l);
        if (n <= 0) break;
        moved = true;
        if ((size_t)n < want) { /* that was all */
            while (l->inbox_bytes && understand(l)) { }
            break;
        }
    }
    hki_link_watch(l);
    return moved;
}
