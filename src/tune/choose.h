/* SPDX-License-Identifier: Apache-2.0
 *
 * Which algorithm runs a call: a forced one, or the first of a table of rules that fits and is able. Reads only what is equal on all
 * ranks, so all ranks choose alike. Sizes are bytes of the full vector: count * element size, times ranks where the call's count is
 * per rank. */
#ifndef HKI_CHOOSE_H
#define HKI_CHOOSE_H

#include "algo/algo.h"

/* Forced choices, from text: "ring" (every operation that has one) or "all_reduce:ring,broadcast:binomial". */
typedef struct hki_forced { const hki_algo *by_op[HKI_COLLECTIVES]; } hki_forced;

/* false, and the offending part in error, if a name is unknown. */
bool hki_forced_parse(const char *text, hki_forced *, char error[160]);

/* How the ranks of a communicator reach each other, and whether on some host they outnumber its CPUs. */
typedef enum hki_where { HKI_NEAR = 1, HKI_NEAR_CROWDED = 2, HKI_FAR = 4, HKI_FAR_CROWDED = 8 } hki_where;

/* NULL with the reason in error if the forced algorithm cannot do the call; the message names one that can. */
const hki_algo *hki_choose(const hki_call *, hki_where, const hki_algo *forced, bool strict, char error[160]);

size_t hki_call_bytes(const hki_call *);

#endif
