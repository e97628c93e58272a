/* SPDX-License-Identifier: Apache-2.0
 * Element types: size and name, in the order of hk_dtype. */
#include "base/base.h"

static const struct { const char *name; uint8_t size; } types[HK_DTYPES] = {
    [HK_I8] = {"i8", 1},   [HK_U8] = {"u8", 1},   [HK_I16] = {"i16", 2},   [HK_U16] = {"u16", 2},
    [HK_I32] = {"i32", 4}, [HK_U32] = {"u32", 4}, [HK_I64] = {"i64", 8},   [HK_U64] = {"u64", 8},
    [HK_F16] = {"f16", 2}, [HK_BF16] = {"bf16", 2}, [HK_F32] = {"f32", 4}, [HK_F64] = {"f64", 8},
};

HK_API size_t hk_dtype_size(hk_dtype t) { return (unsigned)t < HK_DTYPES ? types[t].size : 0; }
HK_API const char *hk_dtype_name(hk_dtype t) { return (unsigned)t < HK_DTYPES ? types[t].name : "?"; }
