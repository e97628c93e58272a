/* SPDX-License-Identifier: Apache-2.0
 * Folds against an oracle that shares no code with them: one element at a time, each step in a type wide enough that rounding its
 * result once more is the same as rounding once (double for f32, 113 bits for f64, 128-bit integers). */
#include "kern/kern.h"

#include <float.h>
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#if defined(__x86_64__)
#include <xmmintrin.h>
__extension__ typedef __float128 quad;
#else
typedef long double quad;
#endif
__extension__ typedef __int128 i128;
__extension__ typedef unsigned __int128 u128;

enum { MAX_COUNT = 4099, MAX_SRC = 9, GUARD = 64, SLACK = 64, EXHAUSTIVE = 65536 };
static const size_t counts[] = {0, 1, 2, 7, 8, 15, 16, 17, 31, 32, 33, 63, 64, 65, 1000, MAX_COUNT};
static const unsigned source_counts[] = {1, 2, 3, 4, 5, 9};
static const uint64_t quiet[HK_DTYPES] = {
    [HK_F16] = 0x7e00, [HK_BF16] = 0x7fc0, [HK_F32] = 0x7fc00000, [HK_F64] = 0x7ff8000000000000};

/* ---- Oracle ------------------------------------------------------------------------------------------------------- */

static uint64_t get(hk_dtype t, const void *p, size_t i)
{
    const size_t size = hk_dtype_size(t);
    uint64_t v = 0;
    memcpy(&v, (const char *)p + i * size, size); /* little-endian machines only */
    return v;
}

static void set(hk_dtype t, void *p, size_t i, uint64_t v)
{
    const size_t size = hk_dtype_size(t);
    memcpy((char *)p + i * size, &v, size);
}

static bool is_signed(hk_dtype t) { return t <= HK_I64 && t % 2 == 0; }

static i128 int_value(hk_dtype t, uint64_t bits)
{
    switch (t) {
    case HK_I8: return (int8_t)bits;
    case HK_I16: return (int16_t)bits;
    case HK_I32: return (int32_t)bits;
    case HK_I64: return (int64_t)bits;
    default: return (i128)(bits & (UINT64_MAX >> (64 - 8 * hk_dtype_size(t))));
    }
}

static double small_float_value(uint64_t bits, int mantissa, int bias)
{
    const int width = 15 - mantissa, field = (int)(bits >> mantissa) & ((1 << width) - 1);
    const double fraction = (double)(bits & ((1u << mantissa) - 1)), sign = bits & 0x8000 ? -1 : 1;
    if (field == (1 << width) - 1) return fraction != 0 ? (double)NAN : sign * (double)INFINITY;
    if (!field) return sign * ldexp(fraction, 1 - bias - mantissa);
    return sign * ldexp(fraction + (1 << mantissa), field - bias - mantissa);
}

static uint64_t small_float_bits(double v, int mantissa, int bias)
{
    const uint64_t sign = signbit(v) ? 0x8000 : 0, infinity = (uint64_t)(0x7fff >> mantissa) << mantissa;
    v = fabs(v);
    if (v == 0) return sign;
    if (isinf(v)) return sign | infinity;
    int e = ilogb(v);
    if (e < 1 - bias) e = 1 - bias;
    const double units = rint(ldexp(v, mantissa - e)); /* ties to even; a carry moves to the next exponent */
    const uint64_t bits = (uint64_t)units + ((uint64_t)(e + bias - 1) << mantissa);
    return sign | (bits < infinity ? bits : infinity);
}

static double float_value(hk_dtype t, uint64_t bits)
{
    double d;
    float f;
    if (t == HK_F16) return small_float_value(bits, 10, 15);
    if (t == HK_BF16) return small_float_value(bits, 7, 127);
    if (t == HK_F64) return memcpy(&d, &bits, 8), d;
    return memcpy(&f, &bits, 4), (double)f;
}

static uint64_t float_bits(hk_dtype t, double v)
{
    uint64_t bits = 0;
    const float f = (float)v;
    if (isnan(v)) return quiet[t];
    if (t == HK_F16) return small_float_bits(v, 10, 15);
    if (t == HK_BF16) return small_float_bits(v, 7, 127);
    if (t == HK_F64) memcpy(&bits, &v, 8);
    else memcpy(&bits, &f, 4);
    return bits;
}

static double least(double a, double b)
{
    if (isnan(a) || isnan(b)) return (double)NAN;
    if (a == b) return signbit(a) ? a : b;
    return a < b ? a : b;
}

static double float_step(hk_dtype t, hki_rop op, double a, double b)
{
    if (op == HKI_MIN) return least(a, b);
    if (op == HKI_MAX) return -least(-a, -b);
    if (t == HK_F64) return (double)(op == HKI_SUM ? (quad)a + b : (quad)a * b);
    return (float)(op == HKI_SUM ? a + b : a * b);
}

static uint64_t float_finish(hk_dtype t, const hki_reduction *r, double v)
{
    if (r->finish == HKI_FINISH_NONE) return float_bits(t, v);
    double m = r->finish == HKI_FINISH_AVG ? 1.0 / r->divisor : r->scale;
    if (t != HK_F64) m = (float)m;
    return float_bits(t, float_step(t, HKI_PROD, v, m));
}

static i128 int_step(hki_rop op, i128 a, i128 b)
{
    switch (op) {
    case HKI_SUM: return (i128)((u128)a + (u128)b);
    case HKI_PROD: return (i128)((u128)a * (u128)b);
    case HKI_MIN: return a < b ? a : b;
    case HKI_MAX: return a > b ? a : b;
    case HKI_BAND: return a & b;
    case HKI_BOR: return a | b;
    default: return a ^ b;
    }
}

/* Products of small types wrap at 64 bits before the division, those of 64-bit types at 128. */
static uint64_t int_finish(hk_dtype t, const hki_reduction *r, i128 v)
{
    if (r->finish == HKI_FINISH_NONE) return (uint64_t)v;
    if (hk_dtype_size(t) < 8) v = is_signed(t) ? (i128)(int64_t)v : (i128)(uint64_t)v;
    return (uint64_t)(is_signed(t) ? v / (i128)r->divisor : (i128)((u128)v / r->divisor));
}

/* Order matters: a * 3 + b in the bits of the type. */
static void user_op(void *acc, const void *src, size_t count, hk_dtype t, void *arg)
{
    ++*(size_t *)arg;
    for (size_t i = 0; i < count; i++) set(t, acc, i, get(t, acc, i) * 3 + get(t, src, i));
}

static uint64_t expect(hk_dtype t, const uint64_t *v, unsigned n, const hki_reduction *r, bool apply)
{
    hki_reduction plain = *r;
    if (!apply) plain.finish = HKI_FINISH_NONE;
    uint64_t bits = v[0];
    if (r->op == HKI_USER) {
        for (unsigned k = 1; k < n; k++) bits = bits * 3 + v[k];
        if (plain.finish == HKI_FINISH_NONE) return bits;
        char one[8];
        set(t, one, 0, bits);
        bits = get(t, one, 0);
        return hki_dtype_is_float(t) ? float_finish(t, &plain, float_value(t, bits)) : int_finish(t, &plain, int_value(t, bits));
    }
    if (n == 1 && plain.finish == HKI_FINISH_NONE) return bits; /* a copy, whatever the NaN */
    if (hki_dtype_is_float(t)) {
        double acc = float_value(t, bits);
        for (unsigned k = 1; k < n; k++) acc = float_step(t, r->op, acc, float_value(t, v[k]));
        return float_finish(t, &plain, acc);
    }
    i128 acc = int_value(t, bits);
    for (unsigned k = 1; k < n; k++) acc = int_step(r->op, acc, int_value(t, v[k]));
    return int_finish(t, &plain, acc);
}

/* ---- Inputs ------------------------------------------------------------------------------------------------------- */

static const double special_floats[] = {0, -0.0, 1, -1, (double)INFINITY, -(double)INFINITY, 1e-42, -1e-42, 5e-8, 6e-5, -6.1e-5,
                                        65504, -65504, 1e-310, 4.9e-324, 3.4e38, 1.7e308, FLT_MIN, DBL_MIN};

/* Mostly values that stay apart from infinity, some special, some any bits (so every kind of NaN). */
static uint64_t draw(hk_dtype t, hki_prng *g)
{
    const uint64_t kind = hki_prng_below(g, 8), bits = hki_prng_next(g);
    if (!hki_dtype_is_float(t) || kind == 0) return kind == 1 && !hki_dtype_is_float(t) ? bits % 5 - 2 : bits;
    if (kind == 1) return float_bits(t, special_floats[bits % HKI_COUNT(special_floats)]);
    if (kind == 2 && bits % 4 == 0) return bits % 8 ? quiet[t] : quiet[t] + 1 + (quiet[t] >> 1 & ~quiet[t]);
    return float_bits(t, ldexp((double)(int64_t)bits, -61 - (int)(bits % 7)));
}

typedef struct buffer { unsigned char raw[GUARD + SLACK + MAX_COUNT * 8 + GUARD] __attribute__((aligned(64))); } buffer;

static void *buffer_at(buffer *b, size_t offset) { return b->raw + GUARD + offset; }

static void buffer_reset(buffer *b) { memset(b->raw, 0xa5, sizeof b->raw); }

static void assert_guards(const buffer *b, size_t offset, size_t n)
{
    static unsigned char untouched[GUARD + SLACK];
    memset(untouched, 0xa5, sizeof untouched);
    assert_memory_equal(b->raw, untouched, GUARD + offset);
    assert_memory_equal(b->raw + GUARD + offset + n, untouched, GUARD);
}

static buffer sources[MAX_SRC], outs[HKI_FOLD_MAX_DST];
static uint64_t values[MAX_SRC][MAX_COUNT];
static unsigned char wanted[MAX_COUNT * 8];
static size_t user_calls;

static void load_sources(hk_dtype t, unsigned nsrc, size_t count, size_t offset)
{
    for (unsigned k = 0; k < nsrc; k++) {
        buffer_reset(&sources[k]);
        for (size_t i = 0; i < count; i++) set(t, buffer_at(&sources[k], offset), i, values[k][i]);
    }
}

/* alias: dst[0] is that source, or none if negative. */
static void run_one(hk_dtype t, const hki_reduction *r, unsigned nsrc, unsigned ndst, size_t count, int alias, bool apply,
                    size_t offset)
{
    const size_t bytes = count * hk_dtype_size(t);
    const void *src[MAX_SRC];
    void *dst[HKI_FOLD_MAX_DST];
    buffer *to[HKI_FOLD_MAX_DST];
    load_sources(t, nsrc, count, offset);
    for (unsigned k = 0; k < nsrc; k++) src[k] = buffer_at(&sources[k], offset);
    for (unsigned k = 0; k < ndst; k++) {
        buffer_reset(&outs[k]);
        to[k] = k == (ndst > 1 ? (unsigned)(alias & 1) : 0) && alias >= 0 ? &sources[alias] : &outs[k];
        dst[k] = buffer_at(to[k], offset);
    }
    hki_fold(t, dst, ndst, src, nsrc, count, r, apply);
    for (unsigned k = 0; k < ndst; k++) {
        if (memcmp(dst[k], wanted, bytes)) {
            size_t i = 0;
            while (get(t, dst[k], i) == get(t, wanted, i)) i++;
            print_error("%s %s op %d finish %d apply %d nsrc %u ndst %u count %zu alias %d: dst %u [%zu] = %llx, not %llx\n",
                        hki_kern_isa(), hk_dtype_name(t), r->op, r->finish, apply, nsrc, ndst, count, alias, k, i,
                        (unsigned long long)get(t, dst[k], i), (unsigned long long)get(t, wanted, i));
            fail();
        }
        assert_guards(to[k], offset, bytes);
    }
    for (unsigned k = 0; k < nsrc; k++) {
        if ((int)k == alias) continue;
        assert_guards(&sources[k], offset, bytes);
        for (size_t i = 0; i < count; i += 61) assert_true(!((get(t, src[k], i) ^ values[k][i]) << (64 - 8 * hk_dtype_size(t))));
    }
}

static void run_count(hk_dtype t, const hki_reduction *r, unsigned nsrc, size_t count, bool apply)
{
    for (size_t i = 0; i < count; i++) {
        uint64_t v[MAX_SRC];
        for (unsigned k = 0; k < nsrc; k++) v[k] = values[k][i];
        set(t, wanted, i, expect(t, v, nsrc, r, apply));
    }
    const size_t one = hk_dtype_size(t);
    run_one(t, r, nsrc, 1, count, -1, apply, 0);
    run_one(t, r, nsrc, 2, count, -1, apply, one);
    run_one(t, r, nsrc, HKI_FOLD_MAX_DST, count, (int)(count % nsrc), apply, 5 * one);
    if (count > 65 && r->op != HKI_SUM) return; /* aliasing of long ones: the loops are the same */
    for (int k = 0; k < (int)nsrc; k++) {
        run_one(t, r, nsrc, 1, count, k, apply, one);
        run_one(t, r, nsrc, 2, count, k, apply, 3 * one);
    }
}

static void run_reduction(hk_dtype t, const hki_reduction *r)
{
    for (size_t n = 0; n < HKI_COUNT(source_counts); n++)
        for (size_t c = 0; c < HKI_COUNT(counts); c++)
            for (int apply = 0; apply < 2; apply++) {
                if (!apply && (r->finish == HKI_FINISH_NONE || (counts[c] > 65 && r->op != HKI_SUM))) continue;
                run_count(t, r, source_counts[n], counts[c], apply);
            }
}

static hki_reduction reduction(hki_rop op, hki_finish finish)
{
    return (hki_reduction){.op = op, .finish = finish, .scale = -0.3, .divisor = 3, .user = user_op, .user_arg = &user_calls};
}

/* Calls f once with each instruction set that this CPU has. */
#define FOR_ISAS(p)                                                                                                              \
    for (const hki_isa *const *p = hki_isas; *p; p++)                                                                            \
        if ((*p)->usable() && hki_kern_init((*p)->name))

/* ---- Tests -------------------------------------------------------------------------------------------------------- */

/* Must be first: nothing has chosen an instruction set yet. */
static void works_without_init(void **state)
{
    int32_t a = 2, b = 40;
    void *d = &a;
    const void *s[] = {&a, &b};
    const hki_reduction r = {.op = HKI_SUM};
    hki_fold(HK_I32, &d, 1, s, 2, 1, &r, true);
    assert_int_equal(a, 42);
}

static void choosing(void **state)
{
    assert_string_equal(hki_kern_init("ref"), "ref");
    assert_null(hki_kern_init("no such"));
    assert_string_equal(hki_kern_isa(), "ref");
    int best = -1;
    const char *name = NULL;
    for (const hki_isa *const *p = hki_isas; *p; p++)
        if ((*p)->usable() && (*p)->rank > best) best = (*p)->rank, name = (*p)->name;
    assert_string_equal(hki_kern_init(NULL), name);
    assert_string_equal(hki_kern_isa(), name);
}

static void supported(void **state)
{
    for (hk_dtype t = 0; t < HK_DTYPES; t++)
        for (hki_rop op = 0; op < HKI_ROPS; op++)
            for (hki_finish f = HKI_FINISH_NONE; f <= HKI_FINISH_SCALE; f++) {
                const hki_reduction r = reduction(op, f);
                const bool bitwise = op == HKI_BAND || op == HKI_BOR || op == HKI_BXOR;
                assert_int_equal(hki_fold_supported(t, &r), hki_dtype_is_float(t) ? !bitwise : f != HKI_FINISH_SCALE);
            }
    hki_reduction r = reduction(HKI_SUM, HKI_FINISH_AVG);
    assert_false(hki_fold_supported(HK_DTYPES, &r));
    r.divisor = 0;
    assert_false(hki_fold_supported(HK_F32, &r));
}

static void oracle_dtype(hk_dtype t)
{
    hki_prng g = {.state = 77 + (uint64_t)t};
    for (unsigned k = 0; k < MAX_SRC; k++)
        for (size_t i = 0; i < MAX_COUNT; i++) values[k][i] = draw(t, &g);
    for (hki_rop op = 0; op < HKI_ROPS; op++)
        for (hki_finish f = HKI_FINISH_NONE; f <= HKI_FINISH_SCALE; f++) {
            const hki_reduction r = reduction(op, f);
            if (!hki_fold_supported(t, &r)) continue;
            run_reduction(t, &r);
        }
}

static void against_oracle(void **state)
{
    FOR_ISAS(p)
    {
        for (hk_dtype t = 0; t < HK_DTYPES; t++) oracle_dtype(t);
    }
}

/* Every half, alone: conversion there and back, with a factor that rounds and one that makes subnormals. */
static void every_half(void **state)
{
    static const double scales[] = {1, 1.0 / 3, 0x1p-20, 0x1.004p-13, 0x1p-120, 7};
    static uint16_t in[EXHAUSTIVE], out[EXHAUSTIVE];
    for (unsigned i = 0; i < EXHAUSTIVE; i++) in[i] = (uint16_t)i;
    FOR_ISAS(p)
    {
        for (hk_dtype t = HK_F16; t <= HK_BF16; t++)
            for (size_t k = 0; k < HKI_COUNT(scales); k++) {
                const hki_reduction r = {.op = HKI_SUM, .finish = HKI_FINISH_SCALE, .scale = scales[k]};
                void *d = out;
                const void *s = in;
                hki_fold(t, &d, 1, &s, 1, EXHAUSTIVE, &r, true);
                for (unsigned i = 0; i < EXHAUSTIVE; i++) {
                    const uint64_t v = i;
                    assert_int_equal(out[i], expect(t, &v, 1, &r, true));
                }
            }
    }
}

/* Past the caches, with and without a destination in them, and element by element: the same bits, and no more of them. */
static void other_ways(hk_dtype t, const hki_reduction *r, const void *const *src, unsigned nsrc, size_t n, const void *ref)
{
    static uint8_t outs_[3][2003 * 8 + 128];
    const hki_folder f = hki_fold_find(t, r);
    const size_t size = hk_dtype_size(t), counts_[] = {1, 2, 3, HKI_FEW, n};
    for (size_t c = 0; c < HKI_COUNT(counts_); c++)
        for (int near = 0; near < 2; near++) {
            const size_t bytes = counts_[c] * size, off = c % 2 ? size : 64;
            void *far[] = {outs_[0] + off, outs_[1] + 64};
            memset(outs_, 0xa5, sizeof outs_);
            hki_fold_far(f, size, near ? outs_[2] + off : NULL, far, 2, src, nsrc, counts_[c], r, true);
            for (int k = 0; k < 2 + near; k++) {
                const uint8_t *got = k == 1 ? outs_[1] + 64 : outs_[k] + off;
                assert_memory_equal(got, ref, bytes);
                assert_int_equal(got[bytes], 0xa5);
                assert_int_equal(got[-1], 0xa5);
            }
            if (!f.few || counts_[c] > HKI_FEW || nsrc < 2) continue;
            memset(outs_, 0xa5, sizeof outs_);
            f.few(far[0], src, nsrc, counts_[c], r, true);
            assert_memory_equal(far[0], ref, bytes);
            assert_int_equal(((uint8_t *)far[0])[bytes], 0xa5);
        }
}

static void same_bits_fold(hk_dtype t, const hki_reduction *r, unsigned nsrc, const char *name)
{
    enum { N = 2003 };
    static uint64_t in[MAX_SRC][N], ref[N], out[N];
    static hki_prng g = {.state = 5};
    const void *src[MAX_SRC];
    void *d = ref, *e = out;
    for (unsigned k = 0; k < nsrc; k++) {
        for (size_t i = 0; i < N; i++) in[k][i] = hki_prng_next(&g);
        const uint64_t quiet_bit = quiet[t] & -quiet[t]; /* NaNs of every kind and sign, often enough to meet each other */
        if (hki_dtype_is_float(t))
            for (size_t i = k; i < N; i += 3) set(t, in[k], i, get(t, in[k], i) | (i % 2 ? quiet[t] : quiet[t] ^ quiet_bit));
        src[k] = in[k];
    }
    hki_kern_init("ref");
    hki_fold(t, &d, 1, src, nsrc, N, r, true);
    hki_kern_init(name);
    hki_fold(t, &e, 1, src, nsrc, N, r, true);
    assert_memory_equal(ref, out, N * hk_dtype_size(t));
    other_ways(t, r, src, nsrc, N, ref);
}

static void same_bits(void **state)
{
    FOR_ISAS(p)
    for (hk_dtype t = 0; t < HK_DTYPES; t++)
        for (hki_rop op = 0; op < HKI_USER; op++)
            for (hki_finish f = HKI_FINISH_NONE; f <= HKI_FINISH_SCALE; f++) {
                const hki_reduction r = reduction(op, f);
                if (!hki_fold_supported(t, &r)) continue;
                for (unsigned n = 1; n <= MAX_SRC; n++) same_bits_fold(t, &r, n, (*p)->name);
            }
}

/* One element a rank, as a table of facts. */
static uint64_t fact(hk_dtype t, hki_rop op, hki_finish f, unsigned n, const uint64_t *v)
{
    const hki_reduction r = {.op = op, .finish = f, .divisor = n, .scale = 2};
    uint64_t in[MAX_SRC] = {0}, out = 0;
    const void *src[MAX_SRC];
    void *d = &out;
    for (unsigned k = 0; k < n; k++) set(t, &in[k], 0, v[k]), src[k] = &in[k];
    hki_fold(t, &d, 1, src, n, 1, &r, true);
    return out;
}
#define FACT(t, op, finish, ...)                                                                                                 \
    fact(t, op, finish, sizeof((uint64_t[]){__VA_ARGS__}) / 8, (const uint64_t[]){__VA_ARGS__})
#define N(x) ((uint64_t)(int64_t)(x))
#define H(x) float_bits(HK_F16, x)
#define EIGHT(x) (x), (x), (x), (x), (x), (x), (x), (x)

static void integer_facts(void **state)
{
    FOR_ISAS(p)
    {
        assert_int_equal((int8_t)FACT(HK_I8, HKI_SUM, 0, 100, 100, 100, 100), -112);
        assert_int_equal(FACT(HK_U8, HKI_SUM, 0, 100, 100, 100, 100), 144);
        assert_int_equal((int32_t)FACT(HK_I32, HKI_SUM, 0, 2000000000, 2000000000), -294967296);
        assert_int_equal((int16_t)FACT(HK_I16, HKI_PROD, 0, N(-32768), N(-1)), -32768);
        assert_int_equal(FACT(HK_U16, HKI_PROD, 0, 65535, 65535), 1);
        assert_int_equal((int32_t)FACT(HK_I32, HKI_MAX, 0, N(-1), 0), 0);
        assert_int_equal((uint32_t)FACT(HK_U32, HKI_MAX, 0, N(-1), 0), UINT32_MAX);
        assert_true((int64_t)FACT(HK_I64, HKI_MIN, 0, N(INT64_MIN), N(INT64_MAX)) == INT64_MIN);
        assert_true((int64_t)FACT(HK_I64, HKI_MAX, 0, N(INT64_MIN), N(INT64_MAX)) == INT64_MAX);
        assert_true(FACT(HK_U64, HKI_MIN, 0, N(INT64_MIN), N(INT64_MAX)) == INT64_MAX);
        assert_int_equal((int32_t)FACT(HK_I32, HKI_MIN, 0, N(INT32_MIN), INT32_MAX, 0), INT32_MIN);
        assert_int_equal((int8_t)FACT(HK_I8, HKI_SUM, HKI_FINISH_AVG, 100, 100, 100, 100), 100);
        assert_int_equal((int8_t)FACT(HK_I8, HKI_SUM, HKI_FINISH_AVG, N(-3), N(-4)), -3); /* -3.5 toward zero */
        assert_true((int64_t)FACT(HK_I64, HKI_SUM, HKI_FINISH_AVG, N(INT64_MAX), N(INT64_MAX), N(INT64_MAX)) == INT64_MAX);
        assert_true((int64_t)FACT(HK_I64, HKI_SUM, HKI_FINISH_AVG, N(INT64_MIN), N(INT64_MIN)) == INT64_MIN);
        assert_true(FACT(HK_U64, HKI_SUM, HKI_FINISH_AVG, UINT64_MAX, UINT64_MAX) == UINT64_MAX);
    }
}

static void float_facts(void **state)
{
    FOR_ISAS(p)
    {
        assert_int_equal(FACT(HK_F16, HKI_SUM, HKI_FINISH_AVG, EIGHT(H(10000))), H(10000));
        assert_int_equal(FACT(HK_F16, HKI_SUM, 0, EIGHT(H(10000))), 0x7c00);
        assert_int_equal(FACT(HK_F16, HKI_SUM, HKI_FINISH_AVG, 1, 2, 3, 2), 2); /* subnormals */
        assert_int_equal(FACT(HK_F16, HKI_SUM, HKI_FINISH_AVG, 1, 0), 0);       /* half of the least: to even */
        assert_int_equal(FACT(HK_F16, HKI_SUM, HKI_FINISH_AVG, 3, 0), 2);       /* 1.5 of it: to even */
        assert_int_equal(FACT(HK_F16, HKI_SUM, HKI_FINISH_SCALE, H(30000), H(2760)), 0x7c00); /* 65520 is halfway */
        assert_int_equal(FACT(HK_F16, HKI_SUM, HKI_FINISH_SCALE, H(30000), H(2750)), 0x7bff); /* 2750 is 2750 */
        assert_int_equal(FACT(HK_BF16, HKI_SUM, 0, 0x3f80, 0x3b80), 0x3f80);                  /* 1 + 2^-8: to even */
        assert_int_equal(FACT(HK_BF16, HKI_SUM, 0, 0x3f81, 0x3b80), 0x3f82);
        assert_int_equal(FACT(HK_BF16, HKI_SUM, 0, 0x7f7f, 0x7f7f), 0x7f80);
        for (hk_dtype t = HK_F16; t <= HK_F64; t++) {
            const uint64_t minus = float_bits(t, -0.0), inf = float_bits(t, (double)INFINITY), one = float_bits(t, 1);
            const uint64_t odd_nan = quiet[t] | minus | 1, signalling = inf | 1;
            assert_true(FACT(t, HKI_MIN, 0, 0, minus) == minus && FACT(t, HKI_MIN, 0, minus, 0) == minus);
            assert_true(FACT(t, HKI_MAX, 0, 0, minus) == 0 && FACT(t, HKI_MAX, 0, minus, 0) == 0);
            assert_true(FACT(t, HKI_SUM, 0, inf, inf | minus) == quiet[t]);
            for (hki_rop op = HKI_SUM; op <= HKI_MAX; op++) {
                assert_true(FACT(t, op, 0, one, odd_nan) == quiet[t] && FACT(t, op, 0, odd_nan, one) == quiet[t]);
                assert_true(FACT(t, op, 0, one, signalling) == quiet[t] && FACT(t, op, 0, signalling, inf, one) == quiet[t]);
            }
        }
    }
}

/* Products of 2x2 matrices of bytes packed in u32: associative, not commutative. */
static void matrix_op(void *acc, const void *src, size_t count, hk_dtype t, void *arg)
{
    assert_int_equal(t, HK_U32);
    for (size_t i = 0; i < count; i++) {
        uint8_t a[4], b[4];
        memcpy(a, (char *)acc + 4 * i, 4);
        memcpy(b, (const char *)src + 4 * i, 4);
        const uint8_t c[4] = {(uint8_t)(a[0] * b[0] + a[1] * b[2]), (uint8_t)(a[0] * b[1] + a[1] * b[3]),
                              (uint8_t)(a[2] * b[0] + a[3] * b[2]), (uint8_t)(a[2] * b[1] + a[3] * b[3])};
        memcpy((char *)acc + 4 * i, c, 4);
    }
}

static void user_order(void **state)
{
    enum { RANKS = 5, COUNT = 3000 };
    static uint32_t in[RANKS][COUNT], want[COUNT];
    hki_prng g = {.state = 9};
    const hki_reduction r = {.op = HKI_USER, .user = matrix_op};
    for (unsigned to = 0; to < RANKS; to++) {
        const void *src[RANKS];
        for (unsigned k = 0; k < RANKS; k++) {
            src[k] = in[k];
            for (size_t i = 0; i < COUNT; i++) in[k][i] = (uint32_t)hki_prng_next(&g);
        }
        memcpy(want, in[0], sizeof want);
        for (unsigned k = 1; k < RANKS; k++) matrix_op(want, in[k], COUNT, HK_U32, NULL);
        void *d = in[to];
        hki_fold(HK_U32, &d, 1, src, RANKS, COUNT, &r, true);
        assert_memory_equal(in[to], want, sizeof want);
    }
}

/* Buffers of exactly the right size on the heap: reads beyond are seen by a sanitizer. */
static void exact_buffers(void **state)
{
    FOR_ISAS(p)
    for (hk_dtype t = 0; t < HK_DTYPES; t++)
        for (size_t count = 1; count < 80; count++)
            for (unsigned n = 1; n <= 5; n++) {
                const hki_reduction r = {.op = HKI_SUM};
                const void *src[5];
                void *own[5], *d = malloc(count * hk_dtype_size(t));
                assert_non_null(d);
                for (unsigned k = 0; k < n; k++) {
                    src[k] = own[k] = calloc(count, hk_dtype_size(t));
                    assert_non_null(own[k]);
                }
                hki_fold(t, &d, 1, src, n, count, &r, true);
                for (size_t i = 0; i < count; i++) assert_true(get(t, d, i) == 0);
                for (unsigned k = 0; k < n; k++) free(own[k]);
                free(d);
            }
}

#if defined(__x86_64__)
/* Rounding toward zero, FTZ and DAZ in the calling thread. */
static void caller_environment(void **state)
{
    enum { COUNT = 100, HOSTILE = 0x1f80 | 0x8000 | 0x0040 | 0x6000, SETTINGS = 0xffc0 };
    const unsigned saved = _mm_getcsr();
    hki_prng g = {.state = 4};
    FOR_ISAS(p)
    for (hk_dtype t = HK_F16; t <= HK_F64; t++)
        for (hki_rop op = HKI_SUM; op <= HKI_MAX; op++) {
            const hki_reduction r = reduction(op, HKI_FINISH_AVG);
            uint64_t a[COUNT], b[COUNT], out[COUNT], want[COUNT];
            void *d = out;
            const void *src[] = {a, b};
            for (size_t i = 0; i < COUNT; i++) {
                set(t, a, i, i % 2 ? draw(t, &g) : float_bits(t, ldexp(1, t == HK_F64 ? -1060 : t == HK_F16 ? -20 : -130)));
                set(t, b, i, i % 4 == 2 ? i : draw(t, &g));
                set(t, want, i, expect(t, (const uint64_t[]){get(t, a, i), get(t, b, i)}, 2, &r, true));
            }
            _mm_setcsr(HOSTILE);
            hki_fold(t, &d, 1, src, 2, COUNT, &r, true);
            const unsigned after = _mm_getcsr() & SETTINGS;
            _mm_setcsr(saved);
            assert_int_equal(after, HOSTILE);
            assert_memory_equal(out, want, COUNT * hk_dtype_size(t));
        }
}
#endif

static void copy_one(size_t n, size_t from, size_t to)
{
    static buffer in, out;
    assert_true(from < SLACK && to < SLACK && n <= MAX_COUNT * 8);
    static hki_prng g = {.state = 3};
    const uint64_t seed = hki_prng_next(&g);
    unsigned char *s = buffer_at(&in, from), *d = buffer_at(&out, to);
    buffer_reset(&out);
    for (size_t i = 0; i < n; i++) s[i] = (unsigned char)((seed + i * 0x9e3779b97f4a7c15u) >> 56);
    hki_copy(d, s, n);
    assert_memory_equal(d, s, n);
    assert_guards(&out, to, n);
    memset(d, 0, n);
    hki_copy_far(d, s, n);
    assert_memory_equal(d, s, n);
    assert_guards(&out, to, n);
}

static void copies(void **state)
{
    static const size_t edges[] = {0, 1, 15, 16, 17, 32, 33, 64, 2047, 2048, 2049, 2063, 2064, 2080, 2081, 2111, 2112, 2113, 2175,
                                   2176, 2177, 2303, 2304, 4095, 4096, 4097, 8191, 32768};
    static const size_t offsets[] = {0, 1, 3, 15, 16, 17, 31, 32, 33, 48, 63};
    FOR_ISAS(p)
    {
        for (size_t e = 0; e < HKI_COUNT(edges); e++)
            for (size_t a = 0; a < HKI_COUNT(offsets); a++)
                for (size_t b = 0; b < HKI_COUNT(offsets); b++) copy_one(edges[e], offsets[a], offsets[b]);
        for (size_t n = 2040; n < 2320; n++) copy_one(n, n % 7, n % 64);
    }
}

static void *switching_thread(void *arg)
{
    const unsigned id = *(unsigned *)arg;
    static const hki_reduction r = {.op = HKI_SUM};
    for (int i = 0; i < 2000; i++) {
        float a[9] = {1, 2, 3, 4, 5, 6, 7, 8, 9};
        void *d = a;
        const void *s[] = {a, a};
        if (i % 16 == 0) hki_kern_init((i / 16 + id) % 2 ? "ref" : NULL);
        hki_fold(HK_F32, &d, 1, s, 2, 9, &r, true);
        for (int k = 0; k < 9; k++)
            if (a[k] != (float)(2 * k + 2)) return arg;
    }
    return NULL;
}

static void threads(void **state)
{
    pthread_t t[4];
    unsigned id[4] = {0, 1, 2, 3};
    for (int i = 0; i < 4; i++) assert_int_equal(pthread_create(&t[i], NULL, switching_thread, &id[i]), 0);
    for (int i = 0; i < 4; i++) {
        void *failed;
        assert_int_equal(pthread_join(t[i], &failed), 0);
        assert_null(failed);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(works_without_init), cmocka_unit_test(choosing),      cmocka_unit_test(supported),
        cmocka_unit_test(integer_facts),      cmocka_unit_test(float_facts),   cmocka_unit_test(user_order),
        cmocka_unit_test(every_half),         cmocka_unit_test(same_bits),     cmocka_unit_test(against_oracle),
        cmocka_unit_test(exact_buffers),      cmocka_unit_test(copies),        cmocka_unit_test(threads),
#if defined(__x86_64__)
        cmocka_unit_test(caller_environment),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
