/* SPDX-License-Identifier: Apache-2.0 */
#include "diag/trace.h"

#include "os/os.h"

#include <stdio.h>

static void failed(hki_trace *t, int error)
{
    if (!t->error) t->error = error;
    hki_close(t->fd); /* half an event may be in it: nothing that follows could be read */
    t->fd = -1;
}

hki_trace *hki_trace_open(const char *folder, const hk_tool_trace *head)
{
    uint8_t packed[HKI_TRACE_HEAD];
    hki_trace *t = hki_alloc(sizeof *t);
    if (!t) return NULL;
    t->from_ns = head->from_ns;
    snprintf(t->path, sizeof t->path, "%s/%016llx-rank%u.hktrace", folder, (unsigned long long)head->uid, head->rank);
    t->fd = hki_file_create(t->path);
    hki_trace_pack_head(head, packed);
    const int error = t->fd < 0 ? t->fd : hki_file_write(t->fd, packed, sizeof packed);
    if (error) failed(t, error);
    return t;
}

static void flush(hki_trace *t)
{
    for (size_t i = 0; i < t->used; i++) hki_trace_seal(t->room[i]);
    const int error = t->fd < 0 ? 0 : hki_file_write(t->fd, t->room, t->used * HKI_TRACE_EVENT);
    if (error) failed(t, error);
    if (t->fd < 0) t->dropped += t->used;
    else t->written += t->used;
    t->used = 0;
}

void hki_trace_put(hki_trace *t, const hk_tool_event *e)
{
    if (t->used == HKI_TRACE_ROOM) flush(t);
    hki_trace_pack_event(e, t->room[t->used++]);
}

void hki_trace_end(hki_trace *t, uint64_t to_ns)
{
    uint8_t end[HKI_TRACE_EVENT];
    flush(t);
    if (t->fd < 0) return;
    hki_trace_pack_end(t->from_ns, to_ns, t->written, t->dropped, end);
    const int error = hki_file_write(t->fd, end, sizeof end);
    if (error) failed(t, error);
}

void hki_trace_free(hki_trace *t)
{
    if (!t) return;
    hki_close(t->fd);
    hki_free(t);
}
