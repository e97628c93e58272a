/* SPDX-License-Identifier: Apache-2.0
 * Test values that can be wrong: small integers that differ by rank, block and position, exact in every type, with an oracle that
 * shares no code with the library. */
#ifndef TEST_VALUES_H
#define TEST_VALUES_H

#include <hocket/hocket.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

/* Element i of what rank r contributes; PROD gets powers of two so that products stay exact. */
static inline int64_t value_at(int r, size_t i, hk_redop op)
{
    const uint64_t h = (uint64_t)i * 2654435761u + (uint64_t)r * 40503u;
    const int64_t v = (int64_t)((h >> 7) % 6 + (uint64_t)r % 3);
    return op == HK_PROD ? (h >> 9) % 4 == 0 ? 2 : 1 : v;
}

static inline int64_t combine(hk_redop op, int64_t a, int64_t b)
{
    switch (op) {
    case HK_PROD: return a * b;
    case HK_MIN: return a < b ? a : b;
    case HK_MAX: return a > b ? a : b;
    case HK_BAND: return a & b;
    case HK_BOR: return a | b;
    case HK_BXOR: return a ^ b;
    default: return a + b;
    }
}

static inline uint16_t bf16_bits(float f)
{
    uint32_t u;
    memcpy(&u, &f, 4);
    return (uint16_t)((u + 0x7fff + ((u >> 16) & 1)) >> 16);
}

/* f16 bits of a float of moderate size (normal range), round to nearest even. */
static inline uint16_t f16_bits(float f)
{
    uint32_t u;
    memcpy(&u, &f, 4);
    if ((u & 0x7fffffff) == 0) return (uint16_t)(u >> 16);
    const uint32_t sign = u >> 16 & 0x8000, rest = (u & 0x7fffffff) - (112u << 23);
    return (uint16_t)(sign | ((rest + 0xfff + ((rest >> 13) & 1)) >> 13));
}

/* Stores v (divided by `divisor` as AVG does) as one element. */
static inline void store(void *at, hk_dtype t, int64_t v, int divisor)
{
    const float f = divisor > 1 ? (float)v * (float)(1.0 / divisor) : (float)v;
    const double d = divisor > 1 ? (double)v * (1.0 / divisor) : (double)v;
    const int64_t n = divisor > 1 ? v / divisor : v;
    const uint16_t h = t == HK_F16 ? f16_bits(f) : bf16_bits(f);
    switch (t) {
    case HK_F16: case HK_BF16: memcpy(at, &h, 2); break;
    case HK_F32: memcpy(at, &f, 4); break;
    case HK_F64: memcpy(at, &d, 8); break;
    default: memcpy(at, &n, hk_dtype_size(t)); break; /* little-endian: the low bytes are the wrapped value */
    }
}

#endif
