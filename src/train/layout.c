/* SPDX-License-Identifier: Apache-2.0
 *
 * Which parameter lies where.
 *
 * Parameters are taken in reverse: backward gets to the last layer first. Each type has one open bucket, which takes parameters until it
 * is full and is then closed. As a bucket is full only when it holds bucket_bytes or more, T bytes of D types make at most
 * ceil(T / bucket_bytes) + D buckets, however large the parameters are. The parameters that come first in forward are kept apart, up to
 * first_bytes: theirs is the bucket that is launched last, when backward is over and nothing hides it.
 *
 * Buckets are launched in the order in which backward, in its usual order, completes them: by their parameters with the lowest number. */
#include "train/train.h"

#define NONE SIZE_MAX
#define BUCKET_BYTES ((size_t)4 << 20)
#define BUCKET_BYTES_LEAST ((size_t)512 << 10)
#define FIRST_BYTES ((size_t)1 << 20)

/* A sixteenth of all gradients: the first bucket is to leave early in backward, and the last but one is to have time before its end. */
static size_t usual_bytes(const hk_buckets *b)
{
    size_t total = 0;
    for (size_t i = 0; i < b->n; i++) total += b->params[i].bytes;
    return hki_min(BUCKET_BYTES, hki_max(total / 16, BUCKET_BYTES_LEAST));
}

/* How many of the first parameters make the bucket launched last: at least one, of one type. */
static size_t first_parameters(const hk_buckets *b, size_t first_bytes)
{
    size_t m = 1, bytes = b->params[0].bytes;
    while (m < b->n && b->params[m].dtype == b->params[0].dtype && b->params[m].bytes <= first_bytes - hki_min(bytes, first_bytes))
        bytes += b->params[m++].bytes;
    return m;
}

/* places[i].bucket becomes a number of the bucket in the order of opening. Returns how many there are. */
static size_t fill(const hk_buckets *b, hki_place *places, size_t bucket_bytes, size_t first_bytes)
{
    const size_t first = first_parameters(b, hki_min(first_bytes, bucket_bytes));
    size_t open[HK_DTYPES], filled[HK_DTYPES] = {0}, n = 0;
    for (int t = 0; t < HK_DTYPES; t++) open[t] = NONE;
    for (size_t i = b->n; i-- > first;) {
        const hki_param *p = &b->params[i];
        if (p->bytes >= bucket_bytes) {
            places[i].bucket = n++;
            continue;
        }
        if (open[p->dtype] == NONE) open[p->dtype] = n++, filled[p->dtype] = 0;
        places[i].bucket = open[p->dtype];
        filled[p->dtype] += p->bytes;
        if (filled[p->dtype] >= bucket_bytes) open[p->dtype] = NONE;
    }
    for (size_t i = 0; i < first; i++) places[i].bucket = n;
    return n + 1;
}

/* From the order of opening to that of launches. scratch: one entry for each parameter, of which there are as many as buckets, or more. */
static void number(hki_place *places, size_t n, size_t *scratch)
{
    size_t next = 0;
    for (size_t i = n; i-- > 0;) scratch[places[i].bucket] = i; /* what remains is the lowest */
    for (size_t i = n; i-- > 0;) {
        const size_t opened = places[i].bucket;
        if (scratch[opened] == i) places[i].offset = next++; /* known from here on as the bucket's lowest */
    }
    for (size_t i = n; i-- > 0;) places[i].bucket = places[scratch[places[i].bucket]].offset;
}

/* Offsets, lists and extents, bucket by bucket. */
static void lay_out(hki_layout *l, const hk_buckets *b)
{
    size_t at = 0;
    for (size_t i = 0; i < b->n; i++) l->buckets[l->places[i].bucket].n++;
    for (size_t k = 0; k < l->n; k++) l->buckets[k].list = l->lists + at, at += l->buckets[k].n;
    for (size_t i = b->n; i-- > 0;) {
        hki_bucket *u = &l->buckets[l->places[i].bucket];
        const hki_param *p = &b->params[i];
        const size_t size = hk_dtype_size(p->dtype), offset = hki_round_up(u->elements * size, HKI_LINE);
        l->lists[(size_t)(u->list - l->lists) + u->pending++] = i;
        l->places[i].offset = offset;
        u->dtype = p->dtype;
        u->bytes += p->bytes;
        u->elements = offset / size + p->count;
    }
}

static bool find_memory(hki_bucket *u, hk_comm *comm)
{
    const size_t bytes = hki_max(u->elements * hk_dtype_size(u->dtype), 1);
    void *memory;
    u->shared = hk_mem_alloc(comm, bytes, &memory) == HK_OK;
    u->memory = u->shared ? memory : hki_alloc(bytes);
    return u->memory != NULL;
}

bool hki_layout_make(hki_layout *l, const hk_buckets *b, size_t bucket_bytes, size_t first_bytes)
{
    if (!bucket_bytes) bucket_bytes = usual_bytes(b);
    if (!first_bytes) first_bytes = FIRST_BYTES;
    *l = (hki_layout){.bucket_bytes = bucket_bytes, .first_bytes = first_bytes};
    l->places = hki_alloc(b->n * sizeof *l->places);
    l->lists = hki_alloc(b->n * sizeof *l->lists);
    if (l->places && l->lists) {
        const size_t n = fill(b, l->places, bucket_bytes, first_bytes);
        number(l->places, b->n, l->lists);
        l->buckets = hki_alloc(n * sizeof *l->buckets);
        l->n = l->buckets ? n : 0;
    }
    if (!l->n) return hki_layout_free(l, b->comm), false;
    lay_out(l, b);
    hki_bucket *last = &l->buckets[l->n - 1];
    const bool flagged = hki_dtype_is_float(last->dtype); /* a float's average of 0 and 1 is not 0; an integer's is, or its sum wraps */
    last->elements += flagged;
    for (size_t k = 0; k < l->n; k++)
        if (!find_memory(&l->buckets[k], b->comm)) return hki_layout_free(l, b->comm), false;
    if (flagged) l->flag = last->memory + (last->elements - 1) * hk_dtype_size(last->dtype);
    return true;
}

void hki_layout_free(hki_layout *l, hk_comm *comm)
{
    for (size_t k = 0; k < l->n; k++) {
        if (l->buckets[k].shared) hk_mem_free(comm, l->buckets[k].memory);
        else hki_free(l->buckets[k].memory);
    }
    hki_free(l->buckets);
    hki_free(l->places);
    hki_free(l->lists);
    *l = (hki_layout){0};
}
