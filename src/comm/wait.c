/* SPDX-License-Identifier: Apache-2.0
 *
 * The one place that spins, yields, sleeps and reads the clock for a wait.
 *
 * Spin, then yield, then sleep. With a CPU for every rank a short spin catches most messages; with fewer, spinning keeps the awaited
 * rank off the CPU, so it is all but skipped and yields come first. Every sleep ends after 50 ms at the latest, for a look at
 * deadlines, dead peers and notices. */
#include "comm/comm.h"
#include "os/os.h"

#define SLICE_MS 50
#define CHECK_EVERY 4096 /* pumps that keep moving things without a sleep, between looks after deadlines and peers */
#define GRACE_US 100     /* what a wait takes beyond its limit while things move: one with a limit of 0 sees a message of 1 MiB to its end */

typedef struct policy { uint32_t spins, yields; bool naps; } policy;
#define NAP_US 100
#define NAPS 8 /* until it waits for the lock after all */

/* With TCP each spin is a system call of about 0.3 us: 150 make the 50 us that a message over loopback takes with some to spare. From a
 * slow link it comes seldom so soon, and the wait learns. */
static policy policy_of(const hki_engine *e)
{
    return e->crowded ? (policy){1, 50, false} : e->tcp ? (policy){150, 20, false} : (policy){200, 20, false};
}

void hki_set_spins(hki_engine *e)
{
    e->spins = policy_of(e).spins;
    e->yields = e->crowded ? 2 : 0; /* mostly the awaited rank has run after the first */
}

/* What a leaving rank waits for, that the last message was taken, is not always told with a ring of the bell (net/area.c). */
static bool somebody_leaves(const hki_engine *e)
{
    for (const hk_comm *c = e->comms; c; c = c->next)
        if (c->leaving) return true;
    return false;
}

static uint32_t slice_ms(const hki_engine *e, uint64_t give_up_us, uint64_t now)
{
    if (give_up_us <= now) return 0;
    if (e->paced || somebody_leaves(e)) return 1;
    return (uint32_t)hki_min(SLICE_MS, (give_up_us - now) / 1000 + 1);
}

/* Sleeps until the bell rings, a socket is ready or the slice ends. Raising `asleep` and looking once more closes the gap in which a
 * message could arrive unseen. */
static void doze(hki_engine *e, bool (*done)(void *), void *arg, uint64_t give_up_us)
{
    hki_segment_head *h = hki_segment_head_of(e->segment->base);
    atomic_fetch_add(&h->asleep, 1);
    if (atomic_load(&h->fences)) hki_fence_all();
    const uint64_t before = e->progress;
    hki_engine_pump(e);
    if (!done(arg) && e->progress == before) {
        e->sleeps++;
        e->sleepers++;
        const uint32_t round = e->round;
        const int ms = (int)slice_ms(e, give_up_us, hki_now_us());
        hki_lock_give(&e->lock);
        uint64_t ready[16];
        hki_epoll_wait(e->epoll, ready, HKI_COUNT(ready), ms);
        hki_lock_take(&e->lock);
        e->sleepers--;
        if (round != e->round) e->stale--;
        /* It rings on for those who are to wake and have not. What rang from outside concerns any: it is done here. */
        if (hki_bell_clear(e->bell)) {
            if (e->stale) hki_bell_ring(e->bell, e->bell_name);
            hki_engine_pump(e);
        }
    }
    atomic_fetch_sub(&h->asleep, 1);
    hki_engine_check(e, hki_now_us());
}

/* Calls made so far. */
static uint64_t calls_of(const hki_engine *e)
{
    uint64_t n = 0;
    for (const hk_comm *c = e->comms; c; c = c->next) n += c->seq + c->next_id;
    return n;
}

/* The progress thread beside a caller whose calls come one after another. To doze would let every message ring the bell, and to insist on
 * the lock would make the caller wake somebody at each call: it looks in now and then instead. */
static void nap(hki_engine *e)
{
    hki_lock_give(&e->lock);
    const uint32_t work = atomic_load(&e->thread.work);
    for (int k = 0; k < NAPS; k++) {
        hki_futex_wait(&e->thread.work, work, NAP_US);
        if (hki_lock_try(&e->lock)) return;
    }
    hki_lock_take(&e->lock);
}

/* Have the CPU, and the lock. */
static void let_others(hki_engine *e)
{
    hki_lock_give(&e->lock);
    hki_yield();
    hki_lock_take(&e->lock);
}

/* How patient the rest of a wait is, after something came: half as much, down to an eighth, if it had to sleep for it, else twice. */
static void learn(policy *p, const policy *most, bool slept)
{
    p->spins = slept ? hki_max(p->spins / 2, most->spins / 8) : hki_min(2 * p->spins + 1, most->spins);
    p->yields = slept ? hki_max(p->yields / 2, most->yields / 8) : hki_min(2 * p->yields + 1, most->yields);
}

/* Moves everything until done(arg). */
static bool drive(hki_engine *e, const policy most, bool (*done)(void *), void *arg, uint64_t give_up_us)
{
    policy p = most;
    uint64_t calls = 0;
    uint32_t idle = 0, busy = 0;
    uint64_t seen = e->progress;
    hki_engine_pump(e);
    if (e->called) hki_callbacks_run(e, !p.naps);
    if (done(arg)) return true;
    e->waits++;
    for (;;) {
        if (e->paced) idle = hki_max(idle, p.spins + p.yields); /* only time helps against the rate limit */
        if (idle < p.spins) {
            hki_pause();
        } else if (idle < p.spins + p.yields) {
            let_others(e);
        } else if (p.naps && calls != calls_of(e)) {
            calls = calls_of(e);
            nap(e);
        } else {
            doze(e, done, arg, give_up_us);
            if (done(arg)) return true;
            if (give_up_us != UINT64_MAX && hki_now_us() >= give_up_us) return false;
        }
        if (idle < p.spins && idle % 8) hki_engine_pump_comms(e);
        else hki_engine_pump(e);
        if (HKI_UNLIKELY(e->called != NULL)) hki_callbacks_run(e, !p.naps);
        if (done(arg)) return true;
        idle++;
        if (e->progress != seen) {
            if (e->tcp && !e->crowded) learn(&p, &most, idle > p.spins + p.yields);
            seen = e->progress;
            idle = 0;
            if (HKI_UNLIKELY(hki_lock_wanted(&e->lock))) let_others(e);
            if (++busy % CHECK_EVERY == 0) hki_engine_check(e, hki_now_us());
            if (give_up_us != UINT64_MAX && hki_now_us() >= give_up_us + GRACE_US) return false;
        }
    }
}

bool hki_wait_until(hki_engine *e, bool (*done)(void *), void *arg, uint64_t give_up_us)
{
    /* If it is the progress thread that sleeps: for as long as it does, every message rings the bell. */
    if (e->drivers++ == 0) hki_engine_wake(e);
    const bool seen = e->seen;
    const hki_seen_wait w = HKI_UNLIKELY(seen) ? hki_seen_wait_begin() : (hki_seen_wait){0};
    const bool came = drive(e, policy_of(e), done, arg, give_up_us);
    if (HKI_UNLIKELY(seen)) hki_seen_wait_end(w);
    e->drivers--;
    hki_progress_need(e);
    return came;
}

/* The progress thread's CPU is somebody's who computes: it hardly spins. With sockets it does not yield either: who yields to a rank that
 * computes is back after that rank's slice, milliseconds later, while a sleeper runs as soon as a message comes. In shared memory each
 * message to a sleeper costs its sender a bell, and a few yields mostly save that. */
void hki_drive_idle(hki_engine *e, bool (*done)(void *)) { drive(e, (policy){1, e->tcp ? 0 : 10, true}, done, e, UINT64_MAX); }

static bool flushed(void *arg)
{
    hk_comm *comm = arg;
    for (uint32_t c = 0; c <= HKI_CHANNELS && !comm->broken; c++)
        for (uint32_t r = 0; r < comm->shape.ranks; r++)
            if (comm->tcp_ports[c]->ops->unread(comm->tcp_ports[c], r)) return false;
    return true;
}

bool hki_unsent(hki_engine *e)
{
    for (hk_comm *c = e->comms; c; c = c->next)
        if (c->tcp && !flushed(c)) return true;
    return false;
}

void hki_flush(hk_comm *comm, uint64_t timeout_us)
{
    if (comm->tcp && !flushed(comm)) hki_wait_until(comm->engine, flushed, comm, hki_now_us() + timeout_us);
}

typedef struct set { hk_request *const *requests; size_t n; bool all; } set;

static bool set_done(void *arg)
{
    const set *s = arg;
    for (size_t i = 0; i < s->n; i++) {
        const bool finished = !s->requests[i] || hki_task_over(s->requests[i]);
        if (finished != s->all) return !s->all;
    }
    return s->all;
}

bool hki_wait(hki_engine *e, hk_request *const *requests, size_t n, bool all, uint64_t give_up_us)
{
    set s = {requests, n, all};
    return set_done(&s) || hki_wait_until(e, set_done, &s, give_up_us);
}
