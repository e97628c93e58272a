/* SPDX-License-Identifier: Apache-2.0 */
#include "diag/trace_form.h"

#include "base/wire.h"

#include <stdio.h>

enum { END = 0x7f };

static const char magic[8] = {'h', 'k', 't', 'r', 'a', 'c', 'e', '1'};

static uint32_t checksum(const uint8_t *bytes, size_t n) { return (uint32_t)hki_hash_bytes(HKI_TRACE_EVENT, bytes, n); }

/* magic 8 | head u32 | event u32 | uid u64 | owner u64 | clock u64 | from u64 | rank u32 | ranks u32 | pid u32 | host 48 | 0 | sum u32 */
void hki_trace_pack_head(const hk_tool_trace *t, uint8_t o[HKI_TRACE_HEAD])
{
    memset(o, 0, HKI_TRACE_HEAD);
    memcpy(o, magic, sizeof magic);
    hki_put32(o + 8, HKI_TRACE_HEAD);
    hki_put32(o + 12, HKI_TRACE_EVENT);
    hki_put64(o + 16, t->uid);
    hki_put64(o + 24, t->owner);
    hki_put64(o + 32, t->clock);
    hki_put64(o + 40, t->from_ns);
    hki_put32(o + 48, t->rank);
    hki_put32(o + 52, t->ranks);
    hki_put32(o + 56, (uint32_t)t->pid);
    hki_put_text(o + 60, t->host, sizeof t->host);
    hki_put32(o + 124, checksum(o, 124));
}

/* kind u8 | op u8 | dtype u8 | 0 | status u32 | thread u32 | root u32 | begin u64 | started u64 | end u64 | seq u64 | bytes u64 | name | sum u32 */
void hki_trace_pack_event(const hk_tool_event *e, uint8_t o[HKI_TRACE_EVENT])
{
    o[0] = (uint8_t)e->kind;
    o[1] = (uint8_t)e->op;
    o[2] = (uint8_t)e->dtype;
    o[3] = 0;
    hki_put32(o + 4, (uint32_t)e->status);
    hki_put32(o + 8, e->thread);
    hki_put32(o + 12, (uint32_t)e->root);
    hki_put64(o + 16, e->begin_ns);
    hki_put64(o + 24, e->started_ns);
    hki_put64(o + 32, e->end_ns);
    hki_put64(o + 40, e->seq);
    hki_put64(o + 48, e->bytes);
    hki_put_text(o + 56, e->name, HKI_TRACE_NAME);
}

void hki_trace_pack_end(uint64_t from_ns, uint64_t to_ns, uint64_t events, uint64_t dropped, uint8_t o[HKI_TRACE_EVENT])
{
    const hk_tool_event e = {.kind = END, .begin_ns = from_ns, .started_ns = from_ns, .end_ns = to_ns, .seq = events, .bytes = dropped};
    hki_trace_pack_event(&e, o);
    hki_trace_seal(o);
}

void hki_trace_seal(uint8_t o[HKI_TRACE_EVENT]) { hki_put32(o + 92, checksum(o, 92)); }

static const char *head_of(const uint8_t *i, size_t len, hk_tool_trace *t)
{
    memset(t, 0, sizeof *t);
    if (len < sizeof magic || memcmp(i, magic, sizeof magic)) return "this is no trace of hocket, or of another version";
    if (len < HKI_TRACE_HEAD) return "its head is cut off";
    if (hki_get32(i + 124) != checksum(i, 124)) return "its head is damaged";
    if (hki_get32(i + 8) != HKI_TRACE_HEAD || hki_get32(i + 12) != HKI_TRACE_EVENT) return "it was written by another version";
    t->uid = hki_get64(i + 16);
    t->owner = hki_get64(i + 24);
    t->clock = hki_get64(i + 32);
    t->from_ns = hki_get64(i + 40);
    t->rank = hki_get32(i + 48);
    t->ranks = hki_get32(i + 52);
    t->pid = (int32_t)hki_get32(i + 56);
    hki_get_text(i + 60, t->host, sizeof t->host);
    if (!t->ranks || t->ranks > HKI_TRACE_RANKS || t->rank >= t->ranks || t->from_ns >> HKI_TRACE_BITS) return "its head is damaged";
    return NULL;
}

/* Everything but the end. */
static bool parse(const uint8_t i[HKI_TRACE_EVENT], uint32_t ops, hk_tool_event *e)
{
    if (hki_get32(i + 92) != checksum(i, 92)) return false;
    memset(e, 0, sizeof *e);
    e->kind = i[0];
    e->op = i[1];
    e->dtype = i[2];
    e->status = (int32_t)hki_get32(i + 4);
    e->thread = hki_get32(i + 8);
    e->root = (int32_t)hki_get32(i + 12);
    e->begin_ns = hki_get64(i + 16);
    e->started_ns = hki_get64(i + 24);
    e->end_ns = hki_get64(i + 32);
    e->seq = hki_get64(i + 40);
    e->bytes = hki_get64(i + 48);
    memcpy(e->name, i + 56, HKI_TRACE_NAME - 1); /* the rest is zero */
    if (e->begin_ns > e->started_ns || e->started_ns > e->end_ns || (e->end_ns | e->bytes) >> HKI_TRACE_BITS) return false;
    return e->kind == END || (e->kind >= HK_EVENT_OPERATION && e->kind <= HK_EVENT_SENT && e->op < ops && e->dtype < HK_DTYPES);
}

static bool refuse(char error[HK_TOOL_TEXT], size_t event, const char *what)
{
    return snprintf(error, HK_TOOL_TEXT, "event %zu %s", event, what), false;
}

bool hki_trace_read(const uint8_t *bytes, size_t len, uint32_t ops, bool partial, hk_tool_trace *t, char error[HK_TOOL_TEXT])
{
    const char *bad = head_of(bytes, len, t);
    if (bad) return snprintf(error, HK_TOOL_TEXT, "%s", bad), false;
    const size_t slots = (len - HKI_TRACE_HEAD) / HKI_TRACE_EVENT, over = (len - HKI_TRACE_HEAD) % HKI_TRACE_EVENT;
    for (size_t i = 0; i < slots; i++) {
        hk_tool_event e;
        if (!parse(bytes + HKI_TRACE_HEAD + i * HKI_TRACE_EVENT, ops, &e)) return partial || refuse(error, i, "is damaged");
        if (e.kind != END) {
            t->events++;
            continue;
        }
        const bool right = e.seq == i && e.begin_ns == t->from_ns && i + 1 == slots && !over;
        if (!right) return partial || refuse(error, i, "is an end where none can be");
        t->to_ns = e.end_ns;
        t->dropped = e.bytes;
        t->whole = 1;
        return true;
    }
    if (partial) return true;
    return snprintf(error, HK_TOOL_TEXT,
                    "its end is missing after %zu events: the rank was killed, still runs, or did not call hk_comm_destroy", slots),
           false;
}

bool hki_trace_event(const uint8_t *bytes, size_t len, uint32_t ops, size_t i, hk_tool_event *e)
{
    if (len < HKI_TRACE_HEAD || i >= (len - HKI_TRACE_HEAD) / HKI_TRACE_EVENT) return false;
    return parse(bytes + HKI_TRACE_HEAD + i * HKI_TRACE_EVENT, ops, e) && e->kind != END;
}
