/* SPDX-License-Identifier: Apache-2.0
 *
 * The little of PMI-1 that is needed to meet when a launcher (MPICH's and its relatives) gives nothing but a descriptor, PMI_FD: the rank
 * that listens puts its addresses under a key, all pass a barrier, the others get it. Lines of "cmd=NAME key=value ...". The session is
 * finalised at once, so that the launcher does not take the end of the process for a failure. */
#include "boot/boot.h"

#include "os/os.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LINE 1200

/* Sends a line and reads the answer, which must begin with cmd=`expect`. */
static bool ask(int fd, const char *line, const char *expect, char answer[LINE], uint64_t deadline_us)
{
    size_t n = 0;
    if (hki_pipe_write(fd, line, strlen(line), deadline_us)) return false;
    while (n < LINE - 1) {
        if (hki_pipe_read(fd, answer + n, 1, deadline_us)) return false;
        if (answer[n] == '\n') break;
        n++;
    }
    answer[n] = 0;
    char head[64];
    const int k = snprintf(head, sizeof head, "cmd=%s", expect);
    return !strncmp(answer, head, (size_t)k) && !strstr(answer, " rc=-1");
}

/* The value of ` key=` in an answer, up to the next blank. */
static bool value_of(const char *answer, const char *key, char *out, size_t cap)
{
    char mark[64];
    snprintf(mark, sizeof mark, " %s=", key);
    const char *at = strstr(answer, mark);
    if (!at) return false;
    at += strlen(mark);
    const size_t n = strcspn(at, " ");
    if (n == 0 || n >= cap) return false;
    memcpy(out, at, n);
    out[n] = 0;
    return true;
}

/* "job/port/address/address..." both ways. */
static void write_place(const hki_place *p, char *out, size_t cap)
{
    int n = snprintf(out, cap, "%016llx/%u", (unsigned long long)p->job, p->port);
    for (int i = 0; i < p->addresses; i++) n += snprintf(out + n, cap - (size_t)n, "/%s", p->address[i]);
}

static bool read_place(char *text, hki_place *p)
{
    char *save = NULL, *job = strtok_r(text, "/", &save), *port = strtok_r(NULL, "/", &save);
    if (!job || !port) return false;
    p->job = strtoull(job, NULL, 16);
    p->port = (uint16_t)strtoul(port, NULL, 10);
    p->addresses = 0;
    for (char *a; p->addresses < HKI_PLACE_ADDRESSES && (a = strtok_r(NULL, "/", &save));)
        snprintf(p->address[p->addresses++], sizeof p->address[0], "%.63s", a);
    return p->port && p->addresses;
}

bool hki_pmi_swap_place(int fd, hki_place *p, bool mine, uint64_t deadline_us, char text[HKI_MEETING_TEXT])
{
    char answer[LINE], kvs[300], value[600], line[LINE];
    const char *step = "init";
    bool ok = ask(fd, "cmd=init pmi_version=1 pmi_subversion=1\n", "response_to_init", answer, deadline_us);
    if (ok) step = "get_my_kvsname", ok = ask(fd, "cmd=get_my_kvsname\n", "my_kvsname", answer, deadline_us) && value_of(answer, "kvsname", kvs, sizeof kvs);
    if (ok && mine) {
        write_place(p, value, sizeof value);
        snprintf(line, sizeof line, "cmd=put kvsname=%s key=hocket-place value=%s\n", kvs, value);
        step = "put", ok = ask(fd, line, "put_result", answer, deadline_us);
    }
    if (ok) step = "barrier_in", ok = ask(fd, "cmd=barrier_in\n", "barrier_out", answer, deadline_us);
    if (ok && !mine) {
        snprintf(line, sizeof line, "cmd=get kvsname=%s key=hocket-place\n", kvs);
        step = "get", ok = ask(fd, line, "get_result", answer, deadline_us) && value_of(answer, "value", value, sizeof value) && read_place(value, p);
    }
    if (ok) step = "finalize", ok = ask(fd, "cmd=finalize\n", "finalize_ack", answer, deadline_us);
    if (!ok) snprintf(text, HKI_MEETING_TEXT, "the launcher's PMI-1 service at PMI_FD=%d did not answer '%s' as it should", fd, step);
    if (ok) snprintf(p->shown, sizeof p->shown, "%.60s port %u (by PMI)", p->address[0], p->port);
    return ok;
}
