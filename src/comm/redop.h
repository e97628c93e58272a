/* SPDX-License-Identifier: Apache-2.0
 * hk_redop values as the kernels know them. */
#ifndef HKI_REDOP_H
#define HKI_REDOP_H
#include "comm/comm.h"

/* false if op is neither a constant nor a live handle. */
bool hki_redop_resolve(hk_redop op, uint32_t ranks, hki_reduction *);
#endif
