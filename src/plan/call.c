/* SPDX-License-Identifier: Apache-2.0 */
#include "plan/call.h"

#include <string.h>

static const struct { const char *name; bool reduces, rooted, uneven; } ops[HKI_OPS] = {
    [HKI_ALL_REDUCE] = {"all_reduce", true, false, false},
    [HKI_ALL_GATHER] = {"all_gather", false, false, false},
    [HKI_REDUCE_SCATTER] = {"reduce_scatter", true, false, false},
    [HKI_BROADCAST] = {"broadcast", false, true, false},
    [HKI_REDUCE] = {"reduce", true, true, false},
    [HKI_GATHER] = {"gather", false, true, false},
    [HKI_SCATTER] = {"scatter", false, true, false},
    [HKI_ALL_TO_ALL] = {"all_to_all", false, false, false},
    [HKI_ALL_GATHER_V] = {"all_gather_v", false, false, true},
    [HKI_REDUCE_SCATTER_V] = {"reduce_scatter_v", true, false, true},
    [HKI_ALL_TO_ALL_V] = {"all_to_all_v", false, false, true},
    [HKI_BARRIER] = {"barrier", false, false, false},
    [HKI_SEND] = {"send", false, false, false},
    [HKI_RECV] = {"recv", false, false, false},
    [HKI_GROUP] = {"group", false, false, false},
};

const char *hki_op_name(hki_op op) { return (unsigned)op < HKI_OPS ? ops[op].name : "?"; }
bool hki_op_reduces(hki_op op) { return ops[op].reduces; }
bool hki_op_rooted(hki_op op) { return ops[op].rooted; }
bool hki_op_uneven(hki_op op) { return ops[op].uneven; }

bool hki_op_parse(const char *name, hki_op *op)
{
    for (unsigned i = 0; i < HKI_OPS; i++)
        if (!strcmp(name, ops[i].name)) return *op = (hki_op)i, true;
    return false;
}

const char *hki_redop_name(hk_redop op)
{
    static const char *const names[HK_REDOPS] = {"sum", "prod", "min", "max", "avg", "band", "bor", "bxor"};
    return op < HK_REDOPS ? names[op] : "custom";
}

uint32_t hki_in_blocks(const hki_call *c)
{
    switch (c->op) {
    case HKI_ALL_GATHER: case HKI_GATHER: case HKI_ALL_GATHER_V: return 1;
    case HKI_BARRIER: return 0;
    default: return c->ranks;
    }
}

uint32_t hki_out_blocks(const hki_call *c)
{
    switch (c->op) {
    case HKI_REDUCE_SCATTER: case HKI_SCATTER: case HKI_REDUCE_SCATTER_V: return 1;
    case HKI_BARRIER: return 0;
    default: return c->ranks;
    }
}

void hki_part(size_t count, uint32_t P, size_t elem_bytes, uint32_t i, size_t *off, size_t *len)
{
    if (count % P == 0) {
        *len = count / P;
        *off = i * *len;
        return;
    }
    /* Whole 64-byte units are dealt evenly, the first parts one more; what is left over goes to the last part. */
    const size_t unit = HKI_LINE / elem_bytes, units = count / unit, each = units / P, more = units % P;
    *off = (i * each + hki_min(i, more)) * unit;
    *len = i + 1 < P ? (each + (i < more)) * unit : count - *off;
}

/* P blocks of an uneven or an even operation. */
static void layout(const hki_call *c, const size_t *counts, const size_t *displs, size_t *off, size_t *len)
{
    size_t packed = 0;
    for (uint32_t b = 0; b < c->ranks; b++) {
        len[b] = counts ? counts[b] : c->count;
        off[b] = displs ? displs[b] : packed;
        packed += len[b];
    }
}

static bool in_parts(hki_op op) { return op == HKI_ALL_REDUCE || op == HKI_REDUCE || op == HKI_BROADCAST; }

static void side(const hki_call *c, uint32_t blocks, const size_t *counts, const size_t *displs, const size_t *all, size_t *off,
                 size_t *len)
{
    if (in_parts(c->op)) {
        for (uint32_t b = 0; b < blocks; b++) hki_part(c->count, c->ranks, hk_dtype_size(c->dtype), b, &off[b], &len[b]);
    } else if (blocks == 1) { /* this rank's own block, at the start of its buffer */
        off[0] = 0;
        len[0] = all ? all[c->rank] : c->count;
    } else if (blocks) {
        layout(c, counts, displs, off, len);
    }
}

/* all_gather_v gives its counts on the output side, reduce_scatter_v on the input side; the one-block side follows. */
void hki_in_layout(const hki_call *c, size_t *off, size_t *len)
{
    const uint32_t n = hki_in_blocks(c);
    if (c->ranks == 1 && n == 1 && !in_parts(c->op)) {
        off[0] = 0;
        len[0] = c->op == HKI_ALL_GATHER_V ? c->out_counts[0] : c->in_counts ? c->in_counts[0] : c->count;
        if (c->in_displs) off[0] = c->in_displs[0];
        return;
    }
    side(c, n, c->in_counts, c->in_displs, c->op == HKI_ALL_GATHER_V ? c->out_counts : NULL, off, len);
}

void hki_out_layout(const hki_call *c, size_t *off, size_t *len)
{
    const uint32_t n = hki_out_blocks(c);
    if (c->ranks == 1 && n == 1 && !in_parts(c->op)) {
        off[0] = 0;
        len[0] = c->op == HKI_REDUCE_SCATTER_V ? c->in_counts[0] : c->out_counts ? c->out_counts[0] : c->count;
        if (c->out_displs) off[0] = c->out_displs[0];
        return;
    }
    side(c, n, c->out_counts, c->out_displs, c->op == HKI_REDUCE_SCATTER_V ? c->in_counts : NULL, off, len);
}
