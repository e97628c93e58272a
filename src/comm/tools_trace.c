/* SPDX-License-Identifier: Apache-2.0
 * hocket/plan.h: trace files. */
#include "diag/trace_form.h"
#include "plan/call.h"

HK_API int hk_tool_trace_read(const void *bytes, size_t len, int partial, hk_tool_trace *trace, char error[HK_TOOL_TEXT])
{
    return hki_trace_read(bytes, len, HKI_OPS, partial != 0, trace, error);
}

HK_API int hk_tool_trace_event(const void *bytes, size_t len, size_t i, hk_tool_event *event)
{
    return hki_trace_event(bytes, len, HKI_OPS, i, event);
}
