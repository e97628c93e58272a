/* SPDX-License-Identifier: Apache-2.0
 *
 * Element types of the folds. Type X is: X_elem as it lies in memory (may_alias: payload has whatever type the user gave it),
 * X_acc as it is combined, X_step elements to one X_elem, X_load, X_put (scales by `m`, rounds, stores), and one X_<op>(a, b) an
 * operation. f32, f64 and all integers are here; f16 and bf16 come from the
 * instruction set's file.
 *
 * Bits of special values, the same whatever the order of operands: a NaN result of combining or scaling is the canonical quiet
 * NaN (the compiler and the CPU are free in which payload they keep, so none is kept); MIN of -0 and +0 is -0, MAX is +0. */
#ifndef HKI_KERN_ELEM_H
#define HKI_KERN_ELEM_H

#include "kern/kern.h"

#include <string.h>

#define HKI_QNAN32 0x7fc00000u
#define HKI_QNAN64 0x7ff8000000000000u

static inline uint32_t bits32(float v) { uint32_t b; memcpy(&b, &v, 4); return b; }
static inline float float32(uint32_t b) { float v; memcpy(&v, &b, 4); return v; }
static inline uint64_t bits64(double v) { uint64_t b; memcpy(&b, &v, 8); return b; }
static inline double float64(uint64_t b) { double v; memcpy(&v, &b, 8); return v; }

/* Integers wrap: unsigned arithmetic, never narrower than unsigned int (u16 * u16 would be a signed overflow). Operations that do
 * not know signs are shared by both types of a width. */
#define HKI_BITS(X, T, W)                                                                                                        \
    typedef T __attribute__((may_alias)) X##_elem;                                                                               \
    typedef T X##_acc;                                                                                                           \
    enum { X##_step = 1, X##_scales = 0 };                                                                                       \
    static inline T X##_factor(const hki_reduction *r, bool finish) { return 0; }                                                \
    static inline T X##_load(const X##_elem *p) { return *p; }                                                                   \
    static inline void X##_put(X##_elem *p, T v, T m) { *p = v; }                                                                \
    static inline T X##_sum(T a, T b) { return (T)((W)a + (W)b); }                                                               \
    static inline T X##_prod(T a, T b) { return (T)((W)a * (W)b); }                                                              \
    static inline T X##_band(T a, T b) { return a & b; }                                                                         \
    static inline T X##_bor(T a, T b) { return a | b; }                                                                          \
    static inline T X##_bxor(T a, T b) { return a ^ b; }
HKI_BITS(b8, uint8_t, uint32_t)
HKI_BITS(b16, uint16_t, uint32_t)
HKI_BITS(b32, uint32_t, uint32_t)
HKI_BITS(b64, uint64_t, uint64_t)

/* WU: wide enough, unsigned, for the sum of 2^32 ranks; WS: the same with T's sign. */
#define HKI_INTEGER(X, T, WS, WU)                                                                                                \
    typedef T __attribute__((may_alias)) X##_elem;                                                                               \
    typedef T X##_acc;                                                                                                           \
    typedef WS X##_wide;                                                                                                         \
    typedef WU X##_uwide;                                                                                                        \
    enum { X##_step = 1, X##_scales = 0 };                                                                                       \
    static inline T X##_factor(const hki_reduction *r, bool finish) { return 0; }                                                \
    static inline T X##_load(const X##_elem *p) { return *p; }                                                                   \
    static inline void X##_put(X##_elem *p, T v, T m) { *p = v; }                                                                \
    static inline T X##_min(T a, T b) { return a < b ? a : b; }                                                                  \
    static inline T X##_max(T a, T b) { return a > b ? a : b; }
__extension__ typedef __int128 hki_i128;
__extension__ typedef unsigned __int128 hki_u128;
HKI_INTEGER(i8, int8_t, int64_t, uint64_t)
HKI_INTEGER(u8, uint8_t, uint64_t, uint64_t)
HKI_INTEGER(i16, int16_t, int64_t, uint64_t)
HKI_INTEGER(u16, uint16_t, uint64_t, uint64_t)
HKI_INTEGER(i32, int32_t, int64_t, uint64_t)
HKI_INTEGER(u32, uint32_t, uint64_t, uint64_t)
HKI_INTEGER(i64, int64_t, hki_i128, hki_u128)
HKI_INTEGER(u64, uint64_t, hki_u128, hki_u128)

/* What the finish multiplies by. 1 changes no value. Dividing by a power of two is exact, as 1/divisor is. */
static inline double factor64(const hki_reduction *r, bool finish)
{
    if (!finish || r->finish == HKI_FINISH_NONE) return 1;
    return r->finish == HKI_FINISH_AVG ? 1.0 / r->divisor : r->scale;
}

/* Two minima, one for each order, differ only where the operands are zeros of different sign or one is a NaN; or-ing their bits
 * then gives -0 or a NaN. Likewise and-ing two maxima gives +0, but NaNs need help. */
#define HKI_FLOAT_OPS(X, T, U, B, F)                                                                                             \
    static inline T X##_sum(T a, T b) { return a + b; }                                                                          \
    static inline T X##_prod(T a, T b) { return a * b; }                                                                         \
    static inline T X##_min(T a, T b)                                                                                            \
    {                                                                                                                            \
        const T x = a < b ? a : b, y = b < a ? b : a;                                                                            \
        return F(B(x) | B(y));                                                                                                   \
    }                                                                                                                            \
    static inline T X##_max(T a, T b)                                                                                            \
    {                                                                                                                            \
        const T x = a > b ? a : b, y = b > a ? b : a;                                                                            \
        return F((B(x) & B(y)) | (__builtin_isunordered(a, b) ? (U)-1 : 0));                                                     \
    }
/* The value scaled, with NaN made canonical: bits of T. */
#define HKI_SCALED(T, U, B, QNAN)                                                                                                \
    static inline U T##_scaled(T v, T m)                                                                                         \
    {                                                                                                                            \
        v *= m;                                                                                                                  \
        return __builtin_isunordered(v, v) ? QNAN : B(v);                                                                        \
    }
HKI_SCALED(float, uint32_t, bits32, HKI_QNAN32)
HKI_SCALED(double, uint64_t, bits64, HKI_QNAN64)

typedef float __attribute__((may_alias)) f32_elem;
typedef float f32_acc;
enum { f32_step = 1, f32_scales = 1 };
HKI_FLOAT_OPS(f32, float, uint32_t, bits32, float32)
static inline float f32_factor(const hki_reduction *r, bool finish) { return (float)factor64(r, finish); }
static inline float f32_load(const f32_elem *p) { return *p; }
static inline void f32_put(f32_elem *p, float v, float m) { *p = float32(float_scaled(v, m)); }

typedef double __attribute__((may_alias)) f64_elem;
typedef double f64_acc;
enum { f64_step = 1, f64_scales = 1 };
HKI_FLOAT_OPS(f64, double, uint64_t, bits64, float64)
static inline double f64_factor(const hki_reduction *r, bool finish) { return factor64(r, finish); }
static inline double f64_load(const f64_elem *p) { return *p; }
static inline void f64_put(f64_elem *p, double v, double m) { *p = float64(double_scaled(v, m)); }

#endif
