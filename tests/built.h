/* SPDX-License-Identifier: Apache-2.0
 * What this build consists of: tests leave out what was left out of it. */
#ifndef TEST_BUILT_H
#define TEST_BUILT_H

#include "algo/algo.h"
#include "net/net.h"

#include <string.h>

static inline bool built_with(const char *transport)
{
    if (!strcmp(transport, "auto")) return true;
    for (const hki_transport *const *t = hki_transports; *t; t++)
        if (!strcmp((*t)->name, transport)) return true;
    return false;
}

static inline bool can(hki_op op, const char *algo) { return hki_algo_find(op, algo) != NULL; }

#endif
