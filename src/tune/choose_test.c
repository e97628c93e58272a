/* SPDX-License-Identifier: Apache-2.0
 *
 * The default choice: there is one for every call, it can do the call, and it is what the rules are meant to say where that is easily lost. */
#include "tune/choose.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const hki_algo *chosen(hki_op op, hki_where where, uint32_t ranks, uint32_t per_host, hk_dtype dtype, size_t bytes, bool strict, bool commutes)
{
    const bool split = op != HKI_ALL_REDUCE && op != HKI_BROADCAST && op != HKI_REDUCE;
    const hki_call c = {.op = op, .ranks = ranks, .per_host = per_host, .dtype = dtype, .count = bytes / hk_dtype_size(dtype) / (split ? ranks : 1),
                        .red = {.op = HKI_SUM, .divisor = ranks, .commutes = commutes}};
    char error[160];
    return hki_choose(&c, where, NULL, strict, error);
}

static void test_there_is_one(void **state)
{
    static const hk_dtype types[] = {HK_F32, HK_BF16, HK_F16, HK_I8};
    for (unsigned op = 0; op < HKI_COLLECTIVES; op++)
        for (unsigned where = HKI_NEAR; where <= HKI_FAR_CROWDED; where *= 2)
            for (uint32_t ranks = 1; ranks <= 33; ranks++)
                for (uint32_t q = 0; q <= ranks / 2; q++)
                    for (size_t bytes = 8; bytes <= 64 << 20; bytes *= 8)
                        for (unsigned k = 0; k < 16; k++) {
                            if (q == 1 || (q && ranks % q)) continue;
                            const hk_dtype type = types[k % 4];
                            const hki_algo *a = chosen((hki_op)op, (hki_where)where, ranks, q, type, bytes, k & 4, k & 8);
                            if (!a) fail_msg("none for %s, %u ranks, %zu bytes of %s", hki_op_name((hki_op)op), ranks, bytes, hk_dtype_name(type));
                            if (ranks < 3 || (op != HKI_ALL_REDUCE && op != HKI_REDUCE_SCATTER && op != HKI_REDUCE_SCATTER_V)) continue;
                            if ((type == HK_BF16 || type == HK_F16) && !(a->traits & (HKI_FOLD_ONCE | HKI_FOLD_TWICE)))
                                fail_msg("%s rounds too often: %u ranks, %zu bytes of %s", a->name, ranks, bytes, hk_dtype_name(type));
                        }
}

static void test_hosts(void **state)
{
    static const struct { hki_op op; uint32_t ranks, per_host; hk_dtype dtype; size_t bytes; const char *name; } want[] = {
        {HKI_ALL_REDUCE, 6, 3, HK_F32, 16 << 20, "two_level"},       {HKI_ALL_REDUCE, 6, 0, HK_F32, 16 << 20, "ring"},
        {HKI_ALL_REDUCE, 6, 3, HK_F32, 64 << 10, "two_level_direct"}, {HKI_ALL_REDUCE, 6, 3, HK_BF16, 16 << 20, "two_level_direct"},
        {HKI_ALL_REDUCE, 6, 0, HK_BF16, 16 << 20, "direct"},          {HKI_ALL_GATHER, 6, 3, HK_F32, 1 << 20, "two_level"},
        {HKI_ALL_GATHER, 6, 0, HK_F32, 1 << 20, "ring"},              {HKI_REDUCE_SCATTER, 6, 2, HK_F32, 4 << 20, "two_level"},
        {HKI_BROADCAST, 6, 3, HK_F32, 1 << 20, "chain"},              {HKI_BROADCAST, 33, 0, HK_F32, 1 << 20, "scatter_all_gather"},
        {HKI_REDUCE_SCATTER, 6, 0, HK_BF16, 4 << 20, "direct"},       {HKI_REDUCE_SCATTER, 6, 2, HK_BF16, 4 << 20, "two_level_direct"}};
    for (size_t i = 0; i < HKI_COUNT(want); i++)
        for (int k = 0; k < 2; k++) {
            const hki_where where = k ? HKI_FAR : HKI_FAR_CROWDED;
            const hki_algo *a = chosen(want[i].op, where, want[i].ranks, want[i].per_host, want[i].dtype, want[i].bytes, false, true);
            assert_string_equal(a->name, want[i].name);
        }
    /* A strict choice does not go by hosts, and memory needs none of it. */
    assert_string_equal(chosen(HKI_ALL_REDUCE, HKI_FAR, 6, 3, HK_F32, 16 << 20, true, true)->name, "direct");
    assert_string_equal(chosen(HKI_ALL_REDUCE, HKI_NEAR, 6, 3, HK_F32, 16 << 20, false, true)->name, "direct");
    assert_string_equal(chosen(HKI_ALL_REDUCE, HKI_FAR, 6, 3, HK_F32, 16 << 20, false, false)->name, "two_level_direct");
    /* Neighbours on different hosts. */
    hki_call c = {.op = HKI_BROADCAST, .ranks = 4, .per_host = 2, .dealt = true, .dtype = HK_F32, .count = 1 << 20};
    char error[160];
    assert_string_equal(hki_choose(&c, HKI_FAR, NULL, false, error)->name, "scatter_all_gather");
    c = (hki_call){.op = HKI_ALL_REDUCE, .ranks = 4, .per_host = 2, .dealt = true, .dtype = HK_F32, .count = 1 << 14, .red = {.commutes = true}};
    assert_string_equal(hki_choose(&c, HKI_FAR, NULL, false, error)->name, "two_level_direct");
    c.dealt = false;
    assert_string_equal(hki_choose(&c, HKI_FAR, NULL, false, error)->name, "halving_doubling");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_there_is_one), cmocka_unit_test(test_hosts)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
