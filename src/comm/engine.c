/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/comm.h"

#include "diag/log.h"
#include "os/os.h"

#include <stdio.h>
#include <string.h>

_Atomic uint64_t hki_forks;

/* The single global besides: the process-wide engine. */
static struct {
    pthread_mutex_t lock;
    hki_engine *engine;
    pthread_once_t once;
} process = {.lock = PTHREAD_MUTEX_INITIALIZER, .once = PTHREAD_ONCE_INIT};

/* In a child the parent's engine must never be touched again: its lock may be held by a thread that does not exist here. */
static void in_child(void)
{
    atomic_fetch_add(&hki_forks, 1);
    process.engine = NULL;
    pthread_mutex_init(&process.lock, NULL);
}

static void watch_forks(void) { pthread_atfork(NULL, NULL, in_child); }

static void world_free(hki_world *w)
{
    for (uint32_t i = 0; i < w->n; i++) {
        hki_segment_close(&w->segments[i]);
        hki_close(w->bells[i].fd);
    }
    hki_free(w->segments);
    hki_free(w->bells);
    hki_free(w);
}

static void engine_free(hki_engine *e)
{
    hki_progress_stop(e);
    if (e->tcp) e->remote->close(e->tcp);
    while (e->views) {
        hki_view *v = e->views;
        e->views = v->next;
        hki_view_close(v);
    }
    hki_close(e->epoll);
    hki_close(e->fd_listener);
    if (e->world) {
        if (atomic_fetch_sub(&e->world->users, 1) == 1) world_free(e->world);
    } else {
        hki_close(e->bell);
        if (e->segment) hki_segment_close(e->segment);
        hki_free(e->segment);
    }
    hki_free(e);
}

static hki_engine *engine_new(void)
{
    hki_engine *e = hki_alloc(sizeof *e);
    if (!e) return NULL;
    e->bell = e->epoll = e->fd_listener = -1;
    e->generation = hki_fork_generation();
    e->epoll = hki_epoll();
    e->remote = hki_transport_remote();
    e->called_end = &e->called;
    e->cache_bytes = hki_cache_bytes();
    return e;
}

/* The segment can be shared if the kernel gives memory files; otherwise it is private and every peer is reached by TCP. */
static bool open_process_engine(hki_engine *e, hk_status *status, char error[160])
{
    e->segment = hki_alloc(sizeof *e->segment);
    if (!e->segment) return *status = HK_NO_MEMORY, snprintf(error, 160, "out of memory"), false;
    e->segment->fd = -1;
    e->bell = hki_bell_open(e->bell_name);
    if (e->bell < 0 || e->epoll < 0) return snprintf(error, 160, "no descriptors or memory (see `ulimit -n`)"), false;
    size_t bytes = hki_segment_limit();
    int r = hki_segment_open(e->segment, bytes, true);
    if (r < 0) {
        HKI_LOG(INFO, SHM, -1, "no shared memory file (%s): ranks on this host use TCP", strerror(-r));
        r = hki_segment_open(e->segment, hki_min(bytes, (size_t)1 << 30), false);
    }
    if (r < 0) return snprintf(error, 160, "no address space for a segment of %zu MiB (see `ulimit -v`)", bytes >> 20), false;
    if (hki_epoll_add(e->epoll, e->bell, true, false, 0)) return snprintf(error, 160, "epoll refused the doorbell"), false;
    if (e->segment->fd < 0) return true;
    char name[64];
    snprintf(name, sizeof name, "hocket-fd-%016llx", (unsigned long long)e->segment->token);
    e->fd_listener = hki_unix_listen(name, 256);
    return true;
}

hki_engine *hki_engine_get(hk_status *status, char error[160])
{
    *status = HK_SYSTEM;
    pthread_once(&process.once, watch_forks);
    pthread_mutex_lock(&process.lock);
    if (!process.engine) {
        hki_engine *e = engine_new();
        if (!e) *status = HK_NO_MEMORY, snprintf(error, 160, "out of memory");
        else if (open_process_engine(e, status, error)) process.engine = e;
        else engine_free(e);
    }
    if (process.engine) process.engine->users++, *status = HK_OK;
    hki_engine *e = process.engine;
    pthread_mutex_unlock(&process.lock);
    return e;
}

void hki_engine_put(hki_engine *e)
{
    if (e->world) {
        if (atomic_fetch_sub(&e->world_users, 1) == 0) engine_free(e);
        return;
    }
    pthread_mutex_lock(&process.lock);
    const bool last = --e->users == 0;
    if (last) process.engine = NULL;
    pthread_mutex_unlock(&process.lock);
    if (last) engine_free(e);
}

static bool open_world(hki_world *w, hki_engine **engines, uint32_t n)
{
    const size_t bytes = hki_min(hki_segment_limit(), (size_t)4 << 30);
    w->segments = hki_alloc(n * sizeof *w->segments);
    w->bells = hki_alloc(n * sizeof *w->bells);
    if (!w->segments || !w->bells) return false;
    for (uint32_t i = 0; i < n; i++) w->segments[i].fd = w->bells[i].fd = -1;
    w->n = n;
    for (uint32_t i = 0; i < n; i++) {
        w->bells[i].fd = hki_bell_open(w->bells[i].name);
        if (w->bells[i].fd < 0 || hki_segment_open(&w->segments[i], bytes, false) < 0) return false;
        hki_engine *e = engines[i] = engine_new();
        if (!e) return false;
        e->world = w;
        atomic_fetch_add(&w->users, 1);
        e->users = 1;
        e->segment = &w->segments[i];
        e->bell = w->bells[i].fd;
        memcpy(e->bell_name, w->bells[i].name, sizeof e->bell_name);
        if (e->epoll < 0 || hki_epoll_add(e->epoll, e->bell, true, false, 0)) return false;
    }
    return true;
}

bool hki_engine_world(hki_engine **engines, uint32_t n, char error[160])
{
    pthread_once(&process.once, watch_forks);
    memset(engines, 0, n * sizeof *engines);
    hki_world *w = hki_alloc(sizeof *w);
    if (!w) return snprintf(error, 160, "out of memory"), false;
    atomic_fetch_add(&w->users, 1); /* ours, until it stands */
    const bool ok = open_world(w, engines, n);
    if (!ok) snprintf(error, 160, "no memory or descriptors for %u ranks in one process", n);
    for (uint32_t i = 0; !ok && i < n; i++)
        if (engines[i]) engine_free(engines[i]);
    if (atomic_fetch_sub(&w->users, 1) == 1) world_free(w);
    return ok;
}

void hki_engine_pump(hki_engine *e)
{
    if (e->tcp && e->remote->progress(e->tcp, &e->paced)) e->progress++;
    hki_engine_pump_comms(e);
}

void hki_engine_pump_comms(hki_engine *e)
{
    for (hk_comm *c = e->comms; c; c = c->next)
        if (hki_comm_pump(c)) e->progress++;
}

void hki_engine_check(hki_engine *e, uint64_t now_us)
{
    for (hk_comm *c = e->comms; c; c = c->next) hki_comm_check(c, now_us);
}

hki_view *hki_engine_view(hki_engine *e, int fd, uint64_t token, const char *bell)
{
    hki_view *v = e->views;
    while (v && v->token != token) v = v->next;
    if (v) {
        hki_close(fd);
        v->users++;
        return v;
    }
    if (fd < 0 || !(v = hki_view_open(fd, token, bell))) return NULL;
    v->users = 1;
    v->next = e->views;
    e->views = v;
    return v;
}

void hki_engine_unview(hki_engine *e, hki_view *v)
{
    if (--v->users) return;
    hki_view **at = &e->views;
    while (*at && *at != v) at = &(*at)->next;
    if (*at) *at = v->next;
    hki_view_close(v);
}

bool hki_engine_listen(hki_engine *e, char error[160])
{
    if (e->tcp) return true;
    if (!e->remote) return snprintf(error, 160, "this build has no transport between hosts"), false;
    e->tcp = e->remote->open(e->epoll, e->segment->token, &e->tcp_port, error);
    return e->tcp != NULL;
}

void hki_engine_wake(hki_engine *e)
{
    if (!e->sleepers) return;
    e->round++;
    e->stale = e->sleepers;
    hki_bell_ring(e->bell, e->bell_name);
}
