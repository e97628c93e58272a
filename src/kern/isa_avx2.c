/* SPDX-License-Identifier: Apache-2.0
 * AVX2 and F16C: the reference's code through the vectoriser, f16 and bf16 by hand. Compiled without these
 * instruction sets (another CPU, or their options missing) it is an entry that is never usable. */
#include "kern/elem.h"

#if defined(__AVX2__) && defined(__F16C__)
#include <immintrin.h>

typedef uint8_t hki_vec __attribute__((vector_size(32), aligned(1), may_alias));

/* Eight halves of either kind, combined in f32: TO and FROM convert. */
#define HKI_PACK(X, TO, FROM)                                                                                                    \
    typedef struct __attribute__((aligned(2), may_alias)) X##_elem { uint16_t half[8]; } X##_elem;                               \
    typedef __m256 X##_acc;                                                                                                      \
    enum { X##_step = 8, X##_scales = 1 };                                                                                       \
    static inline __m256 X##_factor(const hki_reduction *r, bool finish) { return _mm256_set1_ps(f32_factor(r, finish)); }       \
    static inline __m256 X##_load(const X##_elem *p) { return TO(_mm_loadu_si128((const __m128i *)p)); }                         \
    static inline void X##_put(X##_elem *p, __m256 v, __m256 m)                                                                  \
    {                                                                                                                            \
        v = _mm256_mul_ps(v, m);                                                                                                 \
        const __m256 quiet = _mm256_castsi256_ps(_mm256_set1_epi32(HKI_QNAN32));                                                 \
        v = _mm256_blendv_ps(v, quiet, _mm256_cmp_ps(v, v, _CMP_UNORD_Q));                                                       \
        _mm_storeu_si128((__m128i *)p, FROM(v));                                                                                 \
    }                                                                                                                            \
    static inline __m256 X##_sum(__m256 a, __m256 b) { return _mm256_add_ps(a, b); }                                             \
    static inline __m256 X##_prod(__m256 a, __m256 b) { return _mm256_mul_ps(a, b); }                                            \
    static inline __m256 X##_min(__m256 a, __m256 b) { return _mm256_or_ps(_mm256_min_ps(a, b), _mm256_min_ps(b, a)); }          \
    static inline __m256 X##_max(__m256 a, __m256 b)                                                                             \
    {                                                                                                                            \
        const __m256 both = _mm256_and_ps(_mm256_max_ps(a, b), _mm256_max_ps(b, a));                                             \
        return _mm256_or_ps(both, _mm256_cmp_ps(a, b, _CMP_UNORD_Q));                                                            \
    }

static inline __m128i f16_from(__m256 v) { return _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT); }
static inline __m256 bf16_to(__m128i h) { return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16)); }
static inline __m128i bf16_from(__m256 v)
{
    const __m256i b = _mm256_castps_si256(v), odd = _mm256_and_si256(_mm256_srli_epi32(b, 16), _mm256_set1_epi32(1));
    const __m256i up = _mm256_srli_epi32(_mm256_add_epi32(b, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff))), 16);
    return _mm_packus_epi32(_mm256_castsi256_si128(up), _mm256_extracti128_si256(up, 1));
}
HKI_PACK(f16, _mm256_cvtph_ps, f16_from)
HKI_PACK(bf16, bf16_to, bf16_from)

#define HKI_USER_FOLD(X) NULL
#define HKI_HAVE_AVX2
#include "kern/fold_body.h"

/* The head up to a line's boundary and the tail are stored the plain way. */
static void stream(void *dst, const void *src, size_t n)
{
    uint8_t *d = dst;
    const uint8_t *s = src;
    const size_t head = hki_min(n, (size_t)-(uintptr_t)d % HKI_LINE);
    copy(d, s, head);
    d += head, s += head, n -= head;
    for (; n >= HKI_LINE; d += HKI_LINE, s += HKI_LINE, n -= HKI_LINE) {
        const __m256i a = _mm256_loadu_si256((const __m256i *)s), b = _mm256_loadu_si256((const __m256i *)(s + 32));
        _mm256_stream_si256((__m256i *)d, a);
        _mm256_stream_si256((__m256i *)(d + 32), b);
    }
    copy(d, s, n);
}

static bool usable(void)
{
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c");
}
#else
static bool usable(void) { return false; }
#endif

const hki_isa hki_isa_avx2 = {
    .name = "avx2",
    .rank = 20,
    .usable = usable,
#ifdef HKI_HAVE_AVX2
    .fold = HKI_FOLD_TABLE,
    .copy = copy,
    .stream = stream,
#endif
};
