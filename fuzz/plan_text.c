/* SPDX-License-Identifier: Apache-2.0
 * Any bytes are a plan or an error; a plan that was read prints to what reads as the same plan; and whatever was read, the passes
 * and the checker can take. */
#include "plan/check.h"
#include "plan/holds.h"
#include "plan/text.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void demand(bool holds)
{
    if (!holds) abort();
}

enum { RANKS = 5 };

static void round_trip(const hki_plan *p)
{
    char error[HKI_TEXT_ERROR];
    const size_t len = hki_plan_print(p, NULL, 0);
    char *text = malloc(len + 1);
    size_t end = 0;
    hki_plan again;
    hki_plan_init(&again);
    demand(text && hki_plan_print(p, text, len + 1) == len);
    demand(!hki_plan_parse(text, len, &end, &again, error) && end == len);
    demand(hki_plan_equal(p, &again));
    hki_plan_fini(&again);
    free(text);
}

/* Plans of ranks 0, 1, .. of as many as the first one says are checked together. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    hki_plan plans[RANKS], *at[RANKS];
    char error[HKI_TEXT_ERROR];
    hki_check_report report;
    size_t used = 0;
    uint32_t n = 0, ranks = 0;
    bool whole = true;
    for (uint32_t r = 0; r < RANKS; r++) hki_plan_init(at[r] = &plans[r]);
    while (n < RANKS && used < size && !hki_plan_parse((const char *)data, size, &used, at[n], error)) {
        demand(used <= size);
        round_trip(at[n]);
        if (n == 0) ranks = plans[0].call.ranks;
        whole = whole && plans[n].call.ranks == ranks && plans[n].call.rank == n && plans[n].call.op == plans[0].call.op;
        n++;
    }
    if (whole && n == ranks) {
        uint64_t *sets = calloc((size_t)ranks * plans[0].blocks[HKI_OUT].n + 1, sizeof *sets);
        demand(sets);
        const bool right = !hki_check(at, ranks, 2, &report);
        const hk_status walked = hki_plan_holds(at, ranks, 2, sets);
        demand(!right || !report.inline_slots || !walked);
        free(sets);
    }
    for (uint32_t r = 0; r < n; r++) {
        demand(!hki_plan_hazards(at[r]));
        hki_plan_fuse(at[r]);
    }
    for (uint32_t r = 0; r < RANKS; r++) hki_plan_fini(&plans[r]);
    return 0;
}
