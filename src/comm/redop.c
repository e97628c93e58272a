/* SPDX-License-Identifier: Apache-2.0
 *
 * Reductions that users make. A handle is {serial, index} of a table of the process, since users make them before any communicator and
 * use them on all: a freed or invented handle is recognised, and no two handles are ever the same value, so nothing that was remembered
 * of one is taken for another. */
#include "comm/redop.h"

#include <string.h>

#define HANDLES 4096 /* live at a time */

static struct {
    pthread_mutex_t lock;
    uint64_t serial;
    struct { hk_redop handle; hki_reduction red; } *entry; /* HANDLES, made with the first one */
} table = {.lock = PTHREAD_MUTEX_INITIALIZER};

static hk_redop handle_of(uint64_t serial, uint32_t index) { return (hk_redop)(serial * HANDLES + index); }

static hk_status make(const hki_reduction *r, hk_redop *op)
{
    hk_status status = HK_NO_MEMORY;
    pthread_mutex_lock(&table.lock);
    if (!table.entry) table.entry = hki_alloc(HANDLES * sizeof *table.entry);
    for (uint32_t i = 0; table.entry && i < HANDLES && status; i++) {
        if (table.entry[i].handle) continue;
        *op = table.entry[i].handle = handle_of(++table.serial, i); /* serials from 1 on: never below HANDLES, so never a constant */
        table.entry[i].red = *r;
        status = HK_OK;
    }
    pthread_mutex_unlock(&table.lock);
    return status ? hki_error(NULL, status, "no memory for a reduction, or %d of them in use: free those no longer needed", HANDLES) : HK_OK;
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

/* The live entry of a handle; the lock is held. */
static hki_reduction *find(hk_redop op)
{
    const uint32_t i = (uint32_t)(op % HANDLES);
    return op >= HANDLES && table.entry && table.entry[i].handle == op ? &table.entry[i].red : NULL;
}

HK_API hk_status hk_op_free(hk_redop op)
{
    pthread_mutex_lock(&table.lock);
    const bool live = find(op) != NULL;
    if (live) table.entry[op % HANDLES].handle = 0;
    pthread_mutex_unlock(&table.lock);
    return live ? HK_OK : hki_error(NULL, HK_INVALID, "hk_op_free: not a handle made by hk_op_create or hk_op_premul_sum, or freed before");
}

bool hki_redop_resolve(hk_redop op, uint32_t ranks, hki_reduction *out)
{
    static const hki_rop kinds[HK_REDOPS] = {HKI_SUM, HKI_PROD, HKI_MIN, HKI_MAX, HKI_SUM, HKI_BAND, HKI_BOR, HKI_BXOR};
    if (op < HK_REDOPS) {
        *out = (hki_reduction){.op = kinds[op], .finish = op == HK_AVG ? HKI_FINISH_AVG : HKI_FINISH_NONE, .divisor = ranks, .commutes = true};
        return true;
    }
    pthread_mutex_lock(&table.lock);
    const hki_reduction *r = find(op);
    if (r) *out = *r;
    pthread_mutex_unlock(&table.lock);
    return r != NULL;
}
