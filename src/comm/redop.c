/* SPDX-License-Identifier: Apache-2.0
 * Reductions that users make: a handle is the address of one of these, told from the constants by being large. */
#include "comm/redop.h"

#define MAGIC 0x686b6f70u

struct custom {
    uint32_t magic;
    hki_reduction red;
};

static hk_status make(const hki_reduction *r, hk_redop *op)
{
    struct custom *c = hki_alloc(sizeof *c);
    if (!c) return hki_error(NULL, HK_NO_MEMORY, "out of memory for a reduction");
    c->magic = MAGIC;
    c->red = *r;
    *op = (hk_redop)c;
    return HK_OK;
}

HK_API hk_status hk_op_create(hk_op_fn fn, void *arg, int commutes, hk_redop *op)
{
    if (!fn || !op) return hki_error(NULL, HK_INVALID, "hk_op_create: %s is NULL", fn ? "op" : "fn");
    return make(&(hki_reduction){.op = HKI_USER, .commutes = commutes != 0, .user = fn, .user_arg = arg}, op);
}

HK_API hk_status hk_op_premul_sum(double scalar, hk_redop *op)
{
    if (!op) return hki_error(NULL, HK_INVALID, "hk_op_premul_sum: op is NULL");
    return make(&(hki_reduction){.op = HKI_SUM, .finish = HKI_FINISH_SCALE, .scale = scalar, .commutes = true}, op);
}

static struct custom *custom_of(hk_redop op)
{
    struct custom *c = (struct custom *)op;
    return op >= 4096 && op % _Alignof(struct custom) == 0 && c->magic == MAGIC ? c : NULL;
}

HK_API hk_status hk_op_free(hk_redop op)
{
    struct custom *c = custom_of(op);
    if (!c) return hki_error(NULL, HK_INVALID, "hk_op_free: not a handle made by hk_op_create or hk_op_premul_sum");
    c->magic = 0;
    hki_free(c);
    return HK_OK;
}

bool hki_redop_resolve(hk_redop op, uint32_t ranks, hki_reduction *out)
{
    static const hki_rop kinds[HK_REDOPS] = {HKI_SUM, HKI_PROD, HKI_MIN, HKI_MAX, HKI_SUM, HKI_BAND, HKI_BOR, HKI_BXOR};
    if (op < HK_REDOPS) {
        *out = (hki_reduction){.op = kinds[op], .finish = op == HK_AVG ? HKI_FINISH_AVG : HKI_FINISH_NONE, .divisor = ranks, .commutes = true};
        return true;
    }
    const struct custom *c = custom_of(op);
    if (c) *out = c->red;
    return c != NULL;
}
