/* SPDX-License-Identifier: Apache-2.0
 *
 * Gradient buckets: data-parallel training with many small gradients reduced as a few large vectors, while backward still runs.
 *
 *     hk_param params[] = {{64 * 64, HK_F32, "w1"}, {64, HK_F32, "b1"}, ...};   // in forward order, alike on all ranks
 *     hk_buckets_create(comm, params, n, NULL, &b);
 *     for each step {
 *         hk_buckets_zero(b);                          // if backward adds to the gradients rather than storing them
 *         for each parameter i, as backward gets to it: write hk_buckets_gradient(b, i); hk_buckets_ready(b, i);
 *         hk_buckets_finish(b);                        // every gradient is now the average over ranks
 *         optimiser step
 *     }
 *     hk_buckets_free(b);                              // before hk_comm_destroy
 *
 * Backward makes the last layer's gradients first, so buckets are filled in reverse order of registration. A bucket is one all_reduce, in
 * place; gradients are views into its memory and nothing is ever copied. Bucket k is launched once bucket k-1 was launched and all of its
 * own parameters are ready: the order is the same on all ranks, whatever order gradients become ready in.
 *
 * hk_buckets_create, _set_bytes, _finish and _check are collective: all ranks call them, in the same order. hk_buckets_ready may be called
 * from several threads at once and never waits for another rank. Operations of your own on the same communicator must not come between the
 * first ready and the end of finish; hk_comm_dup makes one for them.
 *
 * A failure is a status as in hocket.h; hk_buckets_last_error is its sentence. docs/train.md tells the rest. */
#ifndef HOCKET_TRAIN_H
#define HOCKET_TRAIN_H

#include <hocket/hocket.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct hk_buckets hk_buckets;

typedef struct hk_param {
    size_t count;     /* elements of the gradient */
    hk_dtype dtype;
    const char *name; /* for messages, copied; NULL: known by its number alone */
} hk_param;

/* Zero means "default", except for op; start from HK_BUCKETS_INIT. The same on all ranks. */
typedef struct hk_buckets_config {
    size_t size;         /* sizeof(hk_buckets_config) */
    size_t bucket_bytes; /* a bucket is full once it holds so much (so it holds less than twice that). A parameter that is as large by itself
                          * gets a bucket of its own. 0: a sixteenth of all gradients, at least 512 KiB and at most 4 MiB */
    size_t first_bytes;  /* most bytes of the bucket launched last, of the parameters that the next forward pass needs first: nothing is
                          * left to hide its time. 0: 1 MiB; never more than bucket_bytes */
    hk_redop op;         /* HK_AVG or HK_SUM */
    int allow_unused;    /* a parameter that was not marked ready counts as zeros, and is no error */
    int check_hash;      /* hk_buckets_finish ends with hk_buckets_check */
} hk_buckets_config;
#define HK_BUCKETS_INIT { sizeof(hk_buckets_config), 0, 0, HK_AVG, 0, 0 }

/* Makes the buckets for n parameters. Fails on all ranks alike, also if ranks differ in their parameters or settings: HK_INVALID naming
 * the rank and the first parameter that differs. On failure *buckets is NULL. */
HK_API hk_status hk_buckets_create(hk_comm *comm, const hk_param *params, size_t n, const hk_buckets_config *config, hk_buckets **buckets);
/* New sizes (0: the default), before the first parameter was marked ready. Gradients move: ask for them again; they are zero. */
HK_API hk_status hk_buckets_set_bytes(hk_buckets *b, size_t bucket_bytes, size_t first_bytes);
/* Waits for what was launched, then frees. NULL is nothing. Before hk_comm_destroy. */
HK_API hk_status hk_buckets_free(hk_buckets *b);

/* Where the gradient of parameter i is: 64-byte aligned, zero at first. NULL if there is no such parameter. Between ready and finish it
 * belongs to the buckets. */
HK_API void *hk_buckets_gradient(hk_buckets *b, size_t i);
/* Zeroes all gradients. Between steps only. */
HK_API hk_status hk_buckets_zero(hk_buckets *b);

/* The gradient of parameter i is complete. Twice in one step, or no such parameter: HK_INVALID, and nothing is lost. */
HK_API hk_status hk_buckets_ready(hk_buckets *b, size_t i);
/* Ends the step: waits until all buckets are reduced. A parameter that was not marked ready on some rank counts as zeros there, and every
 * rank returns HK_INVALID naming it and the ranks, in this step (unless allow_unused). Everything is reduced all the same and the next
 * step is as good as any. HK_NO_MEMORY: a bucket could not be launched; the step is not over, call again. */
HK_API hk_status hk_buckets_finish(hk_buckets *b);

/* Accumulation. After no_sync(b, 1) ready only marks, and finish only takes the marks back: nothing is sent. Backward adds to the
 * gradients; before the last micro-batch call no_sync(b, 0). Between steps only, alike on all ranks. What was marked in any micro-batch
 * since the last reduction is not unused. */
HK_API hk_status hk_buckets_no_sync(hk_buckets *b, int on);
/* Have all ranks the same gradients, bit for bit? After finish they have, unless it did not reduce. HK_INVALID names a rank that differs. */
HK_API hk_status hk_buckets_check(hk_buckets *b);

/* The calling thread's last failure of a call above, as one sentence: rank, parameter, cause, remedy. */
HK_API const char *hk_buckets_last_error(void);

typedef struct hk_buckets_info_t {
    size_t size;             /* in: sizeof(hk_buckets_info_t) */
    size_t parameters, buckets;
    uint64_t bytes;          /* all_reduced in a step: gradients, and what aligns them */
    uint64_t steps;          /* reduced so far */
    uint64_t launched;       /* all_reduces of buckets so far */
} hk_buckets_info_t;
HK_API hk_status hk_buckets_info(hk_buckets *b, hk_buckets_info_t *info);

typedef struct hk_bucket_info_t {
    size_t size;             /* in: sizeof(hk_bucket_info_t) */
    hk_dtype dtype;
    size_t bytes;            /* of gradients */
    size_t parameters;
    const size_t *list;      /* which, in the order of backward; until hk_buckets_set_bytes or _free */
    int shared;              /* its memory is hk_mem_alloc's (0: that was refused) */
} hk_bucket_info_t;
/* Bucket k in the order of launches. */
HK_API hk_status hk_buckets_bucket(hk_buckets *b, size_t k, hk_bucket_info_t *info);

#ifdef __cplusplus
}
#endif
#endif
