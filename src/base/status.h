/* SPDX-License-Identifier: Apache-2.0
 * The table behind hk_status_name, hk_status_string and `hocket info errors`. */
#ifndef HKI_STATUS_H
#define HKI_STATUS_H
#include "base/base.h"

typedef struct hki_status_info {
    hk_status status;
    const char *name, *meaning, *cause, *remedy;
} hki_status_info;

const hki_status_info *hki_status_table(size_t *n);
#endif
