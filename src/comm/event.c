/* SPDX-License-Identifier: Apache-2.0
 *
 * Events. One is counted: by its handle, by the request it stands for, by the tasks that wait for it. A task that waits is in the event's
 * list, so that recording it can poke the task's engine; a task's engine outlives the task, and a task leaves the list before it ends.
 *
 * Locks: an engine's, then an event's; recording takes the event's alone. */
#include "comm/comm.h"

#include "os/os.h"

struct hk_event {
    hki_lock lock;
    _Atomic uint32_t users, recorded; /* recorded: threads sleep on it */
    hk_status status;                 /* once recorded */
    hki_after *waiting;
};

static hk_event *event_new(void)
{
    hk_event *event = hki_alloc(sizeof *event);
    if (event) atomic_init(&event->users, 1);
    return event;
}

static hk_event *hold(hk_event *event)
{
    atomic_fetch_add(&event->users, 1);
    return event;
}

static void drop(hk_event *event)
{
    if (atomic_fetch_sub(&event->users, 1) == 1) hki_free(event);
}

static void record(hk_event *event, hk_status status)
{
    hki_lock_take(&event->lock);
    if (!atomic_load(&event->recorded)) {
        event->status = status;
        atomic_store(&event->recorded, 1);
        hki_futex_wake(&event->recorded, true);
        for (hki_after *a = event->waiting; a; a = a->next) hki_progress_poke(a->engine);
    }
    hki_lock_give(&event->lock);
}

/* ---- Tasks that come after events; the engine's lock is held */

hk_status hki_after_set(hk_comm *comm, hk_request *t, hk_event *const *events, size_t n)
{
    if (!n) return HK_OK;
    if (n > HKI_AFTER_MAX) return hki_error(comm, HK_INVALID, "options.after_count is %zu: %d at most", n, HKI_AFTER_MAX);
    for (size_t i = 0; i < n; i++)
        if (!events || !events[i]) return hki_error(comm, HK_INVALID, "options.after[%zu] of %zu is NULL", i, n);
    t->after = hki_alloc(n * sizeof *t->after);
    if (!t->after) return hki_error(comm, HK_NO_MEMORY, "out of memory for %zu events", n);
    t->after_count = (uint32_t)n;
    for (size_t i = 0; i < n; i++) {
        hki_after *a = &t->after[i];
        *a = (hki_after){.event = hold(events[i]), .engine = comm->engine};
        hki_lock_take(&a->event->lock);
        a->next = a->event->waiting;
        a->event->waiting = a;
        hki_lock_give(&a->event->lock);
    }
    return HK_OK;
}

void hki_after_forget(hk_request *t)
{
    for (uint32_t i = 0; i < t->after_count; i++) {
        hki_after *a = &t->after[i], **at;
        hki_lock_take(&a->event->lock);
        for (at = &a->event->waiting; *at != a; at = &(*at)->next) { }
        *at = a->next;
        hki_lock_give(&a->event->lock);
        drop(a->event);
    }
    hki_free(t->after);
    t->after = NULL;
    t->after_count = 0;
}

bool hki_after_waits(const hk_request *t)
{
    for (uint32_t i = 0; i < t->after_count; i++)
        if (!atomic_load(&t->after[i].event->recorded)) return true;
    return false;
}

bool hki_after_come(hk_request *t)
{
    hk_status failed = HK_OK;
    if (hki_after_waits(t)) return false;
    for (uint32_t i = 0; i < t->after_count && !failed; i++) failed = t->after[i].event->status;
    hki_after_forget(t);
    if (failed) hki_comm_fail(t->comm, HK_ABORTED, t->comm->shape.rank, t, hki_now_us());
    return !failed;
}

void hki_event_of_task(hk_request *t)
{
    if (!t->event) return;
    record(t->event, t->status);
    drop(t->event);
    t->event = NULL;
}

/* ---- The public calls */

static hk_status created(hk_event *event, hk_event **out)
{
    *out = event;
    return event ? HK_OK : hki_error(NULL, HK_NO_MEMORY, "out of memory for an event");
}

HK_API hk_status hk_event_create(hk_event **event)
{
    return event ? created(event_new(), event) : hki_error(NULL, HK_INVALID, "hk_event_create: event is NULL");
}

HK_API hk_status hk_event_record(hk_event *event)
{
    if (!event) return hki_error(NULL, HK_INVALID, "hk_event_record: event is NULL");
    record(hold(event), HK_OK); /* who waits for it may destroy it at once */
    drop(event);
    return HK_OK;
}

HK_API hk_status hk_event_reset(hk_event *event)
{
    if (!event) return hki_error(NULL, HK_INVALID, "hk_event_reset: event is NULL");
    hki_lock_take(&event->lock);
    const bool used = event->waiting != NULL;
    if (!used) atomic_store(&event->recorded, 0);
    hki_lock_give(&event->lock);
    return used ? hki_error(NULL, HK_INVALID, "hk_event_reset: operations wait for this event: reset it once they have started") : HK_OK;
}

HK_API hk_status hk_request_event(hk_request *request, hk_event **event)
{
    if (!request || !event) return hki_error(NULL, HK_INVALID, "hk_request_event: %s is NULL", request ? "event" : "request");
    *event = NULL;
    hk_status status = hki_comm_usable(request->comm);
    if (status) return status;
    hki_lock_take(&request->comm->engine->lock);
    if (!request->event && (request->event = event_new()) && hki_task_over(request)) {
        *event = hold(request->event);
        hki_event_of_task(request);
    } else if (request->event) {
        *event = hold(request->event);
    }
    hki_lock_give(&request->comm->engine->lock);
    return created(*event, event);
}

HK_API hk_status hk_event_query(const hk_event *event, int *recorded)
{
    if (!event || !recorded) return hki_error(NULL, HK_INVALID, "hk_event_query: %s is NULL", event ? "recorded" : "event");
    *recorded = (int)atomic_load(&event->recorded);
    return HK_OK;
}

HK_API hk_status hk_event_wait(hk_event *event, uint64_t timeout_us)
{
    if (!event) return hki_error(NULL, HK_INVALID, "hk_event_wait: event is NULL");
    if (hki_in_callback()) return hki_error(NULL, HK_INVALID, "hk_event_wait in a callback: it would hold up what it waits for");
    const uint64_t now = hki_now_us(), limit = timeout_us > UINT64_MAX - now ? UINT64_MAX : now + timeout_us;
    while (!atomic_load(&event->recorded)) {
        const uint64_t at = limit == UINT64_MAX ? 0 : hki_now_us();
        if (at >= limit) return HK_WAIT_EXPIRED;
        hki_futex_wait(&event->recorded, 0, limit == UINT64_MAX ? UINT64_MAX : limit - at);
    }
    return event->status;
}

HK_API void hk_event_destroy(hk_event *event)
{
    if (event) drop(event);
}
