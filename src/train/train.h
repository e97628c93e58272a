/* SPDX-License-Identifier: Apache-2.0
 *
 * Gradient buckets over the public API. The parameters are cut into buckets once (layout.c); a step marks parameters, launches buckets in
 * their order and waits for all (step.c); what ranks must agree on beyond that is small and in agree.c.
 *
 * One mutex guards everything below. Launching happens under it, since the order of launches is what it protects. Waiting does not. */
#ifndef HKI_TRAIN_H
#define HKI_TRAIN_H

#include <hocket/train.h>

#include "base/base.h"

#include <pthread.h>

#define HKI_SENTENCE 1024

typedef struct hki_param {
    size_t count, bytes;
    hk_dtype dtype;
    char *name;       /* NULL: none */
    bool ready;       /* marked in this micro-batch */
    bool used;        /* marked since the last reduction */
} hki_param;

typedef struct hki_bucket {
    hk_dtype dtype;
    uint8_t *memory;
    bool shared;      /* hk_mem_alloc's */
    size_t elements;  /* all that is reduced: gradients on 64-byte boundaries, and in the last bucket the flag */
    size_t bytes;     /* of gradients alone */
    const size_t *list;
    size_t n, pending; /* parameters; those not ready */
    hk_request *request;
} hki_bucket;

typedef struct hki_place { size_t bucket, offset; } hki_place;

typedef struct hki_layout {
    size_t bucket_bytes, first_bytes;
    hki_bucket *buckets;
    size_t n;
    hki_place *places; /* by parameter */
    size_t *lists;     /* parameters by bucket, in the order of backward */
    uint8_t *flag;     /* one element of the last bucket: not zero if a rank misses parameters. NULL: a type whose average may lose it */
} hki_layout;

struct hk_buckets {
    pthread_mutex_t lock;
    hk_comm *comm;
    uint32_t rank, ranks;
    hk_redop op;
    bool allow_unused, check_hash;
    hki_param *params;
    size_t n;
    char *names;
    hki_layout layout;
    /* the step */
    bool no_sync, finishing;
    size_t marked, launched;   /* parameters; buckets */
    hk_status failed;          /* communication failed in this step */
    char failure[HKI_SENTENCE];
    bool begun;                /* a parameter was marked, once */
    uint64_t steps, launches;
    /* working memory of the agreements, so that no step allocates */
    uint64_t *hashes;          /* one for each parameter */
    uint64_t *by_rank;         /* one for each rank */
    uint64_t *missing;         /* ranks rows of `words` words of parameter bits */
    size_t words;
};

/* ---- create.c */
/* Keeps the sentence of a failure for the calling thread; b NULL: none known yet. */
hk_status hki_train_error(const hk_buckets *b, hk_status, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* The sentence of a failed hocket call. */
hk_status hki_train_failed(const hk_buckets *b, hk_status, const char *during);

/* ---- step.c */
hk_status hki_buckets_wait(hk_buckets *); /* for all that is launched; the lock is not held */

/* ---- layout.c */
/* Cuts the parameters and finds memory, zeroed; sizes of 0 are the default. False: out of memory, and nothing was kept. */
bool hki_layout_make(hki_layout *, const hk_buckets *, size_t bucket_bytes, size_t first_bytes);
void hki_layout_free(hki_layout *, hk_comm *);

/* ---- agree.c: collective */
/* Do all ranks come with the same parameters, settings and sizes, and without a failure? `status` is this rank's own so far, b its
 * buckets so far (NULL if it has none) and l the layout to be agreed on. */
hk_status hki_agree_same(hk_comm *, const hk_buckets *b, const hki_layout *l, hk_status status);
/* Every rank's unused parameters are told to all; HK_INVALID with the sentence. b->missing holds this rank's row. */
hk_status hki_agree_missing(hk_buckets *b);
/* Does any rank miss parameters? For layouts without a flag. */
hk_status hki_agree_any(hk_buckets *b, bool mine, bool *any);
hk_status hki_agree_gradients(hk_buckets *b);

#endif
