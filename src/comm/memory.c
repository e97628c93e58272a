/* SPDX-License-Identifier: Apache-2.0
 * hk_mem_alloc, hk_stats and hk_comm_dump: what a communicator gives and tells. */
#include "comm/comm.h"

#include "os/os.h"

#include <string.h>
#include <unistd.h>

HK_API hk_status hk_mem_alloc(hk_comm *comm, size_t bytes, void **ptr)
{
    hk_status status = hki_comm_usable(comm);
    if (status) return status;
    if (!ptr) return hki_error(comm, HK_INVALID, "hk_mem_alloc: ptr is NULL");
    hki_lock_take(&comm->engine->lock);
    *ptr = hki_segment_alloc(comm->engine->segment, bytes);
    comm->engine->shares_memory |= *ptr != NULL;
    hki_lock_give(&comm->engine->lock);
    return *ptr ? HK_OK : hki_error(comm, HK_NO_MEMORY, "hk_mem_alloc: no %zu bytes left in the segment of %zu MiB", bytes, comm->engine->segment->bytes >> 20);
}

HK_API hk_status hk_mem_free(hk_comm *comm, void *ptr)
{
    hk_status status = hki_comm_usable(comm);
    if (status || !ptr) return status;
    hki_lock_take(&comm->engine->lock);
    if (!hki_segment_free(comm->engine->segment, ptr)) status = hki_error(comm, HK_INVALID, "hk_mem_free: not a pointer from hk_mem_alloc");
    hki_lock_give(&comm->engine->lock);
    return status;
}

/* Does an operation of any communicator of this process? The lock is held. */
static hk_status not_while_used(hk_comm *comm, const void *ptr, size_t bytes, const char *call)
{
    for (const hk_comm *c = comm->engine->comms; c; c = c->next)
        if (hki_tasks_use(c, ptr, bytes)) return hki_error(comm, HK_INVALID, "%s: an operation on that memory is under way: wait for it first", call);
    return HK_OK;
}

HK_API hk_status hk_mem_register(hk_comm *comm, void *ptr, size_t bytes)
{
    hk_status status = hki_comm_usable(comm);
    if (status) return status;
    if (!ptr || bytes > SIZE_MAX / 2) return hki_error(comm, HK_INVALID, "hk_mem_register: %s", ptr ? "bytes exceed the address space" : "ptr is NULL");
    hki_engine *e = comm->engine;
    hki_lock_take(&e->lock);
    status = not_while_used(comm, ptr, bytes, "hk_mem_register");
    const char *why = status ? NULL : hki_segment_adopt(e->segment, ptr, bytes);
    e->shares_memory |= !status && !why;
    hki_lock_give(&e->lock);
    return why ? hki_error(comm, HK_UNSUPPORTED, "hk_mem_register: %zu bytes at %p: %s", bytes, ptr, why) : status;
}

HK_API hk_status hk_mem_deregister(hk_comm *comm, void *ptr)
{
    hk_status status = hki_comm_usable(comm);
    if (status || !ptr) return status;
    hki_lock_take(&comm->engine->lock);
    const size_t bytes = hki_segment_adopted(comm->engine->segment, ptr);
    status = not_while_used(comm, ptr, bytes, "hk_mem_deregister");
    const bool found = !status && hki_segment_disown(comm->engine->segment, ptr);
    hki_lock_give(&comm->engine->lock);
    return found || status ? status : hki_error(comm, HK_INVALID, "hk_mem_deregister: not a pointer that hk_mem_register was given");
}

static void add(hk_link_stats *to, const hk_link_stats *from)
{
    to->messages_sent += from->messages_sent;
    to->bytes_sent += from->bytes_sent;
    to->messages_received += from->messages_received;
    to->bytes_received += from->bytes_received;
}

void hki_link_totals(const hk_comm *comm, hk_stats_t *s)
{
    for (uint32_t c = 0; c <= HKI_CHANNELS; c++) {
        add(&s->shm, &comm->shm_ports[c]->stats);
        s->bytes_lent += comm->shm_ports[c]->lent;
        if (comm->tcp_ports[c]) add(&s->tcp, &comm->tcp_ports[c]->stats);
    }
}

HK_API hk_status hk_stats(hk_comm *comm, hk_stats_t *out)
{
    hk_status status = hki_comm_usable(comm);
    if (status) return status;
    if (!out || out->size < sizeof(size_t)) return hki_error(comm, HK_INVALID, "hk_stats: set stats.size to sizeof(hk_stats_t) first");
    hki_lock_take(&comm->engine->lock);
    hk_stats_t s = {.size = hki_min(sizeof s, out->size), .operations = comm->operations, .operation_bytes = comm->operation_bytes,
                    .waits = comm->engine->waits, .sleeps = comm->engine->sleeps};
    hki_link_totals(comm, &s);
    hki_seen_stats(comm, &s);
    hki_lock_give(&comm->engine->lock);
    memcpy(out, &s, s.size);
    return HK_OK;
}

/* ---- Dump: only async-signal-safe calls ------------------------------------------------------------------------------------ */

typedef struct buffer { char text[256]; size_t n; } buffer;

static void say(buffer *b, const char *s)
{
    while (*s && b->n + 1 < sizeof b->text) b->text[b->n++] = *s++;
}

static void say_number(buffer *b, uint64_t v)
{
    char digits[24];
    size_t n = sizeof digits;
    digits[--n] = 0;
    do digits[--n] = (char)('0' + v % 10);
    while ((v /= 10) && n);
    say(b, digits + n);
}

static void say_rank(buffer *b, const hki_now *now)
{
    const uint32_t op = atomic_load(&now->op), state = atomic_load(&now->state), waiting = atomic_load(&now->waiting_for);
    if (state == 0) {
        say(b, "outside hocket, last operation #");
        say_number(b, atomic_load(&now->finished));
    } else {
        say(b, hki_op_name((hki_op)op));
        say(b, " #");
        say_number(b, atomic_load(&now->seq));
        say(b, " ");
        say(b, hk_dtype_name((hk_dtype)atomic_load(&now->dtype)));
        say(b, "[");
        say_number(b, atomic_load(&now->count));
        say(b, "] step ");
        say_number(b, atomic_load(&now->step));
        say(b, " of ");
        say_number(b, atomic_load(&now->steps));
        if (waiting != UINT32_MAX) {
            say(b, ", waits for rank ");
            say_number(b, waiting);
        }
    }
    say(b, "\n");
}

HK_API hk_status hk_comm_dump(const hk_comm *comm, int fd)
{
    if (!comm || comm->magic != HKI_COMM_MAGIC) return HK_INVALID;
    for (uint32_t r = 0; r < comm->shape.ranks; r++) {
        buffer b = {.n = 0};
        say(&b, "rank ");
        say_number(&b, r);
        say(&b, ": ");
        uint8_t *const area = comm->area.there[r];
        if (area) say_rank(&b, &((const hki_area_head *)area)->now);
        else say(&b, "on another host\n");
        if (write(fd, b.text, b.n) < 0) return HK_SYSTEM;
    }
    return HK_OK;
}
