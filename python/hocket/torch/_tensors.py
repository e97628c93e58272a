# SPDX-License-Identifier: Apache-2.0
"""Tensors as the library sees them: element types, reductions, contiguous memory.

A dense tensor goes as it is. One that is not contiguous is copied before, and results are copied back after: the ``post`` of an operation.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from .._arrays import CODES, SIZES
from .._library import library
from ._errors import BY_STATUS, Invalid, Unsupported

Post = Callable[[], None]


def _dtypes(**names: str) -> dict[torch.dtype, int]:
    """hk_dtype by torch.dtype, of those that this torch has."""
    return {getattr(torch, ours): CODES[theirs] for ours, theirs in names.items() if hasattr(torch, ours)}


# What reductions compute on as it is.
NUMBERS = _dtypes(float64="f64", float32="f32", float16="f16", bfloat16="bf16", int8="i8", uint8="u8", int16="i16", uint16="u16",
                  int32="i32", uint32="u32", int64="i64", uint64="u64")
_BY_SIZE = {1: (CODES["u8"], 1), 2: (CODES["u16"], 1), 4: (CODES["u32"], 1), 8: (CODES["u64"], 1), 16: (CODES["u64"], 2)}
_FLOATS = {CODES[n] for n in ("f16", "bf16", "f32", "f64")}

# torch's numbers of reductions and ours (hocket.Op).
SUM, AVG, PRODUCT, MIN, MAX, BAND, BOR, BXOR, PREMUL_SUM = range(9)
OPS = {SUM: 0, PRODUCT: 1, MIN: 2, MAX: 3, AVG: 4, BAND: 5, BOR: 6, BXOR: 7}
_NAMES = ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR", "PREMUL_SUM")
_OF_BOOLS = {SUM: OPS[MAX], MAX: OPS[MAX], BOR: OPS[MAX], PRODUCT: OPS[MIN], MIN: OPS[MIN], BAND: OPS[MIN], BXOR: OPS[BXOR]}


def check(t: Tensor, what: str) -> None:
    """Raises Invalid unless ``t`` is a strided tensor on the CPU."""
    if t.layout is not torch.strided or not t.is_cpu:
        remedy = ": pass t.to_dense()" if t.is_cpu else ": pass t.cpu(), or give its device a backend beside, as in 'cpu:hocket,cuda:nccl'"
        raise Invalid(f"{what}: a {str(t.layout).removeprefix('torch.')} tensor on {t.device}: hocket takes dense tensors on the CPU{remedy}")


def movable(t: Tensor) -> tuple[int, int]:
    """(hk_dtype, elements of it in one of t's): what moves bytes takes every type."""
    code = NUMBERS.get(t.dtype)
    return (code, 1) if code is not None else _BY_SIZE[t.element_size()]


def reduction(reduce_op: Any, t: Tensor, what: str) -> tuple[int, int, int]:
    """(hk_dtype, elements of it in one of t's, hk_redop). Raises Unsupported where the reduction is not defined for the type."""
    op = int(reduce_op.op) if hasattr(reduce_op, "op") else int(reduce_op)
    code, parts = NUMBERS.get(t.dtype), 1
    if t.dtype is torch.bool:
        if op not in _OF_BOOLS:
            raise Unsupported(f"{what}: Cannot use ReduceOp.{_NAMES[op]} with bool")
        return CODES["u8"], 1, _OF_BOOLS[op]
    if t.is_complex():
        code, parts = NUMBERS.get(t.dtype.to_real()), 2
        if op not in (SUM, AVG, PREMUL_SUM):
            raise Unsupported(f"{what}: Cannot use ReduceOp.{_NAMES[op]} with complex numbers")
    if code is None:
        raise Unsupported(f"{what}: reductions of {t.dtype} are not there; convert to float32 or bfloat16")
    if op in (BAND, BOR, BXOR) and code in _FLOATS:
        raise Unsupported(f"{what}: Cannot use ReduceOp.{_NAMES[op]} with non-integral dtype {t.dtype}")
    if op == PREMUL_SUM:
        if code not in _FLOATS:
            raise Unsupported(f"{what}: Cannot use ReduceOp.PREMUL_SUM with integral dtype {t.dtype}")
        return code, parts, _premul(reduce_op)
    return code, parts, OPS[op]


_premuls: dict[float, int] = {}
_premuls_lock = threading.Lock()
_PREMULS = 1024  # kept for good: a training loop uses one or two factors


def _premul(reduce_op: Any) -> int:
    """The library's handle for a sum times that factor, made once."""
    factor = getattr(reduce_op, "factor", None)
    if factor is None:
        factor = reduce_op.__getstate__()[1]
    factor = float(factor.item() if isinstance(factor, Tensor) else factor)
    with _premuls_lock:
        made = _premuls.get(factor)
        if made is None:
            if len(_premuls) >= _PREMULS:
                raise Unsupported(f"PREMUL_SUM: more than {_PREMULS} different factors; multiply the tensor instead")
            slot = ctypes.c_size_t()
            status = library().hold.hk_op_premul_sum(factor, ctypes.addressof(slot))
            if status:
                raise BY_STATUS[status](library().last_error())
            made = _premuls[factor] = slot.value
    return made


def source(t: Tensor) -> Tensor:
    """``t`` or a contiguous copy: memory to be read."""
    if t.is_conj() or t.is_neg():
        t = t.resolve_conj().resolve_neg()
    return t if t.is_contiguous() else t.detach().contiguous()


def writable(t: Tensor, what: str) -> None:
    """Raises Invalid for an expanded tensor, of which several elements are one place in memory."""
    if not t.is_contiguous() and any(stride == 0 and n > 1 for stride, n in zip(t.stride(), t.shape)):
        raise Invalid(f"{what}: an output is expanded (shape {tuple(t.shape)}, strides {t.stride()}): elements of it are one; clone it")


def target(t: Tensor, filled: bool, what: str) -> tuple[Tensor, Post | None]:
    """Memory to be written, and what brings it into ``t`` afterwards if it is not t's own. ``filled``: it starts as t is.

    Raises Invalid.
    """
    if t.is_contiguous() and not t.is_conj() and not t.is_neg():
        return t, None
    writable(t, what)
    fresh = t.detach().contiguous().resolve_conj().resolve_neg() if filled else torch.empty(t.shape, dtype=t.dtype)

    def back() -> None:
        with torch.no_grad():
            t.detach().copy_(fresh)

    return fresh, back


def _adjacent(tensors: Sequence[Tensor]) -> bool:
    """Do these lie one after another, each contiguous?"""
    at = tensors[0].data_ptr()
    for t in tensors:
        if t.data_ptr() != at or not t.is_contiguous() or t.is_conj() or t.is_neg():
            return False
        at += t.numel() * t.element_size()
    return True


def alike(tensors: Sequence[Tensor], what: str) -> None:
    """Raises Invalid unless all are on the CPU and of one type."""
    for t in tensors:
        check(t, what)
        if t.dtype is not tensors[0].dtype:
            raise Invalid(f"{what}: tensors of one call are of {tensors[0].dtype} and {t.dtype}")


def joined(tensors: Sequence[Tensor]) -> tuple[int, Any]:
    """Address of the elements of all, one after another, to be read; and what keeps them."""
    if _adjacent(tensors):
        return tensors[0].data_ptr(), tensors
    with torch.no_grad():
        flat = torch.cat([t.detach().reshape(-1) for t in tensors]).resolve_conj().resolve_neg()
    return flat.data_ptr(), flat


def spread(tensors: Sequence[Tensor], what: str) -> tuple[int, Any, Post | None]:
    """Address of room for the elements of all, one after another; what keeps it; and what brings them to their places. Raises Invalid."""
    if _adjacent(tensors):
        return tensors[0].data_ptr(), tensors, None
    for t in tensors:
        writable(t, what)
    flat = torch.empty(sum(t.numel() for t in tensors), dtype=tensors[0].dtype)

    def back() -> None:
        with torch.no_grad():
            for t, part in zip(tensors, flat.split([t.numel() for t in tensors])):
                t.detach().copy_(part.view(t.shape))

    return flat.data_ptr(), (flat, tensors), back


def sizes(counts: Sequence[int], parts: int) -> tuple[Any, int]:
    """An array of size_t for the library, and its address. It must be kept until the operation is finished."""
    array = (ctypes.c_size_t * len(counts))(*(c * parts for c in counts))
    return array, ctypes.addressof(array)


assert all(SIZES[code] == torch.empty((), dtype=dtype).element_size() for dtype, code in NUMBERS.items())
