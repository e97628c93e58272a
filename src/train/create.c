/* SPDX-License-Identifier: Apache-2.0
 * Buckets from the outside of a step: made, resized, looked at, freed; and the sentences of failures. */
#include "train/train.h"

#include <stdarg.h>
#include <stdio.h>

static _Thread_local char sentence[HKI_SENTENCE];

HK_API const char *hk_buckets_last_error(void) { return sentence; }

hk_status hki_train_error(const hk_buckets *b, hk_status status, const char *format, ...)
{
    va_list args;
    const int n = b ? snprintf(sentence, sizeof sentence, "rank %u: ", b->rank) : 0;
    va_start(args, format);
    vsnprintf(sentence + n, sizeof sentence - (size_t)n, format, args);
    va_end(args);
    return status;
}

hk_status hki_train_failed(const hk_buckets *b, hk_status status, const char *during)
{
    snprintf(sentence, sizeof sentence, "%s: %s", during, hk_last_error(b->comm));
    return status;
}

/* What config and its absence mean. The fields that the caller's version has are taken. */
static hk_status settle(hk_buckets_config *c, const hk_buckets_config *given, const hk_buckets *b)
{
    *c = (hk_buckets_config)HK_BUCKETS_INIT;
    if (given && (given->size < sizeof given->size || given->size > 4096))
        return hki_train_error(b, HK_INVALID, "hk_buckets_create: config.size is %zu: start from HK_BUCKETS_INIT", given->size);
    if (given) memcpy(c, given, hki_min(given->size, sizeof *c));
    if (c->op != HK_AVG && c->op != HK_SUM)
        return hki_train_error(b, HK_INVALID, "hk_buckets_create: config.op is neither HK_AVG nor HK_SUM");
    return HK_OK;
}

static hk_status check_params(const hk_buckets *b, const hk_param *params, size_t n)
{
    size_t total = 0;
    if (!params || !n)
        return hki_train_error(b, HK_INVALID, "hk_buckets_create: %s", params ? "n is 0: register at least one parameter" : "params is NULL");
    for (size_t i = 0; i < n; i++) {
        const size_t size = hk_dtype_size(params[i].dtype);
        const char *name = params[i].name ? params[i].name : "";
        if (!size)
            return hki_train_error(b, HK_INVALID, "hk_buckets_create: parameter %zu '%.80s' has no known type (%d)", i, name, (int)params[i].dtype);
        if (params[i].count > (SIZE_MAX / 4 - total) / size - HKI_LINE)
            return hki_train_error(b, HK_INVALID, "hk_buckets_create: parameter %zu '%.80s' of %zu elements exceeds the address space", i, name,
                                   params[i].count);
        total += params[i].count * size + HKI_LINE;
    }
    return HK_OK;
}

/* Names are kept in one piece of memory. */
static bool copy_params(hk_buckets *b, const hk_param *params, size_t n)
{
    size_t bytes = 1;
    for (size_t i = 0; i < n; i++) bytes += params[i].name ? strlen(params[i].name) + 1 : 0;
    b->params = hki_alloc(n * sizeof *b->params);
    char *at = b->names = hki_alloc(bytes);
    if (!b->params || !at) return false;
    b->n = n;
    for (size_t i = 0; i < n; i++) {
        const hk_param *p = &params[i];
        b->params[i] = (hki_param){.count = p->count, .bytes = p->count * hk_dtype_size(p->dtype), .dtype = p->dtype};
        if (!p->name) continue;
        const size_t length = strlen(p->name) + 1;
        b->params[i].name = memcpy(at, p->name, length);
        at += length;
    }
    return true;
}

static hk_status fill_in(hk_buckets *b, const hk_param *params, size_t n, const hk_buckets_config *config)
{
    hk_buckets_config c;
    hk_status status = settle(&c, config, b);
    if (!status) status = check_params(b, params, n);
    if (status) return status;
    b->op = c.op;
    b->allow_unused = c.allow_unused != 0;
    b->check_hash = c.check_hash != 0;
    b->words = (n + 63) / 64;
    b->hashes = hki_alloc(n * sizeof *b->hashes);
    b->by_rank = hki_alloc(b->ranks * sizeof *b->by_rank);
    b->missing = hki_alloc(b->ranks * b->words * sizeof *b->missing);
    if (!b->hashes || !b->by_rank || !b->missing || !copy_params(b, params, n) || !hki_layout_make(&b->layout, b, c.bucket_bytes, c.first_bytes))
        return hki_train_error(b, HK_NO_MEMORY, "hk_buckets_create: no memory for the gradients of %zu parameters", n);
    return HK_OK;
}

static void discard(hk_buckets *b)
{
    if (!b) return;
    hki_layout_free(&b->layout, b->comm);
    hki_free(b->params);
    hki_free(b->names);
    hki_free(b->hashes);
    hki_free(b->by_rank);
    hki_free(b->missing);
    pthread_mutex_destroy(&b->lock);
    hki_free(b);
}

/* What is wrong on this rank is known to it alone, so even then it meets the others, who would wait for it. */
HK_API hk_status hk_buckets_create(hk_comm *comm, const hk_param *params, size_t n, const hk_buckets_config *config, hk_buckets **buckets)
{
    hk_status status = HK_OK;
    if (buckets) *buckets = NULL;
    if (!comm) return hki_train_error(NULL, HK_INVALID, "hk_buckets_create: comm is NULL: create a communicator first");
    hk_buckets *b = hki_alloc(sizeof *b);
    if (b) {
        pthread_mutex_init(&b->lock, NULL);
        b->comm = comm;
        b->rank = (uint32_t)hk_comm_rank(comm);
        b->ranks = (uint32_t)hk_comm_ranks(comm);
        status = buckets ? fill_in(b, params, n, config) : hki_train_error(b, HK_INVALID, "hk_buckets_create: buckets is NULL");
    } else {
        status = hki_train_error(NULL, HK_NO_MEMORY, "hk_buckets_create: out of memory");
    }
    status = hki_agree_same(comm, b, b ? &b->layout : NULL, status);
    if (status) return discard(b), status;
    *buckets = b;
    return HK_OK;
}

HK_API hk_status hk_buckets_set_bytes(hk_buckets *b, size_t bucket_bytes, size_t first_bytes)
{
    hki_layout fresh;
    if (!b) return hki_train_error(NULL, HK_INVALID, "hk_buckets_set_bytes: b is NULL");
    pthread_mutex_lock(&b->lock);
    const bool begun = b->begun;
    pthread_mutex_unlock(&b->lock);
    if (begun) return hki_train_error(b, HK_INVALID, "hk_buckets_set_bytes: training has begun: sizes are set before the first ready");
    hk_status status = HK_OK;
    if (!hki_layout_make(&fresh, b, bucket_bytes, first_bytes))
        status = hki_train_error(b, HK_NO_MEMORY, "hk_buckets_set_bytes: no memory for the gradients beside the old ones");
    status = hki_agree_same(b->comm, b, &fresh, status);
    if (status) return hki_layout_free(&fresh, b->comm), status;
    pthread_mutex_lock(&b->lock);
    const hki_layout old = b->layout;
    b->layout = fresh;
    fresh = old;
    pthread_mutex_unlock(&b->lock);
    hki_layout_free(&fresh, b->comm);
    return HK_OK;
}

HK_API hk_status hk_buckets_free(hk_buckets *b)
{
    if (!b) return HK_OK;
    hk_status status = hki_buckets_wait(b);
    if (status) status = hki_train_failed(b, status, "hk_buckets_free");
    if (status && !hk_breaks(status)) return status; /* in a callback: what is under way needs its memory */
    discard(b);
    return status;
}

HK_API void *hk_buckets_gradient(hk_buckets *b, size_t i)
{
    if (!b || i >= b->n) {
        hki_train_error(b, HK_INVALID, "hk_buckets_gradient: %s", b ? "no such parameter" : "b is NULL");
        return NULL;
    }
    const hki_place *p = &b->layout.places[i];
    return b->layout.buckets[p->bucket].memory + p->offset;
}

HK_API hk_status hk_buckets_zero(hk_buckets *b)
{
    if (!b) return hki_train_error(NULL, HK_INVALID, "hk_buckets_zero: b is NULL");
    pthread_mutex_lock(&b->lock);
    const bool between = !b->marked && !b->finishing;
    for (size_t k = 0; between && k < b->layout.n; k++) {
        const hki_bucket *u = &b->layout.buckets[k];
        memset(u->memory, 0, u->elements * hk_dtype_size(u->dtype));
    }
    pthread_mutex_unlock(&b->lock);
    return between ? HK_OK : hki_train_error(b, HK_INVALID, "hk_buckets_zero: in the middle of a step: call it after hk_buckets_finish");
}

HK_API hk_status hk_buckets_info(hk_buckets *b, hk_buckets_info_t *info)
{
    if (!b || !info || info->size < sizeof(size_t))
        return hki_train_error(b, HK_INVALID, "hk_buckets_info: %s", !b ? "b is NULL" : "set info.size to sizeof(hk_buckets_info_t) first");
    pthread_mutex_lock(&b->lock);
    hk_buckets_info_t all = {hki_min(sizeof all, info->size), b->n, b->layout.n, 0, b->steps, b->launches};
    for (size_t k = 0; k < b->layout.n; k++) all.bytes += b->layout.buckets[k].elements * hk_dtype_size(b->layout.buckets[k].dtype);
    pthread_mutex_unlock(&b->lock);
    memcpy(info, &all, all.size);
    return HK_OK;
}

HK_API hk_status hk_buckets_bucket(hk_buckets *b, size_t k, hk_bucket_info_t *info)
{
    if (!b || !info || info->size < sizeof(size_t))
        return hki_train_error(b, HK_INVALID, "hk_buckets_bucket: %s", !b ? "b is NULL" : "set info.size to sizeof(hk_bucket_info_t) first");
    if (k >= b->layout.n) return hki_train_error(b, HK_INVALID, "hk_buckets_bucket: no bucket %zu: there are %zu", k, b->layout.n);
    const hki_bucket *u = &b->layout.buckets[k];
    const hk_bucket_info_t all = {hki_min(sizeof all, info->size), u->dtype, u->bytes, u->n, u->list, u->shared};
    memcpy(info, &all, all.size);
    return HK_OK;
}
