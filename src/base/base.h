/* SPDX-License-Identifier: Apache-2.0
 * What every room may use: assertions on our own bugs, small arithmetic, registries' common shape. Knows nothing of the system. */
#ifndef HKI_BASE_H
#define HKI_BASE_H

#include <hocket/hocket.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* A bug of ours, never bad input and never a peer's bytes: prints where and aborts, in release builds too. */
_Noreturn void hki_assert_fail(const char *what, const char *file, int line);
#define HKI_ASSERT(x) ((x) ? (void)0 : hki_assert_fail(#x, __FILE__, __LINE__))

#define HKI_COUNT(a) (sizeof(a) / sizeof *(a))
#define HKI_LINE 64 /* bytes of a cache line */
#define HKI_LIKELY(x) __builtin_expect(!!(x), 1)
#define HKI_UNLIKELY(x) __builtin_expect(!!(x), 0)

static inline size_t hki_min(size_t a, size_t b) { return a < b ? a : b; }
static inline size_t hki_max(size_t a, size_t b) { return a > b ? a : b; }
static inline size_t hki_round_up(size_t n, size_t to) { return (n + to - 1) / to * to; }
/* For so few bytes that a call of memcpy would cost more than the copy. */
static inline void hki_copy_small(uint8_t *to, const uint8_t *from, size_t bytes)
{
    for (; bytes >= 8; to += 8, from += 8, bytes -= 8) memcpy(to, from, 8);
    for (; bytes; bytes--) *to++ = *from++;
}
/* ceil(log2(n)), 0 for n <= 1. */
static inline uint32_t hki_log2_ceil(uint32_t n) { return n <= 1 ? 0 : 32u - (uint32_t)__builtin_clz(n - 1); }
/* floor(log2(n)), n >= 1. */
static inline uint32_t hki_log2_floor(uint32_t n) { return 31u - (uint32_t)__builtin_clz(n); }

/* A well-mixed 64-bit hash of (h, v): fold values one by one. splitmix64's finaliser (Steele, Lea, Flood 2014); the multiplication
 * first keeps pairs of small numbers apart. */
static inline uint64_t hki_mix(uint64_t h, uint64_t v)
{
    h = (h + 0x9e3779b97f4a7c15u) * 0xd1342543de82ef95u + v;
    h = (h ^ (h >> 30)) * 0xbf58476d1ce4e5b9u;
    h = (h ^ (h >> 27)) * 0x94d049bb133111ebu;
    return h ^ (h >> 31);
}
uint64_t hki_hash_bytes(uint64_t h, const void *bytes, size_t n);

/* Seeded chance, an argument wherever it is needed. */
typedef struct hki_prng { uint64_t state; } hki_prng;
uint64_t hki_prng_next(hki_prng *);
/* Uniform in [0, n), n >= 1. */
uint64_t hki_prng_below(hki_prng *, uint64_t n);

/* The only place that allocates. NULL when there is no memory; hki_free takes NULL. */
void *hki_alloc(size_t bytes);              /* zeroed, 64-byte aligned */
void *hki_grow(void *old, size_t old_bytes, size_t new_bytes); /* old stays valid on NULL */
void hki_free(void *);
/* Test hook: the n-th allocation from now fails (0 = never). */
void hki_alloc_fail_at(uint64_t n);
uint64_t hki_alloc_count(void);

/* Kind of a reduction, once a handle is resolved. */
typedef enum hki_rop { HKI_SUM, HKI_PROD, HKI_MIN, HKI_MAX, HKI_BAND, HKI_BOR, HKI_BXOR, HKI_USER, HKI_ROPS } hki_rop;
typedef enum hki_finish { HKI_FINISH_NONE, HKI_FINISH_AVG, HKI_FINISH_SCALE } hki_finish;

/* A reduction, resolved: AVG is SUM with a finish. */
typedef struct hki_reduction {
    hki_rop op;
    hki_finish finish;
    double scale;        /* HKI_FINISH_SCALE: the factor */
    uint32_t divisor;    /* HKI_FINISH_AVG: ranks */
    bool commutes;
    hk_op_fn user;       /* HKI_USER */
    void *user_arg;
} hki_reduction;

static inline bool hki_dtype_is_float(hk_dtype t) { return t >= HK_F16 && t <= HK_F64; }

#endif
