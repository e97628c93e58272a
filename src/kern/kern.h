/* SPDX-License-Identifier: Apache-2.0
 *
 * All code that touches payload bytes: fold (reduce) and copy.
 *
 * A fold has one meaning: widen each source to the accumulator type (f32 for f16 and bf16; 64-bit, for 64-bit types 128-bit, for
 * integer AVG; else the type itself), combine the sources in list order, apply the finish, round once, store. It works element by
 * element in blocks, all sources of a block being read before any destination of it is written, so a destination may be one of
 * the sources (same address) but must not otherwise overlap them.
 *
 * Without the finish what is stored is a partial result of the element type: f16 and bf16 rounded, integers wrapped. Integer AVG
 * of partial results is thus right only if these did not wrap. One source without finish is copied bit for bit.
 *
 * A NaN that combining or scaling gives is the canonical quiet NaN (0x7e00, 0x7fc0, 0x7fc00000, 0x7ff8 << 48). MIN and MAX
 * propagate NaN and take -0 as less than +0: no bit of a result depends on the order of two operands.
 *
 * Each instruction set is one file that defines `const hki_isa hki_isa_<stem>`. The reference (isa_ref.c) is plain C and the
 * oracle: every other must give the same bits, or leave its entry NULL so that the reference is used. Entries are chosen once
 * per process by hki_kern_init; HOCKET_ISA forces one by name.
 *
 * Floating-point environment: hki_fold sets round-to-nearest without FTZ/DAZ for its own duration, whatever the calling thread
 * has, and puts it back. */
#ifndef HKI_KERN_H
#define HKI_KERN_H

#include "base/base.h"

#define HKI_FOLD_MAX_DST 4 /* destinations of one fold */

/* dst[0..ndst) = fold of src[0..nsrc), `count` elements; nsrc >= 1, ndst >= 1. apply_finish: also do r->finish. */
typedef void (*hki_fold_fn)(void *const *dst, unsigned ndst, const void *const *src, unsigned nsrc, size_t count,
                            const hki_reduction *r, bool apply_finish);
/* memcpy's contract (no overlap), own loops. */
typedef void (*hki_copy_fn)(void *dst, const void *src, size_t bytes);

typedef struct hki_isa {
    const char *name;                       /* "ref", "avx2": HOCKET_ISA's value */
    int rank;                               /* the usable one with the highest rank is taken */
    bool (*usable)(void);                   /* does this CPU have it? */
    hki_fold_fn fold[HK_DTYPES][HKI_ROPS];  /* NULL: the reference's */
    hki_copy_fn copy;                       /* NULL: the reference's */
    hki_copy_fn stream;                     /* a copy that leaves no line of dst in the caches; NULL: copy */
} hki_isa;

/* Every registered instruction set, NULL-terminated (generated at build time). */
extern const hki_isa *const hki_isas[];

/* Chooses. `force`: a name or NULL for the best. Returns the name in use, or NULL if `force` is unknown or unusable (nothing
 * changes then). Safe to call more than once, from several threads. */
const char *hki_kern_init(const char *force);
const char *hki_kern_isa(void);

/* Is (dtype, op, finish) defined at all? BAND, BOR, BXOR: integers; HKI_FINISH_SCALE: floats; everything else is. */
bool hki_fold_supported(hk_dtype dtype, const hki_reduction *r);

/* The same for one destination, two sources or more and up to HKI_FEW elements: scalar, a matter of instructions. */
typedef void (*hki_few_fn)(void *dst, const void *const *src, unsigned nsrc, size_t count, const hki_reduction *r, bool apply_finish);
#define HKI_FEW 8

/* A fold looked up once for many calls. */
typedef struct hki_folder {
    hki_fold_fn fn;
    hki_few_fn few; /* NULL: there is none for this reduction */
    bool floats;    /* needs the floating-point environment looked after */
} hki_folder;

/* Is the floating-point environment of this thread what folds need? */
static inline bool hki_fp_plain(void)
{
#if defined(__x86_64__)
    return (__builtin_ia32_stmxcsr() & ~0x3fu) == 0x1f80u; /* sticky flags are no setting */
#else
    return false;
#endif
}

hki_folder hki_fold_find(hk_dtype dtype, const hki_reduction *r);
void hki_fold_by(hki_folder, void *const *dst, unsigned ndst, const void *const *src, unsigned nsrc, size_t count, const hki_reduction *r,
                 bool apply_finish);
void hki_fold(hk_dtype dtype, void *const *dst, unsigned ndst, const void *const *src, unsigned nsrc, size_t count,
              const hki_reduction *r, bool apply_finish);
void hki_copy(void *dst, const void *src, size_t bytes);

/* The same for destinations that nobody reads soon: their old lines are not fetched and their new ones push nothing out of the caches.
 * Slower than the plain forms unless they are larger than the caches. `near`: a destination to be written the plain way, or NULL; any
 * number of `far` ones. elem_bytes: of dtype. Everything is visible to other cores before a later store of this thread is. */
void hki_fold_far(hki_folder, size_t elem_bytes, void *near, void *const *far, unsigned nfar, const void *const *src, unsigned nsrc,
                  size_t count, const hki_reduction *r, bool apply_finish);
void hki_copy_far(void *dst, const void *src, size_t bytes);

#endif
