/* SPDX-License-Identifier: Apache-2.0
 * Ranks as threads: n engines in one process that see each other's memory directly. */
#include "comm/comm.h"

#include "os/os.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

static bool introduce(hki_peer *p, hki_engine *e, const hki_engine *other, uint32_t rank, bool tcp)
{
    memset(p, 0, sizeof *p);
    hki_hostname(p->host);
    p->pid = (int32_t)getpid();
    p->host_key = 1;
    p->token = other->segment->token;
    memcpy(p->bell, other->bell_name, sizeof p->bell);
    if (tcp) {
        snprintf(p->address[0], sizeof p->address[0], "127.0.0.1");
        p->port = other->tcp_port;
        p->group = rank; /* each a group of its own */
    }
    if (!(p->view = hki_view_of(other->segment, other->bell_name))) return false;
    p->view->users = 1;
    p->view->next = e->views;
    e->views = p->view;
    return true;
}

static hk_status make_one(hk_comm **comm, hki_engine **engines, uint32_t n, uint32_t rank, const hki_settings *s, uint64_t uid, char error[160])
{
    hki_engine *e = engines[rank];
    hki_peers *block = hki_alloc(sizeof *block);
    hki_peer **peers = hki_alloc(n * sizeof *peers), *peer = hki_alloc(n * sizeof *peer);
    bool ok = block && peers && peer;
    for (uint32_t r = 0; ok && r < n; r++) {
        ok = introduce(&peer[r], e, engines[r], r, s->transport == HKI_ONLY_TCP);
        peers[r] = &peer[r];
    }
    hk_status status = HK_NO_MEMORY;
    if (ok) {
        *block = (hki_peers){.users = 1, .n = n, .peer = peer, .crowded = n > hki_cpus()};
        status = hki_comm_make(comm, e, s, block, peers, n, rank, uid, error);
    } else {
        snprintf(error, 160, "out of memory for %u ranks", n);
    }
    if (!status) return HK_OK;
    hki_free(block);
    hki_free(peers);
    hki_free(peer);
    return status;
}

HK_API hk_status hk_comm_create_local_config(hk_comm **comms, int n, const hk_config *config)
{
    char error[160];
    hki_settings s;
    if (!comms || n < 1 || n > 4096) return hki_error(NULL, HK_INVALID, "hk_comm_create_local: %s", comms ? "n must be from 1 to 4096" : "comms is NULL");
    memset(comms, 0, (size_t)n * sizeof *comms);
    hk_status status = hki_settings_read(&s, config, error);
    if (status) return hki_error(NULL, status, "%s", error);
    hki_engine **engines = hki_alloc((size_t)n * sizeof *engines);
    if (!engines || !hki_engine_world(engines, (uint32_t)n, error)) {
        hki_free(engines);
        return hki_error(NULL, HK_NO_MEMORY, "%s", engines ? error : "out of memory");
    }
    uint64_t uid;
    hki_random(&uid, sizeof uid);
    for (int r = 0; s.transport == HKI_ONLY_TCP && r < n && !status; r++)
        if (!hki_engine_listen(engines[r], error)) status = HK_SYSTEM;
    int made = 0;
    while (!status && made < n) {
        status = make_one(&comms[made], engines, (uint32_t)n, (uint32_t)made, &s, uid, error);
        if (!status) made++;
    }
    if (status) {
        for (int r = 0; r < made; r++) {
            engines[r]->comms = NULL;
            hki_comm_free(comms[r]);
            comms[r] = NULL;
        }
        for (int r = 0; r < n; r++) hki_engine_put(engines[r]);
        hki_error(NULL, status, "%s", error);
    }
    hki_free(engines);
    return status;
}

HK_API hk_status hk_comm_create_local(hk_comm **comms, int n) { return hk_comm_create_local_config(comms, n, NULL); }
