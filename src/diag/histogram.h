/* SPDX-License-Identifier: Apache-2.0
 * A histogram of nanoseconds in fixed memory: eight bins an octave, so that a quantile is right within 7 %; from 1 ns to 73 min. */
#ifndef HKI_HISTOGRAM_H
#define HKI_HISTOGRAM_H

#include "base/base.h"

#define HKI_BINS (40 * 8)

typedef struct hki_histogram {
    uint64_t n;
    uint32_t bin[HKI_BINS];
} hki_histogram;

void hki_histogram_add(hki_histogram *, uint64_t ns);
/* The middle of the bin that holds the q-th part, 0 < q <= 1; 0 if it is empty. */
uint64_t hki_histogram_at(const hki_histogram *, double q);

#endif
