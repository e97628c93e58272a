/* SPDX-License-Identifier: Apache-2.0
 *
 * The form of a trace file, little-endian:
 *
 *     head    128 bytes: magic "hktrace1", who wrote it; checksum
 *     events  96 bytes each: checksum
 *     end     an event of its own kind: when, how many events came before, how many were lost; nothing follows
 *
 * A file without its end is of a rank that was killed, or is one still being written. Whoever reads believes nothing: sizes first, then
 * checksums, then every field against its range. */
#ifndef HKI_TRACE_FORM_H
#define HKI_TRACE_FORM_H

#include "base/base.h"

#include <hocket/plan.h>

#define HKI_TRACE_HEAD 128
#define HKI_TRACE_EVENT 96
#define HKI_TRACE_NAME 36          /* bytes of a name in a file */
#define HKI_TRACE_BITS 60          /* of times and sizes: 36 years, an exbibyte; sums of a few do not overflow */
#define HKI_TRACE_RANKS (1u << 20) /* more than this is no communicator */

void hki_trace_pack_head(const hk_tool_trace *, uint8_t out[HKI_TRACE_HEAD]);
/* Without its checksum, which hki_trace_seal adds: it need not be there before the event leaves memory. */
void hki_trace_pack_event(const hk_tool_event *, uint8_t out[HKI_TRACE_EVENT]);
void hki_trace_pack_end(uint64_t from_ns, uint64_t to_ns, uint64_t events, uint64_t dropped, uint8_t out[HKI_TRACE_EVENT]);
void hki_trace_seal(uint8_t event[HKI_TRACE_EVENT]);

/* A whole file; ops: how many operations there are. partial: up to where it is bad or ends. */
bool hki_trace_read(const uint8_t *bytes, size_t len, uint32_t ops, bool partial, hk_tool_trace *, char error[HK_TOOL_TEXT]);
bool hki_trace_event(const uint8_t *bytes, size_t len, uint32_t ops, size_t i, hk_tool_event *);

#endif
