/* SPDX-License-Identifier: Apache-2.0
 *
 * The progress thread of an engine: it drives as a waiting caller does, but only while no caller waits and something is unfinished; else
 * it rests. And the callbacks of finished operations, which whoever drives runs. */
#include "comm/comm.h"

#include "os/os.h"

#include <signal.h>

/* Is there nothing left for the thread to do? */
static bool relieved(void *arg)
{
    hki_engine *e = arg;
    return e->thread.stop || e->drivers || (!e->unfinished && !e->called && !hki_unsent(e));
}

static void *body(void *arg)
{
    hki_engine *e = arg;
    hki_lock_take(&e->lock);
    while (!e->thread.stop) {
        if (!relieved(e)) {
            hki_drive_idle(e, relieved);
            continue;
        }
        const uint32_t seen = atomic_load(&e->thread.work);
        e->thread.resting = true;
        hki_lock_give(&e->lock);
        hki_futex_wait(&e->thread.work, seen, UINT64_MAX);
        hki_lock_take(&e->lock);
        e->thread.resting = false;
    }
    hki_lock_give(&e->lock);
    return NULL;
}

/* Signals are for the program's own threads. */
bool hki_progress_start(hki_engine *e)
{
    if (e->thread.started) return true;
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    e->thread.started = pthread_create(&e->thread.id, NULL, body, e) == 0;
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return e->thread.started;
}

static void rouse(hki_engine *e)
{
    atomic_fetch_add(&e->thread.work, 1);
    hki_futex_wake(&e->thread.work, false);
}

void hki_progress_need(hki_engine *e)
{
    if (e->thread.resting && !relieved(e)) rouse(e);
}

void hki_progress_poke(hki_engine *e)
{
    rouse(e);
    hki_bell_ring(e->bell, e->bell_name);
}

void hki_progress_stop(hki_engine *e)
{
    if (!e->thread.started) return;
    hki_lock_take(&e->lock);
    e->thread.stop = true;
    hki_lock_give(&e->lock);
    hki_progress_poke(e);
    pthread_join(e->thread.id, NULL);
    e->thread.started = false;
}

uint64_t hki_progress_cpu_ns(const hki_engine *e)
{
    return e->thread.started ? hki_cpu_ns_of(e->thread.id) : 0;
}

/* ---- Callbacks */

static _Thread_local bool in_callback;

bool hki_in_callback(void) { return in_callback; }

void hki_callbacks_run(hki_engine *e, bool caller)
{
    while (e->called && !in_callback) {
        hk_request *t = e->called;
        if (!(e->called = t->next_called)) e->called_end = &e->called;
        e->calling++;
        e->drivers -= caller;
        hki_progress_need(e);
        hki_lock_give(&e->lock);
        in_callback = true;
        t->done(t->done_arg, t->status);
        in_callback = false;
        hki_lock_take(&e->lock);
        e->calling--;
        e->drivers += caller;
        hki_task_settle(t);
        e->progress++;
        hki_engine_wake(e);
    }
}
