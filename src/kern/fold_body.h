/* SPDX-License-Identifier: Apache-2.0
 *
 * Every fold, from the element types of elem.h: included by each instruction set's file, whose compiler options make the code its
 * own. Before, the file defines f16's and bf16's element types (see elem.h) and hki_vec, the vector that copies move.
 *
 * Aliasing: a destination may be a source. Loops are element-wise with all loads of an element before its store, so exact
 * aliasing carries nothing from one iteration to the next: that is what `ivdep` promises, and why nothing is `restrict`. */
#ifndef HKI_KERN_FOLD_BODY_H
#define HKI_KERN_FOLD_BODY_H

#include "kern/elem.h"

#define HKI_BLOCK 4096      /* bytes of an accumulator: stays in the first-level cache with its sources */
#define HKI_SMALL_COPY 2048 /* bytes up to which memcpy is good everywhere */
#define HKI_FOLD_ARGS                                                                                                            \
    void *const *dst, unsigned ndst, const void *const *src, unsigned nsrc, size_t count, const hki_reduction *r, bool apply

/* In a loop that gcc must not rewrite: a copying one into a call of memcpy, an outer one jammed into its inner one, which then
 * does not vectorise. Costs no instruction. */
#define HKI_AS_WRITTEN() __asm__ volatile("" ::: "memory")

/* Above HKI_SMALL_COPY glibc may use `rep movsb`, which some CPUs run at a small part of memory's speed for certain destination
 * alignments; so: own loop, destination aligned. */
static void copy(void *dst, const void *src, size_t n)
{
    enum { V = sizeof(hki_vec) };
    if (n <= HKI_SMALL_COPY) {
        if (n) memcpy(dst, src, n);
        return;
    }
    unsigned char *d = dst;
    const unsigned char *s = src;
    const hki_vec last = *(const hki_vec *)(s + n - V);
    unsigned char *const end = d + n - V;
    *(hki_vec *)d = *(const hki_vec *)s;
    const size_t head = V - (uintptr_t)d % V;
    d += head, s += head, n -= head;
    for (; n >= 4 * V; d += 4 * V, s += 4 * V, n -= 4 * V) {
        const hki_vec a = ((const hki_vec *)s)[0], b = ((const hki_vec *)s)[1];
        const hki_vec c = ((const hki_vec *)s)[2], e = ((const hki_vec *)s)[3];
        hki_vec *const q = __builtin_assume_aligned(d, V);
        q[0] = a, q[1] = b, q[2] = c, q[3] = e;
        HKI_AS_WRITTEN();
    }
    for (; n >= V; d += V, s += V, n -= V) {
        *(hki_vec *)d = *(const hki_vec *)s;
        HKI_AS_WRITTEN();
    }
    *(hki_vec *)end = last;
}

static void copy_all(void *const *dst, unsigned ndst, const void *src, size_t offset, size_t n)
{
    for (unsigned k = 0; k < ndst; k++)
        if ((char *)dst[k] + offset != src) copy((char *)dst[k] + offset, src, n);
}

#define HKI_EACH(n) _Pragma("GCC ivdep") for (size_t i = 0; i < (n); i++)
#define HKI_AT(X, p) ((const X##_elem *)(p) + at)
/* Separate variables, not an array: the vectoriser sees through them. */
#define HKI_SOURCES(X, n)                                                                                                        \
    const X##_elem *const s0 = HKI_AT(X, src[0]), *const s1 = HKI_AT(X, src[(n) > 1 ? 1 : 0]);                                   \
    const X##_elem *const s2 = HKI_AT(X, src[(n) > 2 ? 2 : 0]), *const s3 = HKI_AT(X, src[(n) > 3 ? 3 : 0])
#define HKI_L(X, k) X##_load(s##k + i)
#define HKI_2(X, OP) X##_##OP(HKI_L(X, 0), HKI_L(X, 1))
#define HKI_3(X, OP) X##_##OP(HKI_2(X, OP), HKI_L(X, 2))
#define HKI_4(X, OP) X##_##OP(HKI_3(X, OP), HKI_L(X, 3))

/* X_OP_fold: the fold without integer AVG. Up to four sources are combined in registers, more through an accumulator.
 * Destinations after the first (one of two sources: the second) are copies of it, made while the block is in cache. */
#define HKI_FOLD(X, OP)                                                                                                          \
    static void X##_##OP##_tail(void *const *dst, unsigned ndst, const void *const *src, unsigned nsrc, size_t offset, size_t n, \
                                X##_acc m)                                                                                       \
    {                                                                                                                            \
        X##_elem e;                                                                                                              \
        memset(&e, 0, sizeof e);                                                                                                 \
        memcpy(&e, (const char *)src[0] + offset, n);                                                                            \
        X##_acc acc = X##_load(&e);                                                                                              \
        for (unsigned k = 1; k < nsrc; k++) {                                                                                    \
            memcpy(&e, (const char *)src[k] + offset, n);                                                                        \
            acc = X##_##OP(acc, X##_load(&e));                                                                                   \
        }                                                                                                                        \
        X##_put(&e, acc, m);                                                                                                     \
        for (unsigned k = 0; k < ndst; k++) memcpy((char *)dst[k] + offset, &e, n);                                              \
    }                                                                                                                            \
    static void X##_##OP##_many(X##_elem *d, const void *const *src, unsigned nsrc, size_t at, size_t n, X##_acc m)              \
    {                                                                                                                            \
        X##_acc acc[HKI_BLOCK / sizeof(X##_acc)] __attribute__((aligned(HKI_LINE)));                                             \
        HKI_SOURCES(X, 4);                                                                                                       \
        HKI_EACH(n) acc[i] = HKI_4(X, OP);                                                                                       \
        for (unsigned k = 4; k + 1 < nsrc; k++) {                                                                                \
            const X##_elem *const t = HKI_AT(X, src[k]);                                                                         \
            HKI_EACH(n) acc[i] = X##_##OP(acc[i], X##_load(t + i));                                                              \
            HKI_AS_WRITTEN();                                                                                                    \
        }                                                                                                                        \
        const X##_elem *const t = HKI_AT(X, src[nsrc - 1]);                                                                      \
        HKI_EACH(n) X##_put(d + i, X##_##OP(acc[i], X##_load(t + i)), m);                                                        \
    }                                                                                                                            \
    static void X##_##OP##_two(X##_elem *d, X##_elem *d2, const X##_elem *s0, const X##_elem *s1, size_t n, X##_acc m)           \
    {                                                                                                                            \
        HKI_EACH(n)                                                                                                              \
        {                                                                                                                        \
            const X##_acc v = HKI_2(X, OP);                                                                                      \
            X##_put(d + i, v, m);                                                                                                \
            X##_put(d2 + i, v, m);                                                                                               \
        }                                                                                                                        \
    }                                                                                                                            \
    static void X##_##OP##_fold(HKI_FOLD_ARGS)                                                                                   \
    {                                                                                                                            \
        const size_t size = sizeof(X##_elem) / X##_step, units = count / X##_step;                                               \
        if (nsrc == 1 && (!X##_scales || !apply || r->finish == HKI_FINISH_NONE)) {                                              \
            copy_all(dst, ndst, src[0], 0, count * size);                                                                        \
            return;                                                                                                              \
        }                                                                                                                        \
        const X##_acc m = X##_factor(r, apply);                                                                                  \
        const unsigned direct = nsrc == 2 && ndst == 2 ? 2 : 1; /* destinations written from registers */                        \
        const size_t block = nsrc > 4 || ndst > direct ? HKI_BLOCK / sizeof(X##_acc) : units;                                    \
        for (size_t at = 0, n; at < units; at += n) {                                                                            \
            n = hki_min(block, units - at);                                                                                      \
            X##_elem *const d = (X##_elem *)dst[0] + at;                                                                         \
            HKI_SOURCES(X, nsrc);                                                                                                \
            if (nsrc == 2 && direct == 2) X##_##OP##_two(d, (X##_elem *)dst[1] + at, s0, s1, n, m);                              \
            else if (nsrc == 2) HKI_EACH(n) X##_put(d + i, HKI_2(X, OP), m);                                                     \
            else if (nsrc == 3) HKI_EACH(n) X##_put(d + i, HKI_3(X, OP), m);                                                     \
            else if (nsrc == 4) HKI_EACH(n) X##_put(d + i, HKI_4(X, OP), m);                                                     \
            else if (nsrc > 4) X##_##OP##_many(d, src, nsrc, at, n, m);                                                          \
            else if (X##_scales) HKI_EACH(n) X##_put(d + i, HKI_L(X, 0), m);                                                     \
            copy_all(dst + direct, ndst - direct, d, at * sizeof(X##_elem), n * sizeof(X##_elem));                               \
        }                                                                                                                        \
        const size_t done = units * X##_step;                                                                                    \
        if (done < count) X##_##OP##_tail(dst, ndst, src, nsrc, done * size, (count - done) * size, m);                          \
    }

/* Integer AVG: in 64 bits (128 for 64-bit types) so that the sum does not overflow, divided truncating toward zero. `op` other
 * than SUM is combined in the same width; unsigned, to wrap. */
#define HKI_AVG_STEP(X, EXPR)                                                                                                    \
    HKI_EACH(n)                                                                                                                  \
    {                                                                                                                            \
        const X##_wide a = (X##_wide)acc[i], b = s[i];                                                                           \
        acc[i] = (X##_uwide)(EXPR);                                                                                              \
    }                                                                                                                            \
    break
#define HKI_AVG(X)                                                                                                               \
    static void X##_avg(HKI_FOLD_ARGS)                                                                                           \
    {                                                                                                                            \
        X##_uwide acc[HKI_BLOCK / sizeof(X##_uwide)] __attribute__((aligned(HKI_LINE)));                                         \
        for (size_t at = 0, n; at < count; at += n) {                                                                            \
            n = hki_min(HKI_COUNT(acc), count - at);                                                                             \
            HKI_EACH(n) acc[i] = (X##_uwide)HKI_AT(X, src[0])[i];                                                                \
            for (unsigned k = 1; k < nsrc; k++) {                                                                                \
                const X##_elem *const s = HKI_AT(X, src[k]);                                                                     \
                switch (r->op) {                                                                                                 \
                case HKI_PROD: HKI_AVG_STEP(X, (X##_uwide)a * (X##_uwide)b);                                                     \
                case HKI_MIN: HKI_AVG_STEP(X, a < b ? a : b);                                                                    \
                case HKI_MAX: HKI_AVG_STEP(X, a > b ? a : b);                                                                    \
                case HKI_BAND: HKI_AVG_STEP(X, a & b);                                                                           \
                case HKI_BOR: HKI_AVG_STEP(X, a | b);                                                                            \
                case HKI_BXOR: HKI_AVG_STEP(X, a ^ b);                                                                           \
                default: HKI_AVG_STEP(X, (X##_uwide)a + (X##_uwide)b);                                                           \
                }                                                                                                                \
            }                                                                                                                    \
            X##_elem *const d = (X##_elem *)dst[0] + at;                                                                         \
            HKI_EACH(n) d[i] = (X##_acc)((X##_wide)acc[i] / (X##_wide)r->divisor);                                               \
            copy_all(dst + 1, ndst - 1, d, at * sizeof *d, n * sizeof *d);                                                       \
        }                                                                                                                        \
    }
#define HKI_INT_FOLD(X, B, OP)                                                                                                   \
    static void X##_##OP##_entry(HKI_FOLD_ARGS)                                                                                  \
    {                                                                                                                            \
        (apply && r->finish == HKI_FINISH_AVG ? X##_avg : B##_##OP##_fold)(dst, ndst, src, nsrc, count, r, apply);               \
    }

/* f(X, OP) for every operation that does not, or does, know a sign; g(X, B) for every integer type and its bits. */
#define HKI_SIGNLESS(f, X) f(X, sum) f(X, prod) f(X, band) f(X, bor) f(X, bxor)
#define HKI_FLOAT(X) HKI_FOLD(X, sum) HKI_FOLD(X, prod) HKI_FOLD(X, min) HKI_FOLD(X, max)
#define HKI_INT(X, B)                                                                                                            \
    HKI_AVG(X) HKI_FOLD(X, min) HKI_FOLD(X, max) HKI_INT_FOLD(X, B, sum) HKI_INT_FOLD(X, B, prod) HKI_INT_FOLD(X, X, min)        \
    HKI_INT_FOLD(X, X, max) HKI_INT_FOLD(X, B, band) HKI_INT_FOLD(X, B, bor) HKI_INT_FOLD(X, B, bxor)

HKI_SIGNLESS(HKI_FOLD, b8) HKI_SIGNLESS(HKI_FOLD, b16) HKI_SIGNLESS(HKI_FOLD, b32) HKI_SIGNLESS(HKI_FOLD, b64)
HKI_INT(i8, b8) HKI_INT(u8, b8) HKI_INT(i16, b16) HKI_INT(u16, b16) HKI_INT(i32, b32) HKI_INT(u32, b32) HKI_INT(i64, b64)
HKI_INT(u64, b64) HKI_FLOAT(f16) HKI_FLOAT(bf16) HKI_FLOAT(f32) HKI_FLOAT(f64)

#define HKI_INT_ROW(X)                                                                                                           \
    {[HKI_SUM] = X##_sum_entry, [HKI_PROD] = X##_prod_entry, [HKI_MIN] = X##_min_entry, [HKI_MAX] = X##_max_entry,               \
     [HKI_BAND] = X##_band_entry, [HKI_BOR] = X##_bor_entry, [HKI_BXOR] = X##_bxor_entry, [HKI_USER] = HKI_USER_FOLD(X)}
#define HKI_FLOAT_ROW(X)                                                                                                         \
    {[HKI_SUM] = X##_sum_fold, [HKI_PROD] = X##_prod_fold, [HKI_MIN] = X##_min_fold, [HKI_MAX] = X##_max_fold,                   \
     [HKI_USER] = HKI_USER_FOLD(X)}
#define HKI_FOLD_TABLE                                                                                                           \
    {[HK_I8] = HKI_INT_ROW(i8), [HK_U8] = HKI_INT_ROW(u8), [HK_I16] = HKI_INT_ROW(i16), [HK_U16] = HKI_INT_ROW(u16),             \
     [HK_I32] = HKI_INT_ROW(i32), [HK_U32] = HKI_INT_ROW(u32), [HK_I64] = HKI_INT_ROW(i64), [HK_U64] = HKI_INT_ROW(u64),         \
     [HK_F16] = HKI_FLOAT_ROW(f16), [HK_BF16] = HKI_FLOAT_ROW(bf16), [HK_F32] = HKI_FLOAT_ROW(f32),                              \
     [HK_F64] = HKI_FLOAT_ROW(f64)}

#endif
