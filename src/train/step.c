/* SPDX-License-Identifier: Apache-2.0
 *
 * One step: parameters are marked, buckets launched in their order, waited for at the end.
 *
 * b->launched only grows by one, under the lock, when the next bucket's parameters are all ready (or, in finish, when nothing more will come).
 * So the sequence of all_reduces on a rank is 0, 1, 2, ... for every order of marks, which is all that ranks need in order to agree. */
#include "train/train.h"

#include <stdio.h>

/* Of a call that is about a parameter: the rank, which, and what is wrong with it. */
static hk_status wrong(const hk_buckets *b, size_t i, const char *what)
{
    const char *name = i < b->n && b->params[i].name ? b->params[i].name : NULL;
    return name ? hki_train_error(b, HK_INVALID, "hk_buckets_ready: parameter %zu '%.80s' %s", i, name, what)
                : hki_train_error(b, HK_INVALID, "hk_buckets_ready: parameter %zu %s", i, what);
}

/* Communication failed: the first sentence is kept for finish, which may be another thread's. */
static void fail(hk_buckets *b, hk_status status)
{
    if (b->failed) return;
    b->failed = status;
    snprintf(b->failure, sizeof b->failure, "%s", hk_last_error(b->comm));
}

/* Launches bucket `launched`. What broke nothing can be tried again. */
static hk_status launch(hk_buckets *b)
{
    hki_bucket *u = &b->layout.buckets[b->launched];
    const hk_status status = hk_all_reduce(u->memory, u->memory, u->elements, u->dtype, b->op, b->comm, NULL, &u->request);
    if (!status) {
        b->launched++;
        b->launches++;
    } else if (hk_breaks(status)) {
        fail(b, status);
    }
    return status;
}

static void launch_complete(hk_buckets *b)
{
    while (!b->failed && b->launched < b->layout.n && !b->layout.buckets[b->launched].pending)
        if (launch(b)) return; /* finish tries again and tells */
}

HK_API hk_status hk_buckets_ready(hk_buckets *b, size_t i)
{
    if (!b) return hki_train_error(NULL, HK_INVALID, "hk_buckets_ready: b is NULL");
    if (i >= b->n) return wrong(b, i, "does not exist");
    hk_status status = HK_OK;
    pthread_mutex_lock(&b->lock);
    hki_param *p = &b->params[i];
    if (b->finishing) {
        status = wrong(b, i, "is marked while hk_buckets_finish runs");
    } else if (p->ready) {
        status = wrong(b, i, "was already marked ready in this step");
    } else {
        p->ready = p->used = b->begun = true;
        b->marked++;
        b->layout.buckets[b->layout.places[i].bucket].pending--;
        if (!b->no_sync) launch_complete(b);
        if (b->failed) status = hki_train_error(NULL, b->failed, "hk_buckets_ready: %s", b->failure);
    }
    pthread_mutex_unlock(&b->lock);
    return status;
}

/* What no micro-batch marked is zero and noted in this rank's row. Called again it finds the same. */
static bool zero_unused(hk_buckets *b)
{
    uint64_t *row = b->missing + b->rank * b->words;
    bool any = false;
    memset(row, 0, b->words * sizeof *row);
    for (size_t i = 0; i < b->n; i++) {
        if (b->params[i].used) continue;
        const hki_place *p = &b->layout.places[i];
        if (p->bucket >= b->launched) memset(b->layout.buckets[p->bucket].memory + p->offset, 0, b->params[i].bytes);
        row[i / 64] |= (uint64_t)1 << i % 64;
        any = true;
    }
    return any;
}

/* The flag becomes 1, of whichever floating-point type it is. */
static void raise_flag(hk_buckets *b)
{
    static const uint16_t f16 = 0x3c00, bf16 = 0x3f80;
    static const float f32 = 1;
    static const double f64 = 1;
    const hk_dtype t = b->layout.buckets[b->layout.n - 1].dtype;
    const void *one = t == HK_F16 ? (const void *)&f16 : t == HK_BF16 ? (const void *)&bf16 : t == HK_F32 ? (const void *)&f32 : &f64;
    memcpy(b->layout.flag, one, hk_dtype_size(t));
}

/* Was the flag raised anywhere? It is lowered for the next step. */
static bool lower_flag(hk_buckets *b)
{
    const size_t size = hk_dtype_size(b->layout.buckets[b->layout.n - 1].dtype);
    uint8_t any = 0;
    for (size_t i = 0; i < size; i++) any |= b->layout.flag[i];
    memset(b->layout.flag, 0, size);
    return any != 0;
}

/* All buckets are reduced: what ranks have to tell each other. Nobody else touches b meanwhile, as finishing is set; the lock is not held. */
static hk_status conclude(hk_buckets *b, bool mine)
{
    hk_status status = HK_OK;
    bool any = b->layout.flag && lower_flag(b);
    if (b->allow_unused) any = false;
    else if (!b->layout.flag) status = hki_agree_any(b, mine, &any);
    if (!status && any) status = hki_agree_missing(b);
    if (!status && b->check_hash) status = hki_agree_gradients(b);
    return status;
}

static void forget_marks(hk_buckets *b)
{
    for (size_t i = 0; i < b->n; i++) b->params[i].ready = false;
    for (size_t k = 0; k < b->layout.n; k++) b->layout.buckets[k].pending = b->layout.buckets[k].n;
    b->marked = 0;
}

hk_status hki_buckets_wait(hk_buckets *b)
{
    hk_status first = HK_OK;
    for (size_t k = 0; k < b->launched; k++) {
        const hk_status status = hk_wait(&b->layout.buckets[k].request);
        if (!first) first = status;
    }
    return first;
}

/* Launches what is left, waits for all, concludes. The lock is held, and given up to wait: finishing keeps others out. */
static hk_status reduce(hk_buckets *b)
{
    const bool unused = zero_unused(b);
    hk_status status = HK_OK;
    if (b->layout.flag && b->launched < b->layout.n) {
        lower_flag(b);
        if (unused && !b->allow_unused) raise_flag(b);
    }
    while (!b->failed && b->launched < b->layout.n) {
        status = launch(b);
        if (status && !hk_breaks(status)) return hki_train_failed(b, status, "hk_buckets_finish: a bucket could not be launched; call again");
    }
    pthread_mutex_unlock(&b->lock);
    const hk_status ended = hki_buckets_wait(b);
    pthread_mutex_lock(&b->lock);
    if (ended && !hk_breaks(ended)) return hki_train_failed(b, ended, "hk_buckets_finish: not waited; call again"); /* in a callback */
    if (ended) fail(b, ended);
    if (b->failed) {
        status = hki_train_error(NULL, b->failed, "hk_buckets_finish: %s", b->failure);
        if (b->layout.flag) lower_flag(b);
    } else {
        pthread_mutex_unlock(&b->lock);
        status = conclude(b, unused);
        pthread_mutex_lock(&b->lock);
    }
    for (size_t i = 0; i < b->n; i++) b->params[i].used = false;
    b->failed = HK_OK;
    b->launched = 0;
    b->steps++;
    forget_marks(b);
    return status;
}

HK_API hk_status hk_buckets_finish(hk_buckets *b)
{
    if (!b) return hki_train_error(NULL, HK_INVALID, "hk_buckets_finish: b is NULL");
    hk_status status = HK_OK;
    pthread_mutex_lock(&b->lock);
    if (b->finishing) {
        status = hki_train_error(b, HK_INVALID, "hk_buckets_finish: another thread is inside it: one thread ends the step");
    } else if (b->no_sync) {
        forget_marks(b);
    } else {
        b->finishing = true;
        status = reduce(b);
        b->finishing = false;
    }
    pthread_mutex_unlock(&b->lock);
    return status;
}

HK_API hk_status hk_buckets_no_sync(hk_buckets *b, int on)
{
    if (!b) return hki_train_error(NULL, HK_INVALID, "hk_buckets_no_sync: b is NULL");
    pthread_mutex_lock(&b->lock);
    const bool between = !b->marked && !b->finishing;
    if (between) b->no_sync = on != 0;
    pthread_mutex_unlock(&b->lock);
    return between ? HK_OK
                   : hki_train_error(b, HK_INVALID, "hk_buckets_no_sync: in the middle of a micro-batch: call it after hk_buckets_finish");
}

HK_API hk_status hk_buckets_check(hk_buckets *b)
{
    if (!b) return hki_train_error(NULL, HK_INVALID, "hk_buckets_check: b is NULL");
    pthread_mutex_lock(&b->lock);
    const bool between = !b->marked && !b->finishing;
    if (between) b->finishing = true; /* keeps others out of the step, and of the order of operations */
    pthread_mutex_unlock(&b->lock);
    if (!between) return hki_train_error(b, HK_INVALID, "hk_buckets_check: in the middle of a step: call it after hk_buckets_finish");
    const hk_status status = hki_agree_gradients(b);
    pthread_mutex_lock(&b->lock);
    b->finishing = false;
    pthread_mutex_unlock(&b->lock);
    return status;
}
