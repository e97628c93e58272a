/* SPDX-License-Identifier: Apache-2.0
 * Making and ending communicators. What is special to a way of meeting (env, id, threads, a parent) is in meet.c and derive.c. */
#include "comm/comm.h"

#include "diag/log.h"
#include "net/mux.h"
#include "os/os.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool hki_comm_local(const hk_comm *comm, uint32_t rank)
{
    return rank == comm->shape.rank || (comm->settings.transport != HKI_ONLY_TCP && comm->peers[rank]->view != NULL);
}

hki_where hki_comm_where(const hk_comm *comm)
{
    if (comm->peer_block->crowded) return comm->any_tcp ? HKI_FAR_CROWDED : HKI_NEAR_CROWDED;
    return comm->any_tcp ? HKI_FAR : HKI_NEAR;
}

static hki_port *mux(hk_comm *comm, uint32_t channel)
{
    return hki_mux_port(comm->shm_ports[channel], comm->tcp_ports[channel], comm->peers, comm->settings.transport == HKI_ONLY_TCP);
}

static bool open_channels(hk_comm *comm)
{
    const uint32_t P = comm->shape.ranks;
    for (uint32_t c = 0; c <= HKI_CHANNELS; c++) {
        comm->shm_ports[c] = hki_shm_port(&comm->area, c);
        if (comm->tcp) comm->tcp_ports[c] = comm->engine->remote->port(comm->tcp, c);
        if (!comm->shm_ports[c] || (comm->tcp && !comm->tcp_ports[c])) return false;
        comm->ports[c] = comm->tcp ? mux(comm, c) : comm->shm_ports[c];
        comm->channels[c].sources = hki_alloc(2 * P * sizeof(void *));
        comm->channels[c].places = hki_alloc((P + 1) * sizeof(void *));
        comm->channels[c].marks = hki_alloc((P + 1) * sizeof(uint32_t));
        if (!comm->ports[c] || !comm->channels[c].sources || !comm->channels[c].places || !comm->channels[c].marks) return false;
    }
    return true;
}

/* Messages may be as large as a slot. Everything here must come out alike on all ranks. */
static void choose_slots(hk_comm *comm, bool crowded)
{
    hki_shape *s = &comm->shape;
    s->channels = HKI_CHANNELS + 1;
    s->crowded = crowded;
    s->sockets = comm->settings.sockets;
    s->slots = comm->settings.slots;
    const size_t usual = !comm->any_tcp ? (size_t)64 << 10 : crowded ? (size_t)256 << 10 : (size_t)512 << 10;
    s->slot_bytes = comm->settings.slot_bytes ? comm->settings.slot_bytes : usual;
    s->slot_bytes = hki_max(s->slot_bytes, (size_t)s->ranks * HKI_LINE);
}

/* Are there H hosts, rank r on the r / q-th or, dealt, on the r % H-th? */
static bool hosts_are(hki_peer *const *peers, uint32_t ranks, uint32_t q, bool dealt)
{
    const uint32_t H = ranks / q;
    if (q < 2 || H < 2 || ranks % q) return false;
    for (uint32_t r = 0; r < ranks; r++)
        if (peers[r]->group != peers[dealt ? r % H : r / q * q]->group) return false;
    for (uint32_t h = 0; h < H; h++)
        for (uint32_t k = 0; k < h; k++)
            if (peers[dealt ? h : h * q]->group == peers[dealt ? k : k * q]->group) return false;
    return true;
}

/* Sets per_host and dealt. */
static void know_hosts(hk_comm *comm)
{
    const uint32_t ranks = comm->shape.ranks;
    uint32_t q = 0;
    for (uint32_t r = 0; r < ranks; r++) q += comm->peers[r]->group == comm->peers[0]->group;
    comm->dealt = hosts_are(comm->peers, ranks, q, true);
    if (comm->dealt || hosts_are(comm->peers, ranks, q, false)) comm->per_host = q;
}

hk_status hki_comm_make(hk_comm **out, hki_engine *e, const hki_settings *settings, hki_peers *block, hki_peer **peers, uint32_t ranks,
                        uint32_t rank, uint64_t uid, char error[160])
{
    hk_comm *comm = hki_alloc(sizeof *comm);
    if (!comm) return snprintf(error, 160, "out of memory"), HK_NO_MEMORY;
    comm->magic = HKI_COMM_MAGIC;
    comm->engine = e;
    comm->settings = *settings;
    comm->shape.uid = uid;
    comm->shape.ranks = ranks;
    comm->shape.rank = rank;
    comm->peers = peers;
    comm->peer_block = block;
    comm->waiting_end = &comm->waiting;
    for (uint8_t c = 0; c < HKI_CHANNELS; c++)
        comm->quick[c] = (hk_request){.comm = comm, .kind = HKI_TASK_COLLECTIVE, .channel = c, .held = true, .timeout_us = settings->timeout_us};
    for (uint32_t r = 0; r < ranks; r++) comm->any_tcp |= peers[r]->group != peers[0]->group;
    for (uint32_t r = 0; r < ranks; r++) comm->near_ranks += peers[r]->host_key == peers[rank]->host_key;
    know_hosts(comm);
    comm->any_tcp = ranks > 1 && (comm->any_tcp || settings->transport == HKI_ONLY_TCP);
    comm->plain = !comm->any_tcp && settings->executor != HKI_EVENT;
    choose_slots(comm, block->crowded);
    e->crowded |= block->crowded;
    /* Ranks that outnumber CPUs sleep often and are seldom in a hurry for a store. Later it is too late: others may count on it. */
    if (block->crowded && !e->comms) atomic_store(&hki_segment_head_of(e->segment->base)->fences, 0u);
    hk_status status = hki_area_open(&comm->area, &comm->shape, e->segment, peers, e->bell);
    if (!status) comm->now = &hki_area_mine(&comm->area)->now;
    if (!status && comm->any_tcp) {
        comm->tcp = e->tcp ? e->remote->join(e->tcp, &comm->shape, peers, settings->pace) : NULL;
        if (!comm->tcp) status = HK_NO_MEMORY;
    }
    if (!status && !open_channels(comm)) status = HK_NO_MEMORY;
    if (status) {
        snprintf(error, 160, "no memory for the lanes of %u ranks", ranks);
        comm->peers = NULL;
        comm->peer_block = NULL;
        hki_comm_free(comm);
        return status;
    }
    hki_lock_take(&e->lock);
    hki_seen_open(comm);
    hki_set_spins(e);
    comm->next = e->comms;
    e->comms = comm;
    hki_lock_give(&e->lock);
    *out = comm;
    return HK_OK;
}

static void drop_peers(hk_comm *comm)
{
    hki_peers *b = comm->peer_block;
    hki_free(comm->peers);
    if (!b || atomic_fetch_sub(&b->users, 1) != 1) return;
    for (uint32_t i = 0; i < b->n; i++)
        if (b->peer[i].view) hki_engine_unview(comm->engine, b->peer[i].view);
    hki_free(b->peer);
    hki_free(b);
}

/* The lock is held, the communicator is in no list. */
void hki_comm_free(hk_comm *comm)
{
    hki_seen_close(comm);
    for (uint32_t c = 0; c <= HKI_CHANNELS; c++) {
        if (comm->ports[c] && comm->ports[c] != comm->shm_ports[c]) comm->ports[c]->ops->close(comm->ports[c]);
        if (comm->shm_ports[c]) comm->shm_ports[c]->ops->close(comm->shm_ports[c]);
        if (comm->tcp_ports[c]) comm->tcp_ports[c]->ops->close(comm->tcp_ports[c]);
        hki_free(comm->channels[c].temp.at);
        hki_free(comm->channels[c].done.at);
        hki_free(comm->channels[c].next_temp.at);
        hki_free(comm->channels[c].next_done.at);
        hki_free(comm->channels[c].sources);
        hki_free(comm->channels[c].places);
        hki_free(comm->channels[c].marks);
    }
    if (comm->tcp) comm->engine->remote->leave(comm->tcp);
    hki_area_close(&comm->area);
    hki_cache_free(comm);
    hki_p2p_free(comm);
    while (comm->free_tasks) {
        hk_request *t = comm->free_tasks;
        comm->free_tasks = t->next;
        hki_free(t);
    }
    while (comm->uses) {
        struct hki_use *u = comm->uses;
        comm->uses = u->next;
        hki_free(u);
    }
    drop_peers(comm);
    hki_error_forget(comm);
    comm->magic = 0;
    hki_free(comm);
}

/* The launcher's file has a record a rank. In a process that merely inherited the variables the descriptor may be anything, so it is
 * looked at before it is trusted. Stays mapped: a record of 128 bytes, once a process. */
void hki_comm_show_launcher(hk_comm *comm)
{
    const char *fd = hki_env("HOCKET_NOW_FD"), *slot = hki_env("HOCKET_NOW_SLOT");
    const unsigned long at = slot ? strtoul(slot, NULL, 10) : 0;
    if (!fd || !slot || at >= 65536) return;
    hki_now *records = hki_map_shared_if_sealed((int)strtol(fd, NULL, 10), (at + 1) * sizeof *records);
    if (!records) return;
    comm->now = &records[at];
    atomic_store(&comm->now->waiting_for, UINT32_MAX);
}

/* ---- Ending ------------------------------------------------------------------------------------------------------------ */

/* A rank that never was connected to this one asks at its next look at the clock: time for it to be told why. */
static bool all_told(void *arg)
{
    hk_comm *comm = arg;
    return comm->engine->remote->fail(comm->tcp, &comm->notice);
}

uint32_t hki_comm_undrained(hk_comm *comm)
{
    for (uint32_t c = 0; c <= HKI_CHANNELS; c++)
        for (uint32_t r = 0; r < comm->shape.ranks; r++)
            if (r != comm->shape.rank && comm->ports[c]->ops->unread(comm->ports[c], r)) return r;
    return UINT32_MAX;
}

static bool drained(void *arg)
{
    hk_comm *comm = arg;
    return comm->broken || (!comm->unfinished && hki_comm_undrained(comm) == UINT32_MAX);
}

static bool called_back(void *arg) { return !((const hk_comm *)arg)->calls; }

/* Waits until the peers have taken what this rank sent; what cannot be is a failure like any other. Callbacks, which have no limit of ours,
 * may have issued more. */
static void drain(hk_comm *comm)
{
    comm->leaving = true;
    do {
        if (!comm->broken && !hki_wait_until(comm->engine, drained, comm, hki_now_us() + comm->settings.timeout_us)) {
            const uint32_t rank = hki_comm_undrained(comm);
            hki_comm_fail(comm, HK_TIMEOUT, rank < comm->shape.ranks ? rank : comm->shape.rank, comm->tasks, hki_now_us());
        }
        if (comm->calls) hki_wait_until(comm->engine, called_back, comm, UINT64_MAX);
    } while (!drained(comm) || comm->calls);
    hki_comm_check(comm, hki_now_us()); /* the last chance to see that the calls of the ranks differed */
    if (comm->broken && comm->tcp) hki_wait_until(comm->engine, all_told, comm, hki_now_us() + 800000);
}

HK_API hk_status hk_comm_destroy(hk_comm *comm)
{
    if (!comm) return HK_OK;
    hk_status status = hki_comm_usable(comm);
    if (status) return status;
    if ((status = hki_outside_group(comm, "hk_comm_destroy"))) return status;
    if (hki_in_callback()) return hki_error(comm, HK_INVALID, "hk_comm_destroy in a callback: destroy it elsewhere");
    hki_engine *e = comm->engine;
    hki_lock_take(&e->lock);
    drain(comm);
    status = comm->broken ? (hk_status)comm->notice.status : HK_OK;
    hk_comm **at = &e->comms;
    while (*at != comm) at = &(*at)->next;
    *at = comm->next;
    hki_area_ring(&comm->area);
    hki_comm_free(comm);
    hki_lock_give(&e->lock);
    hki_engine_put(e);
    return status;
}

HK_API int hk_comm_rank(const hk_comm *comm) { return comm ? (int)comm->shape.rank : -1; }
HK_API int hk_comm_ranks(const hk_comm *comm) { return comm ? (int)comm->shape.ranks : -1; }
