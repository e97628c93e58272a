# SPDX-License-Identifier: Apache-2.0
"""Communicators for arrays: :class:`Comm`, the ways to make one, and :class:`Work` for operations that go on by themselves.

All ranks make the same collective calls in the same order. Without ``async_op`` a call returns the result when it is there; with it, a
Work, and until that is finished the arrays belong to the operation: do not write what is sent, do not touch what is received.
"""

from __future__ import annotations

import atexit
import ctypes
import enum
import os
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from . import _arrays, _errors
from ._handle import Handle, Request
from ._library import Config, Id, Options, library

ANY_SOURCE = -1
_EXIT_SECONDS = 2.0  # how long unfinished operations are waited for when the interpreter ends


class Op(enum.IntEnum):
    """Reductions. Integers wrap in SUM and PROD; AVG of integers truncates toward zero; MIN and MAX propagate NaN. Bits: integers only."""

    SUM, PROD, MIN, MAX, AVG, BAND, BOR, BXOR = range(8)


def _op(op: Op | str, v: _arrays.View, what: str) -> int:
    """The library's reduction for elements of that kind. Booleans: SUM, MAX and BOR are or; PROD, MIN and BAND are and."""
    try:
        number = Op[op.upper()] if isinstance(op, str) else Op(op)
    except (KeyError, ValueError):
        raise _errors.Invalid(f"{what}: op {op!r} is none of {', '.join(o.name.lower() for o in Op)}") from None
    if v.kind == "b":
        if number is Op.AVG:
            raise _errors.Unsupported(f"{what}: avg is not defined for booleans")
        return {Op.SUM: Op.MAX, Op.BOR: Op.MAX, Op.PROD: Op.MIN, Op.BAND: Op.MIN}.get(number, number)
    if v.kind == "c" and number not in (Op.SUM, Op.AVG):
        raise _errors.Unsupported(f"{what}: {number.name.lower()} is not defined for complex numbers")
    return int(number)


class Work:
    """An operation under way. Dropping it does not stop it."""

    __slots__ = ("_request", "result", "_source")

    def __init__(self, request: Request, result: Any, source: ctypes.c_int | None = None) -> None:
        self._request, self.result, self._source = request, result, source

    def wait(self, timeout: float | None = None) -> Any:
        """The result, when it is there. Raises the operation's failure; WaitExpired after ``timeout`` seconds, which harms nothing."""
        self._request.wait(timeout)
        return self.result

    def test(self) -> bool:
        """Has it finished, well or not? Moves things on and never waits. wait() then tells how."""
        return self._request.poll()

    @property
    def source(self) -> int | None:
        """Of a finished receive: the rank whose message it was."""
        return None if self._source is None else self._source.value


_alive: weakref.WeakSet[Comm] = weakref.WeakSet()


@atexit.register
def _leave() -> None:
    for comm in list(_alive):
        comm._handle.destroy(_EXIT_SECONDS)


class Comm:
    """Ranks that communicate. Made by init(), split(), dup() or group().

    A context manager: leaving it destroys the communicator. May be used from several threads; the order of calls, the same on all ranks,
    is then the caller's affair.
    """

    def __init__(self, handle: Handle) -> None:
        self._handle = handle
        self.rank: int = handle.rank
        self.ranks: int = handle.ranks
        _alive.add(self)

    def __repr__(self) -> str:
        return f"<hocket.Comm rank {self.rank} of {self.ranks}{'' if self._handle.at else ', destroyed'}>"

    def __enter__(self) -> Comm:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.destroy(0.0 if kind else 30.0)

    # ---- Collectives

    def all_reduce(self, array: Any, op: Op | str = Op.SUM, *, out: Any = None, async_op: bool = False, timeout: float | None = None) -> Any:
        """The reduction over ranks of ``array``, on every rank, of its shape. ``out=array``: in place."""
        v = _arrays.view(array, "all_reduce: array", out is array)
        out, o = self._out("all_reduce", out, array, v, v.shape, v.count)
        return self._go("hk_all_reduce", (v.address, o.address, v.count, v.code, _op(op, v, "all_reduce")), (v, o), out, async_op, timeout)

    def all_gather(self, array: Any, *, out: Any = None, async_op: bool = False, timeout: float | None = None) -> Any:
        """Every rank's ``array`` in rank order: shape (ranks, *array.shape)."""
        v = _arrays.view(array, "all_gather: array")
        out, o = self._out("all_gather", out, array, v, (self.ranks, *v.shape), self.ranks * v.count)
        return self._go("hk_all_gather", (v.address, o.address, v.count, v.code), (v, o), out, async_op, timeout)

    def reduce_scatter(self, array: Any, op: Op | str = Op.SUM, *, out: Any = None, async_op: bool = False,
                       timeout: float | None = None) -> Any:
        """This rank's part of the reduction over ranks of ``array``, which is split along its first axis: shape (n / ranks, ...)."""
        v = _arrays.view(array, "reduce_scatter: array")
        shape = self._part("reduce_scatter", v)
        out, o = self._out("reduce_scatter", out, array, v, shape, v.count // self.ranks)
        call = (v.address, o.address, v.count // self.ranks, v.code, _op(op, v, "reduce_scatter"))
        return self._go("hk_reduce_scatter", call, (v, o), out, async_op, timeout)

    def broadcast(self, array: Any, root: int = 0, *, async_op: bool = False, timeout: float | None = None) -> Any:
        """``array`` becomes the root's, in place, on every rank."""
        v = _arrays.view(array, "broadcast: array", self.rank != root)
        return self._go("hk_broadcast", (v.address, v.address, v.count, v.code, root), (v,), array, async_op, timeout)

    def reduce(self, array: Any, root: int = 0, op: Op | str = Op.SUM, *, out: Any = None, async_op: bool = False,
               timeout: float | None = None) -> Any:
        """The reduction over ranks of ``array``, on the root; None elsewhere. ``out`` counts on the root only."""
        v = _arrays.view(array, "reduce: array")
        o = None
        if self.rank == root:
            out, o = self._out("reduce", out, array, v, v.shape, v.count)
        call = (v.address, o.address if o else 0, v.count, v.code, _op(op, v, "reduce"), root)
        return self._go("hk_reduce", call, (v, o), out if o else None, async_op, timeout)

    def gather(self, array: Any, root: int = 0, *, out: Any = None, async_op: bool = False, timeout: float | None = None) -> Any:
        """Every rank's ``array``, on the root: shape (ranks, *array.shape); None elsewhere. ``out`` counts on the root only."""
        v = _arrays.view(array, "gather: array")
        o = None
        if self.rank == root:
            out, o = self._out("gather", out, array, v, (self.ranks, *v.shape), self.ranks * v.count)
        call = (v.address, o.address if o else 0, v.count, v.code, root)
        return self._go("hk_gather", call, (v, o), out if o else None, async_op, timeout)

    def scatter(self, array: Any = None, root: int = 0, *, out: Any = None, async_op: bool = False, timeout: float | None = None) -> Any:
        """This rank's part of the root's ``array``, split along its first axis. Elsewhere ``out`` is needed, and ``array`` is not read."""
        v = None
        if self.rank == root:
            v = _arrays.view(array, "scatter: array")
            out, o = self._out("scatter", out, array, v, self._part("scatter", v), v.count // self.ranks)
        elif out is None:
            raise _errors.Invalid(f"rank {self.rank}: scatter: pass out= on ranks other than the root, to be filled")
        else:
            o = _arrays.view(out, "scatter: out", True)
        return self._go("hk_scatter", (v.address if v else 0, o.address, o.count, o.code, root), (v, o), out, async_op, timeout)

    def all_to_all(self, array: Any, *, out: Any = None, async_op: bool = False, timeout: float | None = None) -> Any:
        """Part q of ``array``, split along its first axis, goes to rank q; part q of the result is from rank q. Not in place."""
        v = _arrays.view(array, "all_to_all: array")
        self._part("all_to_all", v)
        out, o = self._out("all_to_all", out, array, v, v.shape, v.count)
        return self._go("hk_all_to_all", (v.address, o.address, v.count // self.ranks, v.code), (v, o), out, async_op, timeout)

    def barrier(self, *, async_op: bool = False, timeout: float | None = None) -> Any:
        """Returns when every rank has entered."""
        return self._go("hk_barrier", (), (), None, async_op, timeout)

    # ---- Point to point

    def send(self, array: Any, peer: int, tag: int = 0, *, async_op: bool = False, timeout: float | None = None) -> Any:
        """To ``peer``, matched in order by (source, tag). Finished when the receive has matched and the bytes have left."""
        v = _arrays.view(array, "send: array")
        return self._go("hk_send", (v.address, v.count, v.code, peer), (v,), None, async_op, timeout, tag)

    def recv(self, array: Any, peer: int = ANY_SOURCE, tag: int = 0, *, async_op: bool = False, timeout: float | None = None) -> Any:
        """Fills ``array``, of the sender's count and type. Returns the source's rank; with ``async_op`` a Work that has it as ``source``."""
        v = _arrays.view(array, "recv: array", True)
        source = ctypes.c_int(-1)
        options = self._options(timeout, tag, source)
        if not async_op:
            self._handle.call(self._handle.lib.hold.hk_recv, v.address, v.count, v.code, peer, options=ctypes.addressof(options),
                              keep=(v, source))
            return source.value
        request = self._handle.submit(self._handle.lib.hold.hk_recv, v.address, v.count, v.code, peer, options=ctypes.addressof(options),
                                      keep=(v, source))
        return Work(request, array, source)

    # ---- Other communicators

    def split(self, color: int, key: int = 0) -> Comm | None:
        """Collective. Ranks of one color (>= 0) form a communicator, ordered by (key, rank); color -1 takes no part and gets None."""
        at = ctypes.c_void_p()
        self._check(self._handle.lib.free.hk_comm_split(self._at(), color, key, ctypes.addressof(at)))
        return Comm(Handle(at.value)) if at.value else None

    def dup(self) -> Comm:
        """Collective. Another communicator of the same ranks: its own order, time limit and fate."""
        made = self.split(0, self.rank)
        assert made is not None
        return made

    def group(self, ranks: Sequence[int], tag: int = 0) -> Comm:
        """A communicator of these ranks in this order, made by them alone, without a word between them. ``tag`` tells groups apart."""
        at, numbers = ctypes.c_void_p(), (ctypes.c_int * len(ranks))(*ranks)
        self._check(self._handle.lib.hold.hk_comm_create_group(self._at(), numbers, len(ranks), tag, ctypes.addressof(at)))
        assert at.value is not None
        return Comm(Handle(at.value))

    def abort(self) -> None:
        """Ends every pending and later operation on all ranks with Aborted. From any thread; never blocks. destroy() still frees."""
        self._handle.abort()

    def destroy(self, timeout: float = 30.0) -> None:
        """Waits up to ``timeout`` seconds for unfinished operations, aborts the rest, and frees. Any state is accepted; idempotent."""
        self._handle.destroy(timeout)

    # ---- Inside

    def _at(self) -> int:
        if not self._handle.at:
            raise self._handle.gone()
        return self._handle.at

    def _check(self, status: int) -> None:
        if status:
            raise self._handle.error(status)

    def _part(self, what: str, v: _arrays.View) -> tuple[int, ...]:
        """The shape of one rank's part of an array that is split along its first axis."""
        if not v.shape or v.shape[0] % self.ranks:
            raise _errors.Invalid(f"rank {self.rank}: {what}: an array of shape {v.shape} is not split by {self.ranks} ranks along its first axis")
        return (v.shape[0] // self.ranks, *v.shape[1:])

    def _out(self, what: str, out: Any, like: Any, v: _arrays.View, shape: tuple[int, ...], count: int) -> tuple[Any, _arrays.View]:
        """Where the result goes: ``out``, checked to hold ``count`` elements of v's type, or a new array of ``shape``."""
        if out is like and count == v.count:
            return out, v
        if out is None:
            out = _arrays.empty(like, shape)
        o = _arrays.view(out, f"{what}: out", True)
        if v.code != o.code or o.count != count:
            raise _errors.Invalid(f"rank {self.rank}: {what}: out has {o.count} elements of {_arrays.DTYPES[o.code]}, it needs "
                                  f"{count} of {_arrays.DTYPES[v.code]}")
        return out, o

    def _options(self, timeout: float | None, tag: int, source: ctypes.c_int | None = None) -> Options:
        o = Options(ctypes.sizeof(Options), 0 if timeout is None else max(int(timeout * 1e6), 1))
        o.tag = tag
        o.source = ctypes.addressof(source) if source is not None else None
        return o

    def _go(self, name: str, call: tuple[object, ...], keep: object, result: Any, async_op: bool, timeout: float | None, tag: int = 0) -> Any:
        handle = self._handle
        function: Callable[..., int] = getattr(handle.lib.hold, name)
        o = self._options(timeout, tag) if timeout is not None or tag else None
        options = None if o is None else ctypes.addressof(o)
        if async_op:
            return Work(handle.submit(function, *call, options=options, keep=keep), result)
        handle.call(function, *call, options=options, keep=keep)
        return result


# ---- Making the first one


def config(timeout: float | None, init_timeout: float | None, transport: str | None, algorithm: str | None,
           determinism: str | None) -> Config:
    """hk_config; times in seconds, None: the default."""
    def text(s: str | None) -> bytes | None:
        return None if s is None else s.encode()

    def us(s: float | None) -> int:
        return 0 if s is None else max(int(s * 1e6), 1)

    return Config(ctypes.sizeof(Config), us(timeout), us(init_timeout), text(transport), text(algorithm), None, text(determinism))


def create_id() -> bytes:
    """128 bytes that one rank makes, gives to the others by any means, and uses itself: the others meet at it, once."""
    made, lib = Id(), library()
    status = lib.hold.hk_id_create(ctypes.addressof(made))
    if status:
        raise _errors.BY_STATUS.get(status, _errors.Error)(lib.last_error())
    return ctypes.string_at(ctypes.addressof(made), 128)


def meet(create: Callable[[int], int], errors: dict[int, type[_errors.Error]] = _errors.BY_STATUS) -> Handle:
    """Runs ``create(address of an hk_comm *)``, which blocks until all ranks are there, in a thread, so that Ctrl-C works."""
    at, lib = ctypes.c_void_p(), library()
    outcome: list[tuple[int, str]] = []
    raised: list[BaseException] = []

    def body() -> None:
        try:
            status = create(ctypes.addressof(at))
            outcome.append((status, lib.last_error() if status else ""))
        except BaseException as e:  # raised again by the caller
            raised.append(e)

    thread = threading.Thread(target=body, name="hocket-meet", daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(0.2)
    if raised:
        raise raised[0]
    status, text = outcome[0]
    if status:
        raise errors.get(status, _errors.Error)(text)
    assert at.value is not None
    return Handle(at.value, errors)


def create(rank: int, ranks: int, made: bytes, settings: Config, errors: dict[int, type[_errors.Error]] = _errors.BY_STATUS) -> Handle:
    """Meets the other ranks at an id of create_id(). Raises BootFailed, naming who is missing."""
    held = Id.from_buffer_copy(made)
    lib = library()
    return meet(lambda at: lib.free.hk_comm_create(at, ranks, rank, ctypes.addressof(held), ctypes.addressof(settings)), errors)


def _through_file(path: str, rank: int, seconds: float) -> bytes:
    """The id by way of a file that rank 0 writes and the others wait for."""
    if rank == 0:
        made = create_id()
        temporary = f"{path}.{os.getpid()}"
        with open(temporary, "wb") as f:
            f.write(made)
        os.replace(temporary, path)
        return made
    end = time.monotonic() + seconds
    while True:
        try:
            with open(path, "rb") as f:
                return f.read()
        except FileNotFoundError:
            if time.monotonic() > end:
                raise _errors.BootFailed(f"rank {rank}: rank 0 has not written {path} within {seconds:g} s") from None
            time.sleep(0.01)


def init(rank: int | None = None, ranks: int | None = None, store: Any = None, *, timeout: float | None = None,
         init_timeout: float | None = None, transport: str | None = None, algorithm: str | None = None,
         determinism: str | None = None) -> Comm:
    """Meets the other ranks and returns when all are there.

    Without arguments rank, ranks and meeting place come from the environment: hocket run, torchrun, mpirun, srun. Otherwise give all of
    ``rank``, ``ranks`` and ``store``: a path that all ranks see and that is new for this job, or an object with ``set(key, bytes)`` and a
    ``get(key)`` that waits for the key (a torch.distributed store).

    ``timeout``: seconds, the limit of each operation (default 300); ``init_timeout``: of the meeting (30). The others: hk_config in hocket.h.
    Raises BootFailed, naming who is missing; Invalid.
    """
    settings = config(timeout, init_timeout, transport, algorithm, determinism)
    if rank is None and ranks is None and store is None:
        lib = library()
        return Comm(meet(lambda at: lib.free.hk_comm_create_env(at, ctypes.addressof(settings))))
    if rank is None or ranks is None or (store is None and ranks > 1):
        raise _errors.Invalid("init: give rank, ranks and store together, or none of them to take them from the environment")
    if store is None:
        made = create_id()
    elif isinstance(store, (str, os.PathLike)):
        made = _through_file(os.fspath(store), rank, init_timeout or 30.0)
    elif rank == 0:
        made = create_id()
        store.set("hocket/id", made)
    else:
        made = bytes(store.get("hocket/id"))
    comm = Comm(create(rank, ranks, made, settings))
    if rank == 0 and isinstance(store, (str, os.PathLike)):
        os.unlink(store)
    return comm
