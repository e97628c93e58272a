/* SPDX-License-Identifier: Apache-2.0
 * hocket/plan.h: the library's own tables and choices, for tools. */
#include "comm/comm.h"
#include "comm/redop.h"

#include "base/status.h"
#include "kern/kern.h"
#include "net/net.h"
#include "os/os.h"

#include <hocket/plan.h>

_Static_assert(sizeof(hk_tool_now) == 128, "launcher and ranks agree on the record");

HK_API int hk_tool_op_at(size_t i, hk_tool_op *op)
{
    if (i >= HKI_OPS) return 0;
    const hki_op o = (hki_op)i;
    *op = (hk_tool_op){hki_op_name(o), o < HKI_COLLECTIVES, hki_op_reduces(o), hki_op_rooted(o), hki_op_uneven(o)};
    return 1;
}

HK_API int hk_tool_algo_at(size_t i, hk_tool_algo *algo)
{
    static const char *const spans[] = {[HKI_SPAN_ALL] = "all", [HKI_SPAN_HALF] = "half", [HKI_SPAN_ONE] = "one"};
    for (unsigned op = 0; op < HKI_COLLECTIVES; op++) {
        for (const hki_algo *const *p = hki_algos; *p; p++) {
            const hki_algo *a = *p;
            if (!(a->ops & HKI_OP_BIT(op)) || i--) continue;
            *algo = (hk_tool_algo){hki_op_name((hki_op)op), a->name, a->summary, spans[a->span],
                                   !!(a->traits & HKI_RANK_ORDER), a->traits & HKI_FOLD_ONCE ? 1 : a->traits & HKI_FOLD_TWICE ? 2 : 0};
            return 1;
        }
    }
    return 0;
}

HK_API int hk_tool_transport_at(size_t i, hk_tool_transport *transport)
{
    for (size_t k = 0; hki_transports[k]; k++) {
        if (k != i) continue;
        *transport = (hk_tool_transport){hki_transports[k]->name, hki_transports[k]->summary};
        return 1;
    }
    return 0;
}

HK_API int hk_tool_kernel_at(size_t i, hk_tool_kernel *kernel)
{
    const char *forced = hki_kern_init(hki_env("HOCKET_ISA")), *used = forced ? forced : hki_kern_isa();
    for (size_t k = 0; hki_isas[k]; k++) {
        if (k != i) continue;
        const hki_isa *isa = hki_isas[k];
        *kernel = (hk_tool_kernel){isa->name, isa->usable(), used == isa->name};
        return 1;
    }
    return 0;
}

HK_API int hk_tool_knob_at(size_t i, hk_tool_knob *knob)
{
    size_t n;
    const hki_knob *k = hki_knobs(&n);
    if (i >= n) return 0;
    *knob = (hk_tool_knob){k[i].name, k[i].values, k[i].meaning, hki_env(k[i].name)};
    return 1;
}

HK_API int hk_tool_status_at(size_t i, hk_tool_status *status)
{
    size_t n;
    const hki_status_info *s = hki_status_table(&n);
    if (i >= n) return 0;
    *status = (hk_tool_status){s[i].status, s[i].name, s[i].meaning, s[i].cause, s[i].remedy};
    return 1;
}

HK_API const char *hk_tool_algorithm(hk_comm *comm, const char *op, size_t count, hk_dtype dtype, hk_redop redop)
{
    char error[160];
    hki_call c = hki_comm_call(comm);
    c.dtype = dtype, c.redop = redop, c.count = count;
    if (!hki_op_parse(op, &c.op) || c.op >= HKI_COLLECTIVES || hki_op_uneven(c.op)) return NULL;
    if (hki_op_reduces(c.op) && !hki_redop_resolve(redop, c.ranks, &c.red)) return NULL;
    const hki_algo *a = hki_choose(&c, hki_comm_where(comm), comm->settings.forced.by_op[c.op], comm->settings.strict, error);
    return a ? a->name : NULL;
}

HK_API int hk_tool_cpus(void) { return (int)hki_cpus(); }
HK_API int hk_tool_time(const char *text, uint64_t *us) { return hki_parse_time(text, us); }
HK_API int hk_tool_rate(const char *text, uint64_t *bytes_per_s) { return hki_parse_rate(text, bytes_per_s); }
