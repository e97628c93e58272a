# SPDX-License-Identifier: Apache-2.0
"""libhocket.so: found, loaded on first use, its functions typed.

It is loaded twice over. Functions of ``free`` let other Python threads run meanwhile (the GIL is given up); those of ``hold`` do not, and
are for calls that return at once: giving the GIL up costs nothing, getting it back from a thread that computes costs up to 5 ms.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
import sys
import threading
from ctypes import c_char_p, c_int, c_size_t, c_uint64, c_void_p
from pathlib import Path

from . import _errors

WAIT_EXPIRED = _errors.WaitExpired.status


class Config(ctypes.Structure):
    """hk_config."""

    _fields_ = [("size", c_size_t), ("timeout_us", c_uint64), ("init_timeout_us", c_uint64), ("transport", c_char_p),
                ("algorithm", c_char_p), ("executor", c_char_p), ("determinism", c_char_p)]


class Options(ctypes.Structure):
    """hk_options. Read during the call, except what ``source`` points to."""

    _fields_ = [("size", c_size_t), ("timeout_us", c_uint64), ("algorithm", c_char_p), ("tag", c_int), ("priority", c_int),
                ("wire", c_char_p), ("after", c_void_p), ("after_count", c_size_t), ("done", c_void_p), ("done_arg", c_void_p),
                ("source", c_void_p)]


class Frame:
    """A call and what becomes of it: an hk_call, in whose ``request`` any operation may leave its own."""

    __slots__ = ("bytes", "at", "slot", "place")
    SIZE, ARGUMENTS, REQUEST = 88, 8, 80

    def __init__(self) -> None:
        self.bytes = ctypes.create_string_buffer(self.SIZE)
        self.at = ctypes.addressof(self.bytes)
        self.slot = c_void_p.from_buffer(self.bytes, self.REQUEST)
        self.place = self.at + self.REQUEST
        struct.pack_into("N", self.bytes, 0, self.SIZE)


# In the order of hk_operation: how the arguments of an operation, then its number, 1 if hk_run is to wait for a moment, comm and options lie in
# an hk_call. Packing them costs a quarter of what ctypes takes for the arguments of a call.
_RECORDS = {"hk_all_reduce": "PPNiN4xiiPP", "hk_all_gather": "PPNi16xiiPP", "hk_reduce_scatter": "PPNiN4xiiPP", "hk_broadcast": "PPNi12xiiiPP",
            "hk_reduce": "PPNiNiiiPP", "hk_gather": "PPNi12xiiiPP", "hk_scatter": "PPNi12xiiiPP", "hk_all_to_all": "PPNi16xiiPP",
            "hk_barrier": "44xiiPP"}


class Id(ctypes.Structure):
    """hk_id: 128 bytes that one rank makes and all need."""

    _fields_ = [("bytes", ctypes.c_char * 128)]


_P, _N, _I = c_void_p, c_size_t, c_int
_TAIL = [_P, _P, _P]  # comm, options, request
_OP = _N  # hk_redop
# name -> (result, arguments)
_FUNCTIONS: dict[str, tuple[object, list[object]]] = {
    "hk_status_name": (c_char_p, [_I]),
    "hk_version": (_I, []),
    "hk_last_error": (c_char_p, [_P]),
    "hk_op_premul_sum": (_I, [ctypes.c_double, _P]),
    "hk_op_free": (_I, [_OP]),
    "hk_id_create": (_I, [_P]),
    "hk_comm_create": (_I, [_P, _I, _I, _P, _P]),
    "hk_comm_create_env": (_I, [_P, _P]),
    "hk_comm_split": (_I, [_P, _I, _I, _P]),
    "hk_comm_create_group": (_I, [_P, _P, _I, _I, _P]),
    "hk_comm_destroy": (_I, [_P]),
    "hk_comm_abort": (_I, [_P]),
    "hk_mem_register": (_I, [_P, _P, _N]),
    "hk_mem_deregister": (_I, [_P, _P]),
    "hk_comm_rank": (_I, [_P]),
    "hk_comm_ranks": (_I, [_P]),
    "hk_all_reduce": (_I, [_P, _P, _N, _I, _OP, *_TAIL]),
    "hk_all_gather": (_I, [_P, _P, _N, _I, *_TAIL]),
    "hk_reduce_scatter": (_I, [_P, _P, _N, _I, _OP, *_TAIL]),
    "hk_broadcast": (_I, [_P, _P, _N, _I, _I, *_TAIL]),
    "hk_reduce": (_I, [_P, _P, _N, _I, _OP, _I, *_TAIL]),
    "hk_gather": (_I, [_P, _P, _N, _I, _I, *_TAIL]),
    "hk_scatter": (_I, [_P, _P, _N, _I, _I, *_TAIL]),
    "hk_all_to_all": (_I, [_P, _P, _N, _I, *_TAIL]),
    "hk_all_gather_v": (_I, [_P, _P, _P, _P, _I, *_TAIL]),
    "hk_reduce_scatter_v": (_I, [_P, _P, _P, _P, _I, _OP, *_TAIL]),
    "hk_all_to_all_v": (_I, [_P, _P, _P, _P, _P, _P, _I, *_TAIL]),
    "hk_send": (_I, [_P, _N, _I, _I, *_TAIL]),
    "hk_recv": (_I, [_P, _N, _I, _I, *_TAIL]),
    "hk_barrier": (_I, _TAIL),
    "hk_run": (_I, [_P]),
    "hk_group_start": (_I, [_P]),
    "hk_group_end": (_I, [_P, _P]),
    "hk_test": (_I, [_P, _P]),
    "hk_wait_for": (_I, [_P, c_uint64]),
    "hk_request_event": (_I, [_P, _P]),
    "hk_event_wait": (_I, [_P, c_uint64]),
    "hk_event_destroy": (None, [_P]),
}


class Library:
    """Both faces of the loaded library: ``free`` and ``hold`` (see the module), with the same attributes."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.free = ctypes.CDLL(path)
        self.hold = ctypes.PyDLL(path)
        for face in (self.free, self.hold):
            for name, (result, arguments) in _FUNCTIONS.items():
                function = getattr(face, name)
                function.restype, function.argtypes = result, arguments
                function.record = None  # of those that hk_run can do: what packs Frame.bytes, and the hk_operation
        for code, (name, form) in enumerate(_RECORDS.items()):
            getattr(self.hold, name).record = struct.Struct("@" + form).pack_into, code

    def last_error(self, comm: int | None = None) -> str:
        """The last failure as a sentence: the communicator's, or without one the calling thread's. Ask at once."""
        return self.hold.hk_last_error(comm).decode(errors="replace")


_loaded: Library | None = None
_lock = threading.Lock()


def find() -> Path:
    """Where the library is: ``HOCKET_LIBRARY`` if set, else beside this file. It need not exist."""
    given = os.environ.get("HOCKET_LIBRARY")
    return Path(given) if given else Path(__file__).parent / "lib" / "libhocket.so"


def library() -> Library:
    """The library, loaded by the first call.

    Raises SystemFailure, with one sentence: wrong platform, or no library there.
    """
    global _loaded
    if _loaded is None:
        with _lock:
            if _loaded is None:
                _loaded = _load()
    return _loaded


def _load() -> Library:
    if sys.platform != "linux" or platform.machine() not in ("x86_64", "aarch64"):
        raise _errors.SystemFailure(f"hocket runs on Linux x86-64 and aarch64, not on {sys.platform} {platform.machine()}")
    path = find()
    try:
        return Library(str(path))
    except (OSError, AttributeError) as e:
        remedy = "HOCKET_LIBRARY points there" if "HOCKET_LIBRARY" in os.environ else "reinstall hocket, or set HOCKET_LIBRARY"
        raise _errors.SystemFailure(f"libhocket.so cannot be loaded from {path}: {e}; {remedy}") from None
