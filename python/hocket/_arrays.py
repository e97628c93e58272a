# SPDX-License-Identifier: Apache-2.0
"""What an array is to the library: an address, a number of elements and their type. Nothing is copied.

Taken are NumPy arrays and what has ``__array_interface__``, what has ``__dlpack__`` on the CPU (PyTorch, JAX, ...), and what has the buffer
protocol (bytes, bytearray, array.array, memoryview). NumPy itself is not needed.
"""

from __future__ import annotations

import ctypes
import math
import sys
from ctypes import c_int32, c_int64, c_ssize_t, c_uint8, c_uint16, c_uint64, c_void_p
from dataclasses import dataclass
from typing import Any

from . import _errors

DTYPES = ("i8", "u8", "i16", "u16", "i32", "u32", "i64", "u64", "f16", "bf16", "f32", "f64")  # in the order of hk_dtype
SIZES = (1, 1, 2, 2, 4, 4, 8, 8, 2, 2, 4, 8)
CODES = {name: code for code, name in enumerate(DTYPES)}


@dataclass(frozen=True)
class View:
    """Contiguous memory of an array."""

    address: int  # 0 only if it is empty
    count: int  # elements of `code`; a complex number is two
    code: int  # hk_dtype
    kind: str  # "i" signed, "u" unsigned, "f" floating, "c" complex, "b" boolean (as u8)
    shape: tuple[int, ...]
    owner: Any  # keeps the memory

    @property
    def bytes(self) -> int:
        """Size in bytes."""
        return self.count * SIZES[self.code]


class _Buffer(ctypes.Structure):
    """Py_buffer."""

    _fields_ = [("buf", c_void_p), ("obj", ctypes.py_object), ("len", c_ssize_t), ("itemsize", c_ssize_t), ("readonly", ctypes.c_int),
                ("ndim", ctypes.c_int), ("format", ctypes.c_char_p), ("shape", c_void_p), ("strides", c_void_p), ("suboffsets", c_void_p),
                ("internal", c_void_p)]


class _Tensor(ctypes.Structure):
    """DLTensor."""

    _fields_ = [("data", c_void_p), ("device", c_int32), ("device_id", c_int32), ("ndim", c_int32), ("code", c_uint8), ("bits", c_uint8),
                ("lanes", c_uint16), ("shape", ctypes.POINTER(c_int64)), ("strides", ctypes.POINTER(c_int64)), ("byte_offset", c_uint64)]


_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.restype, _capsule_pointer.argtypes = c_void_p, [ctypes.py_object, ctypes.c_char_p]
_get_buffer = ctypes.pythonapi.PyObject_GetBuffer
_get_buffer.restype, _get_buffer.argtypes = ctypes.c_int, [ctypes.py_object, c_void_p, ctypes.c_int]
_release_buffer = ctypes.pythonapi.PyBuffer_Release
_release_buffer.restype, _release_buffer.argtypes = None, [c_void_p]


def _element(kind: str, size: int, what: str, name: str) -> tuple[int, int]:
    """hk_dtype and how many of it make an element of that kind (see View) and size in bytes."""
    if kind == "c" and size in (8, 16):
        return CODES[f"f{size * 4}"], 2
    if kind == "b" and size == 1:
        return CODES["u8"], 1
    code = CODES.get("bf16" if kind == "bf" else f"{kind}{size * 8}")
    if code is None:
        raise _errors.Invalid(f"{what}: elements of type {name} are none of {', '.join(DTYPES)}, complex or bool")
    return code, 1


def _contiguous(shape: tuple[int, ...], strides: tuple[int, ...] | None, size: int) -> bool:
    """Are these C-contiguous? Strides in bytes; those of axes of length 1, or of an empty array, do not matter."""
    if strides is None or 0 in shape:
        return True
    for length, stride in zip(reversed(shape), reversed(strides)):
        if length != 1 and stride != size:
            return False
        size *= length
    return True


def _made(what: str, name: str, address: int, kind: str, size: int, shape: tuple[int, ...], strides: tuple[int, ...] | None,
          owner: object) -> View:
    code, parts = _element(kind, size, what, name)
    if not _contiguous(shape, strides, size):
        raise _errors.Invalid(f"{what}: an array of shape {shape} and strides {strides} bytes is not contiguous: pass a copy "
                              "(numpy.ascontiguousarray(x), x.contiguous())")
    return View(address, math.prod(shape) * parts, code, "f" if kind == "bf" else kind, shape, owner)


def _of_interface(what: str, array: Any, face: dict[str, Any], write: bool) -> View:
    text = face["typestr"]
    address, readonly = face["data"]
    if write and readonly:
        raise _errors.Invalid(f"{what}: the array is read-only")
    order, kind, size = text[0], text[1], int(text[2:])
    name = str(getattr(array, "dtype", text))
    if name == "bfloat16":
        kind = "bf"
    if order == (">" if sys.byteorder == "little" else "<"):
        raise _errors.Invalid(f"{what}: elements of type {name} are of the other byte order: pass x.astype(x.dtype.newbyteorder('='))")
    return _made(what, name, address, kind, size, tuple(face["shape"]), face.get("strides"), array)


def _of_dlpack(what: str, array: Any, write: bool) -> View:
    try:
        capsule = array.__dlpack__()
    except (BufferError, RuntimeError, TypeError) as e:
        raise _errors.Invalid(f"{what}: {type(array).__name__} gives no view of its memory: {e}") from None
    t = _Tensor.from_address(_capsule_pointer(capsule, b"dltensor"))
    if t.device not in (1, 3, 11):  # plain, pinned
        raise _errors.Invalid(f"{what}: the array is not in CPU memory (DLPack device {t.device})")
    kind = {0: "i", 1: "u", 2: "f", 4: "bf", 5: "c", 6: "b"}.get(t.code, "?")
    size = t.bits // 8
    shape = tuple(t.shape[i] for i in range(t.ndim))
    strides = tuple(t.strides[i] * size for i in range(t.ndim)) if t.strides else None
    name = str(getattr(array, "dtype", f"{kind}{t.bits}"))
    if t.lanes != 1:
        kind = "?"
    # The capsule, not consumed, keeps the memory and gives it back when it goes.
    return _made(what, name, (t.data or 0) + t.byte_offset, kind, size, shape, strides, (array, capsule))


class _Held:
    """A Py_buffer, released with this object."""

    def __init__(self, array: Any, write: bool) -> None:
        self.view = _Buffer()
        self.held = False
        _get_buffer(array, ctypes.addressof(self.view), 0x1C | (0x1 if write else 0))  # strides and format; raises BufferError
        self.held = True

    def __del__(self) -> None:
        if self.held:
            _release_buffer(ctypes.addressof(self.view))


def _of_buffer(what: str, array: Any, write: bool) -> View:
    try:
        held = _Held(array, write)
    except BufferError as e:
        raise _errors.Invalid(f"{what}: {type(array).__name__}: {e}") from None
    v = held.view
    code = (v.format or b"B").decode().lstrip("@=<")
    kind = "b" if code == "?" else "f" if code in ("e", "f", "d") else "i" if code in tuple("bhilqn") else "u" if code in tuple("BHILQNc") else "?"
    shape = tuple((c_ssize_t * v.ndim).from_address(v.shape)) if v.ndim and v.shape else (v.len // max(v.itemsize, 1),)
    strides = tuple((c_ssize_t * v.ndim).from_address(v.strides)) if v.ndim and v.strides else None
    return _made(what, f"'{code}'", v.buf or 0, kind, v.itemsize, shape, strides, held)


def view(array: Any, what: str, write: bool = False) -> View:
    """The memory of an array. ``what`` begins the text of errors ("all_reduce: out"); ``write``: it will be written.

    Raises Invalid: not contiguous, not on the CPU, a type of element that the library lacks, read-only, no array at all.
    """
    face = getattr(array, "__array_interface__", None)
    if face is not None:
        return _of_interface(what, array, face, write)
    if hasattr(array, "__dlpack__"):
        return _of_dlpack(what, array, write)
    try:
        memoryview(array)
    except TypeError:
        raise _errors.Invalid(f"{what}: {type(array).__name__} is no array: pass a NumPy array, a CPU tensor, or an object with the "
                              "buffer protocol") from None
    return _of_buffer(what, array, write)


def empty(like: Any, shape: tuple[int, ...]) -> Any:
    """A new array of that shape, of the kind and element type of ``like``: NumPy's, PyTorch's, or else a bytearray seen as such.

    Raises Invalid where none can be made: pass ``out``.
    """
    module = type(like).__module__.partition(".")[0]
    if module == "torch":
        return like.new_empty(shape)
    if hasattr(like, "__array_interface__") and hasattr(like, "dtype"):
        import numpy

        return numpy.empty(shape, like.dtype)
    if module == "array":
        return type(like)(like.typecode, bytes(math.prod(shape) * like.itemsize))
    if isinstance(like, (bytes, bytearray, memoryview)):
        v = view(like, "empty")
        return bytearray(math.prod(shape) * SIZES[v.code])
    raise _errors.Invalid(f"a result cannot be made like a {type(like).__name__}: pass out=")
