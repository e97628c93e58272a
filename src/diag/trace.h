/* SPDX-License-Identifier: Apache-2.0
 *
 * Writes a trace file (diag/trace_form.h): events are kept in a buffer of fixed size and written when it is full and at the end. An event
 * that cannot be written is counted, the first failure is kept. One user at a time: it has no lock. */
#ifndef HKI_TRACE_H
#define HKI_TRACE_H

#include "diag/trace_form.h"

#define HKI_TRACE_ROOM 4096 /* events: 384 KiB */

typedef struct hki_trace {
    int fd, error; /* error: -errno of the first failure, 0: none */
    uint64_t written, dropped;
    size_t used;
    uint64_t from_ns;
    char path[512];
    uint8_t room[HKI_TRACE_ROOM][HKI_TRACE_EVENT];
} hki_trace;

/* folder/UID-rankR.hktrace. NULL: no memory. A file that cannot be made is the trace's first failure. */
hki_trace *hki_trace_open(const char *folder, const hk_tool_trace *head);
void hki_trace_put(hki_trace *, const hk_tool_event *);
/* Writes the rest; what was written and dropped, and the failure, are final after. */
void hki_trace_end(hki_trace *, uint64_t to_ns);
void hki_trace_free(hki_trace *);

#endif
