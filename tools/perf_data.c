/* SPDX-License-Identifier: Apache-2.0 */
#include "perf.h"

#include <math.h>
#include <string.h>

#define PERIOD 509 /* values repeat after so many elements: a prime, so that blocks of a power of two never fall on equal ones */

static bool is_float(hk_dtype t) { return t == HK_F16 || t == HK_BF16 || t == HK_F32 || t == HK_F64; }

/* ---- Numbers as elements */

/* f16 bits of x >= 0, rounded to nearest even. */
static uint16_t half(float x)
{
    if (!(x < 65520.0f)) return 0x7c00;
    int e = x > 0 ? ilogbf(x) : -14;
    if (e < -14) e = -14;
    const unsigned q = (unsigned)nearbyintf(ldexpf(x, 10 - e));
    return (uint16_t)(q < 1024 ? q : ((unsigned)(e + 15) << 10) + (q - 1024));
}

static uint16_t bfloat(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static void store_float(hk_dtype t, void *at, double v)
{
    const float f = (float)v;
    const uint16_t h = t == HK_F16 ? half(f) : bfloat(f);
    if (t == HK_F64) memcpy(at, &v, sizeof v);
    else if (t == HK_F32) memcpy(at, &f, sizeof f);
    else memcpy(at, &h, sizeof h);
}

/* Integers wrap: the low bytes. */
static void store_integer(hk_dtype t, void *at, uint64_t v)
{
    const uint8_t u8 = (uint8_t)v;
    const uint16_t u16 = (uint16_t)v;
    const uint32_t u32 = (uint32_t)v;
    switch (hk_dtype_size(t)) {
    case 1: memcpy(at, &u8, 1); break;
    case 2: memcpy(at, &u16, 2); break;
    case 4: memcpy(at, &u32, 4); break;
    default: memcpy(at, &v, 8); break;
    }
}

/* ---- What a rank's vector holds */

static unsigned value(const perf_run *r, int rank, size_t i)
{
    const unsigned k = (unsigned)(i % PERIOD), who = (unsigned)rank;
    const unsigned room = 256u / (unsigned)r->ranks, range = room > 64 ? 64 : room < 2 ? 2 : room; /* bf16 counts to 256 */
    switch (r->o->redop) {
    case HK_PROD: return (who + k) % 4 ? 1 : 2;
    case HK_MIN: case HK_MAX: return (who * 7 + k * 3 + 1) % 100;
    case HK_BAND: case HK_BOR: case HK_BXOR: return (who * 29 + k * 11 + 5) & 127;
    default: return (who * 7 + k * 3 + k / 16 + 1) % range;
    }
}

static uint64_t combine_integers(const perf_run *r, size_t i)
{
    uint64_t acc = value(r, 0, i);
    for (int p = 1; p < r->ranks; p++) {
        const uint64_t v = value(r, p, i);
        switch (r->o->redop) {
        case HK_PROD: acc *= v; break;
        case HK_MIN: acc = v < acc ? v : acc; break;
        case HK_MAX: acc = v > acc ? v : acc; break;
        case HK_BAND: acc &= v; break;
        case HK_BOR: acc |= v; break;
        case HK_BXOR: acc ^= v; break;
        default: acc += v; break;
        }
    }
    return r->o->redop == HK_AVG ? acc / (uint64_t)r->ranks : acc;
}

/* Exact up to the finish of AVG: one multiplication by 1/ranks in the accumulator type. */
static double combine_floats(const perf_run *r, size_t i)
{
    double acc = value(r, 0, i);
    for (int p = 1; p < r->ranks; p++) {
        const double v = value(r, p, i);
        switch (r->o->redop) {
        case HK_PROD: acc *= v; break;
        case HK_MIN: acc = v < acc ? v : acc; break;
        case HK_MAX: acc = v > acc ? v : acc; break;
        default: acc += v; break;
        }
    }
    if (r->o->redop != HK_AVG) return acc;
    const double part = 1.0 / r->ranks;
    return r->o->dtype == HK_F64 ? acc * part : (double)((float)acc * (float)part);
}

static void element(const perf_run *r, int source, size_t i, void *at)
{
    const hk_dtype t = r->o->dtype;
    if (is_float(t)) store_float(t, at, source == PERF_REDUCED ? combine_floats(r, i) : value(r, source, i));
    else store_integer(t, at, source == PERF_REDUCED ? combine_integers(r, i) : value(r, source, i));
}

/* The first period, or all of it; returns its elements. */
static size_t period(const perf_run *r, int source, size_t first, size_t count, char *out)
{
    const size_t n = count < PERIOD ? count : PERIOD, size = hk_dtype_size(r->o->dtype);
    for (size_t k = 0; k < n; k++) element(r, source, first + k, out + k * size);
    return n;
}

void perf_fill(const perf_run *r, void *buf, int source, size_t first, size_t count)
{
    const size_t size = hk_dtype_size(r->o->dtype);
    size_t done = period(r, source, first, count, buf);
    while (done < count) { /* what is there is whole periods: it doubles */
        const size_t n = count - done < done ? count - done : done;
        memcpy((char *)buf + done * size, buf, n * size);
        done += n;
    }
}

uint64_t perf_wrong(const perf_run *r, const void *buf, int source, size_t first, size_t count)
{
    char want[PERIOD * 8];
    const size_t size = hk_dtype_size(r->o->dtype), n = period(r, source, first, count, want);
    uint64_t wrong = 0;
    for (size_t done = 0; done < count; done += n) {
        const char *got = (const char *)buf + done * size;
        const size_t here = count - done < n ? count - done : n;
        if (!memcmp(got, want, here * size)) continue;
        for (size_t k = 0; k < here; k++) wrong += memcmp(got + k * size, want + k * size, size) != 0;
    }
    return wrong;
}
