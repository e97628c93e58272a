/* SPDX-License-Identifier: Apache-2.0
 *
 * What launchers leave in the environment: rank and ranks, and a place to meet, in this order:
 *   HOCKET_ADDR and HOCKET_PORT; unless there is a HOCKET_JOB, MASTER_ADDR and MASTER_PORT (port + 1 under a torchrun agent that holds
 *   the port itself); on one host a local socket named after the launcher's job; PMI-1 over PMI_FD; the first host of SLURM_JOB_NODELIST
 *   with a port made of the job id. */
#include "boot/boot.h"

#include "os/os.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct source { const char *name, *rank, *ranks, *here; } source; /* here: ranks on this host */

static const source sources[] = {
    {"hocket run", "HOCKET_RANK", "HOCKET_RANKS", NULL},
    {"torchrun", "RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"},
    {"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"},
    {"PMI", "PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS"},
    {"PMIx", "PMIX_RANK", "PMIX_SIZE", "PMIX_LOCAL_SIZE"},
    {"Slurm", "SLURM_PROCID", "SLURM_NTASKS", NULL},
};

static const char *get(const char *name)
{
    const char *v = name ? getenv(name) : NULL;
    return v && *v ? v : NULL;
}

static bool number(const char *text, unsigned long max, uint32_t *out)
{
    char *end;
    const unsigned long v = text ? strtoul(text, &end, 10) : 0;
    if (!text || *end || end == text || v > max) return false;
    *out = (uint32_t)v;
    return true;
}

static bool read_rank(hki_launch *l, const source **from, char text[512])
{
    for (size_t i = 0; i < HKI_COUNT(sources); i++) {
        const source *s = &sources[i];
        const char *rank = get(s->rank), *ranks = get(s->ranks);
        if (!rank || !ranks) continue;
        if (!number(rank, UINT32_MAX - 1, &l->rank) || !number(ranks, 65536, &l->ranks) || l->ranks == 0)
            return snprintf(text, 512, "%s='%.20s' and %s='%.20s' are not a rank and a number of ranks", s->rank, rank, s->ranks, ranks), false;
        if (l->rank >= l->ranks)
            return snprintf(text, 512, "%s=%u is not below %s=%u: ranks count from 0", s->rank, l->rank, s->ranks, l->ranks), false;
        l->from = s->name;
        *from = s;
        return true;
    }
    int n = snprintf(text, 512, "no rank in the environment. Looked for");
    for (size_t i = 0; i < HKI_COUNT(sources); i++)
        n += snprintf(text + n, (size_t)(512 - n), "%s %s and %s (%s)", i ? "," : "", sources[i].rank, sources[i].ranks, sources[i].name);
    snprintf(text + n, (size_t)(512 - n), ". Start the program with `hocket run -n 4 -- PROGRAM`");
    return false;
}

/* host:port by TCP. */
static bool at_address(hki_place *p, const char *host, const char *port_text, uint32_t plus, const char *what, char text[512])
{
    uint32_t port;
    if (!number(port_text, 65535 - plus, &port) || port + plus == 0)
        return snprintf(text, 512, "%s: '%.40s' is no port", what, port_text ? port_text : "(unset)"), false;
    p->port = (uint16_t)(port + plus);
    p->addresses = hki_resolve(host, p->address, HKI_PLACE_ADDRESSES);
    if (!p->addresses) return snprintf(text, 512, "%s: the host name '%.100s' cannot be resolved", what, host), false;
    snprintf(p->shown, sizeof p->shown, "%.200s port %u", host, p->port);
    return true;
}

/* Something all ranks of the job on this host share and no other job has: the launcher's own job id, else its daemon's process. */
static void job_name(const source *s, char *out, size_t cap)
{
    const char *job = get("HOCKET_JOB"), *slurm = get("SLURM_JOB_ID"), *pmix = get("PMIX_NAMESPACE"), *ompi = get("OMPI_MCA_ess_base_jobid");
    if (job) snprintf(out, cap, "job-%.80s", job);
    else if (pmix) snprintf(out, cap, "pmix-%.80s", pmix);
    else if (ompi) snprintf(out, cap, "ompi-%.40s-%d", ompi, (int)getppid());
    else if (slurm) snprintf(out, cap, "slurm-%.40s.%.20s", slurm, get("SLURM_STEP_ID") ? get("SLURM_STEP_ID") : "0");
    else snprintf(out, cap, "%s-%d", s->name, (int)getppid());
}

static bool on_one_host(const hki_launch *l, const source *s)
{
    uint32_t n;
    if (get("HOCKET_JOB")) return true;
    if (s->here && number(get(s->here), 65536, &n)) return n == l->ranks;
    if (number(get("SLURM_NNODES"), 65536, &n)) return n == 1;
    return false;
}

/* "node[03-07,9],other" -> "node03" */
static void first_host(const char *list, char *out, size_t cap)
{
    size_t n = 0;
    bool inside = false;
    for (; *list && *list != ',' && *list != ']' && !(inside && *list == '-') && n + 1 < cap; list++) {
        if (*list == '[') inside = true;
        else out[n++] = *list;
    }
    out[n] = 0;
}

static bool find_place(hki_launch *l, const source *s, char text[512])
{
    hki_place *p = &l->place;
    char name[160];
    job_name(s, name, sizeof name);
    p->job = hki_hash_bytes(11, name, strlen(name));
    const char *addr = hki_env("HOCKET_ADDR"), *master = get("MASTER_ADDR"), *nodes = get("SLURM_JOB_NODELIST"), *agent = get("TORCHELASTIC_USE_AGENT_STORE");
    if (addr) {
        p->job = get("HOCKET_JOB") ? p->job : hki_hash_bytes(12, addr, strlen(addr));
        return at_address(p, addr, hki_env("HOCKET_PORT"), 0, "HOCKET_ADDR and HOCKET_PORT", text);
    }
    if (master && !get("HOCKET_JOB")) { /* hocket run sets both: MASTER_ADDR is for others */
        const char *run = get("TORCHELASTIC_RUN_ID");
        p->job = run ? hki_hash_bytes(13, run, strlen(run)) : hki_hash_bytes(13, master, strlen(master));
        return at_address(p, master, get("MASTER_PORT"), agent && !strcmp(agent, "True"), "MASTER_ADDR and MASTER_PORT", text);
    }
    if (on_one_host(l, s)) {
        snprintf(p->local, sizeof p->local, "hocket-%016llx-%u", (unsigned long long)p->job, (unsigned)getuid());
        snprintf(p->shown, sizeof p->shown, "this host (%.120s)", name);
        return true;
    }
    uint32_t id;
    if (number(get("PMI_FD"), 1 << 20, &id)) {
        l->pmi_fd = (int)id;
        p->addresses = hki_own_addresses(p->address, HKI_PLACE_ADDRESSES);
        hki_random(&p->job, sizeof p->job);
        snprintf(p->shown, sizeof p->shown, "a port of this host");
        return true;
    }
    if (nodes && number(get("SLURM_JOB_ID"), UINT32_MAX - 1, &id)) {
        char host[128], port[16];
        first_host(nodes, host, sizeof host);
        snprintf(port, sizeof port, "%u", 20000 + id % 20000);
        return at_address(p, host, port, 0, "first host of SLURM_JOB_NODELIST", text);
    }
    snprintf(text, 512, "rank %u of %u (%s), but no place to meet. Looked for HOCKET_ADDR and HOCKET_PORT, MASTER_ADDR and MASTER_PORT, a job on one "
             "host, PMI_FD, SLURM_JOB_NODELIST. Add HOCKET_ADDR=<host of rank 0> HOCKET_PORT=<free port> to the environment of all ranks", l->rank, l->ranks, l->from);
    return false;
}

bool hki_launch_read(hki_launch *l, char text[512])
{
    const source *s;
    memset(l, 0, sizeof *l);
    l->pmi_fd = -1;
    return read_rank(l, &s, text) && find_place(l, s, text);
}
