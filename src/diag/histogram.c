/* SPDX-License-Identifier: Apache-2.0 */
#include "diag/histogram.h"

/* Up to 15 ns a bin each; beyond, the three bits after the leading one. */
static size_t bin_of(uint64_t ns)
{
    if (ns < 16) return (size_t)ns;
    const unsigned top = 63u - (unsigned)__builtin_clzll(ns); /* >= 4 */
    return hki_min((size_t)(top - 2) * 8 + ((ns >> (top - 3)) & 7), HKI_BINS - 1);
}

static uint64_t middle(size_t bin)
{
    if (bin < 16) return bin;
    const unsigned top = (unsigned)(bin / 8) + 2;
    return ((8 + (uint64_t)(bin % 8)) << (top - 3)) + ((uint64_t)1 << (top - 4));
}

void hki_histogram_add(hki_histogram *h, uint64_t ns)
{
    h->n++;
    h->bin[bin_of(ns)]++;
}

uint64_t hki_histogram_at(const hki_histogram *h, double q)
{
    const uint64_t want = (uint64_t)(q * (double)h->n + 0.999999);
    uint64_t seen = 0;
    for (size_t i = 0; i < HKI_BINS; i++)
        if ((seen += h->bin[i]) >= want && seen) return middle(i);
    return 0;
}
