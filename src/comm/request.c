/* SPDX-License-Identifier: Apache-2.0
 * Requests as callers see them: test, wait, free, and groups that stand behind one request. */
#include "comm/comm.h"

#include "os/os.h"

#include <string.h>

/* Takes a finished task's status and gives the task back. */
static hk_status collect(hk_request **request)
{
    hk_request *t = *request;
    const hk_status status = t->status;
    *request = NULL;
    hki_task_recycle(t);
    return status;
}

static hk_status usable(hk_request **request, const char *call)
{
    if (!request) return hki_error(NULL, HK_INVALID, "%s: request is NULL", call);
    return *request ? hki_comm_usable((*request)->comm) : HK_OK;
}

/* The same for a call that waits, which callbacks may not. */
static hk_status waitable(hk_request **request, const char *call)
{
    const hk_status status = usable(request, call);
    if (status || !*request || !hki_in_callback()) return status;
    return hki_error((*request)->comm, HK_INVALID, "a wait in a callback would hold up what it waits for");
}

HK_API hk_status hk_test(hk_request **request, int *done)
{
    hk_status status = usable(request, "hk_test");
    if (!status && !done) status = hki_error(NULL, HK_INVALID, "hk_test: done is NULL");
    if (status) return status;
    *done = 1;
    if (!*request) return HK_OK;
    hki_engine *e = (*request)->comm->engine;
    hki_lock_take(&e->lock);
    if (!hki_task_over(*request)) hki_engine_pump(e);
    if (!hki_task_over(*request)) hki_comm_check((*request)->comm, hki_now_us());
    *done = hki_task_over(*request);
    if (*done) status = collect(request);
    hki_lock_give(&e->lock);
    return status;
}

hk_status hki_request_wait(hk_request **request, uint64_t give_up_us)
{
    hk_comm *comm = (*request)->comm;
    if (!hki_wait(comm->engine, request, 1, true, give_up_us)) return HK_WAIT_EXPIRED;
    hki_flush(comm, (*request)->timeout_us);
    return collect(request);
}

static hk_status wait_for(hk_request **request, uint64_t give_up_us)
{
    if (!*request) return HK_OK;
    hk_comm *comm = (*request)->comm;
    hki_engine *e = comm->engine;
    const uint64_t seq = (*request)->seq, since = HKI_SEEN_ENTER(comm);
    hki_lock_take(&e->lock);
    const hk_status status = hki_request_wait(request, give_up_us);
    HKI_SEEN_LEAVE(comm, since, "wait", seq, true);
    hki_lock_give(&e->lock);
    return status;
}

HK_API hk_status hk_wait(hk_request **request)
{
    const hk_status status = waitable(request, "hk_wait");
    return status ? status : wait_for(request, UINT64_MAX);
}

HK_API hk_status hk_wait_for(hk_request **request, uint64_t timeout_us)
{
    const hk_status status = waitable(request, "hk_wait_for");
    const uint64_t now = hki_now_us();
    return status ? status : wait_for(request, timeout_us > UINT64_MAX - now ? UINT64_MAX : now + timeout_us);
}

HK_API hk_status hk_wait_all(hk_request **requests, size_t n)
{
    if (!requests && n) return hki_error(NULL, HK_INVALID, "hk_wait_all: requests is NULL");
    hk_status first = HK_OK;
    for (size_t i = 0; i < n; i++) { /* waiting for one pumps all, so the order does not matter */
        const hk_status status = hk_wait(&requests[i]);
        if (!first) first = status;
    }
    return first;
}

typedef struct any { hk_request **requests; size_t n, at; } any;

static bool any_done(void *arg)
{
    any *a = arg;
    for (a->at = 0; a->at < a->n; a->at++)
        if (a->requests[a->at] && hki_task_over(a->requests[a->at])) return true;
    return false;
}

/* Requests may be of communicators of one process only, so the first one's engine pumps for all (ranks as threads wait on their own). */
HK_API hk_status hk_wait_any(hk_request **requests, size_t n, size_t *index)
{
    if ((!requests && n) || !index) return hki_error(NULL, HK_INVALID, "hk_wait_any: %s is NULL", index ? "requests" : "index");
    size_t first = 0;
    while (first < n && !requests[first]) first++;
    *index = n;
    if (first == n) return HK_OK;
    hk_status status = waitable(&requests[first], "hk_wait_any");
    if (status) return status;
    hk_comm *comm = requests[first]->comm;
    hki_engine *e = comm->engine;
    any a = {requests, n, 0};
    const uint64_t since = HKI_SEEN_ENTER(comm);
    hki_lock_take(&e->lock);
    if (any_done(&a) || hki_wait_until(e, any_done, &a, UINT64_MAX)) {
        *index = a.at;
        status = collect(&requests[a.at]);
    }
    HKI_SEEN_LEAVE(comm, since, "wait_any", 0, true);
    hki_lock_give(&e->lock);
    return status;
}

HK_API void hk_request_free(hk_request **request)
{
    if (usable(request, "hk_request_free") || !*request) return;
    hki_engine *e = (*request)->comm->engine;
    hki_lock_take(&e->lock);
    (*request)->held = false;
    if (hki_task_over(*request)) hki_task_recycle(*request);
    *request = NULL;
    hki_lock_give(&e->lock);
}

/* ---- Groups ------------------------------------------------------------------------------------------------------------ */

hki_group **hki_group_at(hk_comm *comm)
{
    hki_group **at = &comm->groups;
    while (*at && !pthread_equal((*at)->owner, pthread_self())) at = &(*at)->next;
    return at;
}

HK_API hk_status hk_group_start(hk_comm *comm)
{
    hk_status status = hki_comm_usable(comm);
    if (status) return status;
    hki_lock_take(&comm->engine->lock);
    hki_group **at = hki_group_at(comm);
    if (!*at && (*at = hki_alloc(sizeof **at))) (*at)->owner = pthread_self();
    if (*at) (*at)->depth++;
    else status = hki_error(comm, HK_NO_MEMORY, "out of memory for a group");
    hki_lock_give(&comm->engine->lock);
    return status;
}

/* Everything collected becomes members of one group task and is submitted together. */
static hk_status launch(hk_comm *comm, hki_group *g, hk_request **request)
{
    const bool able = !comm->broken && (!request || hki_progress_start(comm->engine));
    hk_request *group = able ? hki_task_new(comm, HKI_TASK_GROUP) : NULL;
    const uint64_t now = hki_now_us();
    uint32_t members = 0;
    for (hk_request *t = g->first, *next; t; t = next) {
        next = t->queue;
        t->queue = NULL;
        t->group = group;
        t->issued_us = now;
        t->next_stall_us = now + comm->settings.stall_us;
        if (group) {
            members++;
            hki_task_submit(comm, t);
        } else {
            hki_refuse(t, HK_OK);
        }
    }
    if (!group) return comm->broken ? (hk_status)comm->notice.status : hki_error(comm, HK_NO_MEMORY, "out of memory or threads for a group");
    group->held = true;
    group->timeout_us = comm->settings.timeout_us;
    group->pending = members;
    hki_task_submit(comm, group);
    if (!members) hki_task_finish(group, HK_OK);
    hki_comm_pump(comm);
    if (request) {
        hki_progress_need(comm->engine);
        return *request = group, HK_OK;
    }
    return hki_request_wait(&group, UINT64_MAX);
}

HK_API hk_status hk_group_end(hk_comm *comm, hk_request **request)
{
    if (request) *request = NULL;
    hk_status status = hki_comm_usable(comm);
    if (status) return status;
    if (!request && hki_in_callback()) return hki_error(comm, HK_INVALID, "hk_group_end without a request in a callback would hold up what it waits for");
    const uint64_t since = HKI_SEEN_ENTER(comm);
    hki_lock_take(&comm->engine->lock);
    hki_group **at = hki_group_at(comm), *g = *at;
    if (!g) {
        status = hki_error(comm, HK_INVALID, "hk_group_end without hk_group_start in this thread");
    } else if (--g->depth == 0) {
        *at = g->next;
        status = launch(comm, g, request);
        hki_free(g);
    }
    HKI_SEEN_LEAVE(comm, since, "group", comm->seq, !request);
    hki_lock_give(&comm->engine->lock);
    return status;
}
