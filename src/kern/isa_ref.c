/* SPDX-License-Identifier: Apache-2.0
 * The reference: plain C for any CPU, complete, and the oracle of the others. User reductions live here only. */
#include "kern/elem.h"

typedef uint8_t hki_vec __attribute__((vector_size(16), aligned(1), may_alias));

typedef uint16_t __attribute__((may_alias)) f16_elem;
typedef float f16_acc;
enum { f16_step = 1, f16_scales = 1 };
HKI_FLOAT_OPS(f16, float, uint32_t, bits32, float32)
static inline float f16_factor(const hki_reduction *r, bool finish) { return f32_factor(r, finish); }

/* All ones if `a < b`. Masks rather than ?: where a floating-point operation is chosen, else gcc makes a branch of it. */
static inline uint32_t below(uint32_t a, uint32_t b) { return -(uint32_t)(a < b); }

/* Exponent and mantissa at f32's place, rebiased (127 - 15) by an exact multiplication, which normalises subnormals too. */
static inline float f16_load(const f16_elem *p)
{
    const uint32_t h = *p, magnitude = h & 0x7fffu;
    const uint32_t special = below(0x7bffu, magnitude) & 0x7f800000u;
    return float32(bits32(float32(magnitude << 13) * 0x1p112f) | special | (h & 0x8000u) << 16);
}

/* To nearest, ties to even. Below the normal range adding 0.5 makes the CPU round at the last place of a half. */
static inline void f16_put(f16_elem *p, float v, float m)
{
    const uint32_t b = bits32(v * m), magnitude = b & 0x7fffffffu;
    const uint32_t subnormal = bits32(float32(magnitude) + 0.5f) - 0x3f000000u;
    const uint32_t normal = (magnitude - (112u << 23) + 0xfffu + ((magnitude >> 13) & 1)) >> 13;
    const uint32_t nan = below(0x7f800000u, magnitude), special = 0x7c00u | (nan & 0x0200u);
    const uint32_t tiny = below(magnitude, 113u << 23), finite = below(magnitude, 143u << 23);
    const uint32_t value = (subnormal & tiny) | (normal & ~tiny);
    *p = (uint16_t)((value & finite) | (special & ~finite) | (b >> 16 & 0x8000u & ~nan));
}

typedef uint16_t __attribute__((may_alias)) bf16_elem;
typedef float bf16_acc;
enum { bf16_step = 1, bf16_scales = 1 };
HKI_FLOAT_OPS(bf16, float, uint32_t, bits32, float32)
static inline float bf16_factor(const hki_reduction *r, bool finish) { return f32_factor(r, finish); }
static inline float bf16_load(const bf16_elem *p) { return float32((uint32_t)*p << 16); }
static inline void bf16_put(bf16_elem *p, float v, float m)
{
    const uint32_t b = float_scaled(v, m); /* to nearest, ties to even; the canonical NaN cannot carry over */
    *p = (uint16_t)((b + 0x7fffu + ((b >> 16) & 1)) >> 16);
}

#define HKI_USER_FOLD(X) X##_user
#include "kern/fold_body.h"

/* In an accumulator of our own, as a destination may be a later source. One source with a finish is any fold's last step. */
static void fold_user(hk_dtype dtype, size_t size, hki_fold_fn finish, HKI_FOLD_ARGS)
{
    unsigned char acc[HKI_BLOCK] __attribute__((aligned(HKI_LINE)));
    const size_t block = sizeof acc / size;
    for (size_t at = 0, n; at < count; at += n) {
        n = hki_min(block, count - at);
        copy(acc, (const char *)src[0] + at * size, n * size);
        for (unsigned k = 1; k < nsrc; k++) r->user(acc, (const char *)src[k] + at * size, n, dtype, r->user_arg);
        void *out[HKI_FOLD_MAX_DST];
        const void *in = acc;
        for (unsigned k = 0; k < ndst; k++) out[k] = (char *)dst[k] + at * size;
        finish(out, ndst, &in, 1, n, r, apply);
    }
}

#define HKI_USER_ENTRY(X, TYPE, FINISH)                                                                                          \
    static void X##_user(HKI_FOLD_ARGS)                                                                                          \
    {                                                                                                                            \
        fold_user(TYPE, sizeof(X##_elem), FINISH, dst, ndst, src, nsrc, count, r, apply);                                        \
    }
HKI_USER_ENTRY(i8, HK_I8, i8_sum_entry)
HKI_USER_ENTRY(u8, HK_U8, u8_sum_entry)
HKI_USER_ENTRY(i16, HK_I16, i16_sum_entry)
HKI_USER_ENTRY(u16, HK_U16, u16_sum_entry)
HKI_USER_ENTRY(i32, HK_I32, i32_sum_entry)
HKI_USER_ENTRY(u32, HK_U32, u32_sum_entry)
HKI_USER_ENTRY(i64, HK_I64, i64_sum_entry)
HKI_USER_ENTRY(u64, HK_U64, u64_sum_entry)
HKI_USER_ENTRY(f16, HK_F16, f16_sum_fold)
HKI_USER_ENTRY(bf16, HK_BF16, bf16_sum_fold)
HKI_USER_ENTRY(f32, HK_F32, f32_sum_fold)
HKI_USER_ENTRY(f64, HK_F64, f64_sum_fold)

static bool usable(void) { return true; }

const hki_isa hki_isa_ref = {
    .name = "ref",
    .rank = 0,
    .usable = usable,
    .fold = HKI_FOLD_TABLE,
    .copy = copy,
};

/* ---- A few elements */

#define HKI_FEW_FOLD(X, OP)                                                                                                      \
    static void X##_##OP##_few(void *dst, const void *const *src, unsigned nsrc, size_t count, const hki_reduction *r, bool apply) \
    {                                                                                                                            \
        const X##_acc m = X##_factor(r, apply);                                                                                  \
        const X##_elem *const a = src[0], *const b = src[1];                                                                     \
        for (size_t i = 0; i < count; i++) {                                                                                     \
            X##_acc acc = X##_##OP(X##_load(a + i), X##_load(b + i));                                                            \
            for (unsigned k = 2; k < nsrc; k++) acc = X##_##OP(acc, X##_load((const X##_elem *)src[k] + i));                     \
            X##_put((X##_elem *)dst + i, acc, m);                                                                                \
            HKI_AS_WRITTEN();                                                                                                    \
        }                                                                                                                        \
    }
#define HKI_FEW_FLOAT(X) HKI_FEW_FOLD(X, sum) HKI_FEW_FOLD(X, prod) HKI_FEW_FOLD(X, min) HKI_FEW_FOLD(X, max)
#define HKI_FEW_INT(X) HKI_FEW_FOLD(X, min) HKI_FEW_FOLD(X, max)
HKI_SIGNLESS(HKI_FEW_FOLD, b8) HKI_SIGNLESS(HKI_FEW_FOLD, b16) HKI_SIGNLESS(HKI_FEW_FOLD, b32) HKI_SIGNLESS(HKI_FEW_FOLD, b64)
HKI_FEW_INT(i8) HKI_FEW_INT(u8) HKI_FEW_INT(i16) HKI_FEW_INT(u16) HKI_FEW_INT(i32) HKI_FEW_INT(u32) HKI_FEW_INT(i64) HKI_FEW_INT(u64)
HKI_FEW_FLOAT(f16) HKI_FEW_FLOAT(bf16) HKI_FEW_FLOAT(f32) HKI_FEW_FLOAT(f64)

#define HKI_FEW_INT_ROW(X, B)                                                                                                    \
    {[HKI_SUM] = B##_sum_few, [HKI_PROD] = B##_prod_few, [HKI_MIN] = X##_min_few, [HKI_MAX] = X##_max_few,                       \
     [HKI_BAND] = B##_band_few, [HKI_BOR] = B##_bor_few, [HKI_BXOR] = B##_bxor_few}
#define HKI_FEW_FLOAT_ROW(X) {[HKI_SUM] = X##_sum_few, [HKI_PROD] = X##_prod_few, [HKI_MIN] = X##_min_few, [HKI_MAX] = X##_max_few}

const hki_few_fn hki_few[HK_DTYPES][HKI_ROPS] = {
    [HK_I8] = HKI_FEW_INT_ROW(i8, b8), [HK_U8] = HKI_FEW_INT_ROW(u8, b8), [HK_I16] = HKI_FEW_INT_ROW(i16, b16),
    [HK_U16] = HKI_FEW_INT_ROW(u16, b16), [HK_I32] = HKI_FEW_INT_ROW(i32, b32), [HK_U32] = HKI_FEW_INT_ROW(u32, b32),
    [HK_I64] = HKI_FEW_INT_ROW(i64, b64), [HK_U64] = HKI_FEW_INT_ROW(u64, b64), [HK_F16] = HKI_FEW_FLOAT_ROW(f16),
    [HK_BF16] = HKI_FEW_FLOAT_ROW(bf16), [HK_F32] = HKI_FEW_FLOAT_ROW(f32), [HK_F64] = HKI_FEW_FLOAT_ROW(f64),
};
