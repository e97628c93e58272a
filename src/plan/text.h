/* SPDX-License-Identifier: Apache-2.0
 *
 * Plans as text, both ways: parse(print(p)) equals p. docs/plan.md has the grammar.
 *
 *     plan all_reduce ring, rank 1 of 4, 1000 f32 sum, span 1
 *     in   4 blocks of 250
 *     out  4 blocks of 250
 *       0  send in[0] -> 2
 *       1  out[3] = fold(from 0, in[3]), send -> 2
 *
 * What belongs to a process is not in the text: a user's operator is "user", hazards are derived again. Parsing is total: any
 * bytes give a plan whose indices are all in range, or an error that names the line. Whether the plan is right is the checker's
 * business (a peer that is the rank itself, operands of different shape: all that can be written down). */
#ifndef HKI_TEXT_H
#define HKI_TEXT_H

#include "plan/plan.h"

/* More is refused. Block lengths, offsets and counts are elements. */
enum { HKI_TEXT_RANKS = 4096, HKI_TEXT_STEPS = 1 << 20, HKI_TEXT_BLOCKS = 1 << 16, HKI_TEXT_TOKENS = 1 << 16, HKI_TEXT_ERROR = 160 };
#define HKI_TEXT_ELEMS (UINT64_C(1) << 40)

/* Returns the length of the whole text; what fits is written, and ended with 0 if cap > 0 (as snprintf). */
size_t hki_plan_print(const hki_plan *, char *buf, size_t cap);
/* The same with the line "windows K of width, depth d"; width 0: without. */
size_t hki_plan_print_windows(const hki_plan *, size_t width, uint32_t depth, char *buf, size_t cap);

/* Reads one plan from text[*used .. len), which may hold several; *used moves to where the next one begins, len after the last.
 * Line numbers in errors count from the start of text. `out` must have been initialised; its storage is recycled. HK_INVALID:
 * error tells why. HK_NO_MEMORY. */
hk_status hki_plan_parse(const char *text, size_t len, size_t *used, hki_plan *out, char error[HKI_TEXT_ERROR]);

/* Do both say the same? What text leaves out is not compared. */
bool hki_plan_equal(const hki_plan *, const hki_plan *);

#endif
