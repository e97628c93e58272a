/* SPDX-License-Identifier: Apache-2.0
 * Trace files: any bytes are refused with a reason, or every event that was counted can be had and lies in its ranges. Each input is tried
 * as it is, and with all checksums put right, which chance would not find. */
#include "base/wire.h"
#include "diag/trace_form.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { OPS = 15 };

static void must(bool holds)
{
    if (!holds) abort();
}

static void events(const uint8_t *file, size_t size, const hk_tool_trace *t)
{
    hk_tool_event e;
    must(t->events <= size / HKI_TRACE_EVENT && t->ranks && t->rank < t->ranks);
    must(memchr(t->host, 0, sizeof t->host));
    for (size_t i = 0; i < t->events; i++) {
        uint8_t again[HKI_TRACE_EVENT];
        must(hki_trace_event(file, size, OPS, i, &e));
        must(e.begin_ns <= e.started_ns && e.started_ns <= e.end_ns && e.op < OPS && e.dtype < HK_DTYPES);
        must(e.kind >= HK_EVENT_OPERATION && e.kind <= HK_EVENT_SENT && memchr(e.name, 0, sizeof e.name));
        hki_trace_pack_event(&e, again);
        hki_trace_seal(again);
    }
    must(!hki_trace_event(file, size, OPS, SIZE_MAX / HKI_TRACE_EVENT, &e));
}

static void try(const uint8_t *file, size_t size)
{
    for (int partial = 0; partial < 2; partial++) {
        hk_tool_trace t;
        char error[HK_TOOL_TEXT] = "";
        if (hki_trace_read(file, size, OPS, partial != 0, &t, error)) events(file, size, &t);
        else must(*error && memchr(error, 0, sizeof error));
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    try(data, size);
    if (size < HKI_TRACE_HEAD) return 0;
    uint8_t *copy = malloc(size);
    must(copy != NULL);
    memcpy(copy, data, size);
    hki_put32(copy + 124, (uint32_t)hki_hash_bytes(HKI_TRACE_EVENT, copy, 124));
    for (size_t at = HKI_TRACE_HEAD; at + HKI_TRACE_EVENT <= size; at += HKI_TRACE_EVENT) hki_trace_seal(copy + at);
    try(copy, size);
    free(copy);
    return 0;
}
