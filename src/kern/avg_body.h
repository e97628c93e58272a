/* SPDX-License-Identifier: Apache-2.0
 * The part of fold_body.h that averages integers; included by it alone. */
#ifndef HKI_KERN_AVG_BODY_H
#define HKI_KERN_AVG_BODY_H

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

#endif
