/* SPDX-License-Identifier: Apache-2.0 */
#include "base/base.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

_Noreturn void hki_assert_fail(const char *what, const char *file, int line)
{
    fprintf(stderr, "hocket: bug at %s:%d: %s is false\n", file, line, what);
    abort();
}

uint64_t hki_hash_bytes(uint64_t h, const void *bytes, size_t n)
{
    const unsigned char *p = bytes;
    h = hki_mix(h, n);
    for (; n >= 8; n -= 8, p += 8) {
        uint64_t v;
        memcpy(&v, p, 8);
        h = hki_mix(h, v);
    }
    uint64_t tail = 0;
    memcpy(&tail, p, n);
    return hki_mix(h, tail);
}

uint64_t hki_prng_next(hki_prng *g)
{
    g->state += 0x9e3779b97f4a7c15u;
    return hki_mix(g->state, 0);
}

uint64_t hki_prng_below(hki_prng *g, uint64_t n) { return hki_prng_next(g) % n; }

static _Atomic uint64_t allocations, failing;

static bool must_fail(void)
{
    const uint64_t n = atomic_fetch_add_explicit(&allocations, 1, memory_order_relaxed) + 1;
    return HKI_UNLIKELY(atomic_load_explicit(&failing, memory_order_relaxed) == n);
}

void hki_alloc_fail_at(uint64_t n) { atomic_store(&failing, n ? atomic_load(&allocations) + n : 0); }
uint64_t hki_alloc_count(void) { return atomic_load(&allocations); }

void *hki_alloc(size_t bytes)
{
    if (must_fail() || bytes > SIZE_MAX / 2) return NULL;
    const size_t n = hki_round_up(bytes ? bytes : 1, HKI_LINE);
    void *p = aligned_alloc(HKI_LINE, n);
    if (p) memset(p, 0, n);
    return p;
}

void *hki_grow(void *old, size_t old_bytes, size_t new_bytes)
{
    void *p = hki_alloc(new_bytes);
    if (!p) return NULL;
    if (old) memcpy(p, old, hki_min(old_bytes, new_bytes));
    hki_free(old);
    return p;
}

void hki_free(void *p) { free(p); }
