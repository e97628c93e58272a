# SPDX-License-Identifier: Apache-2.0
"""The group as torch sees it, in two shapes, and how it comes to be.

A backend in Python is a ProcessGroup, which then is the group, whatever other devices were named beside; from torch 2.14 on it can be a
Backend inside torch's own group instead. There C++ stands between the program and its Work, and knows neither is_completed nor source_rank
of it. So it is a Backend only in a group that has other devices too.

A group is made by hk_comm_create_group from the default group if that is hocket's, which takes no message and no order between groups;
otherwise by an id through torch's store.
"""

from __future__ import annotations

import atexit
import os
import sys
import weakref
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as _c10d

from .. import _comm
from .._handle import Handle
from .._memory import Memory
from . import _memory, _work
from ._collectives import Collectives
from ._errors import BY_STATUS, Invalid

CLOSE_SECONDS = 0.5   # how long shutdown() waits for unfinished operations before it aborts them
SEND_SECONDS = 10.0   # the same for messages to others, who may be late but count on them
EXIT_SECONDS = 2.0    # the same at the end of the interpreter
_KEY = "hocket/id"


class Options:
    """What ``pg_options`` may be: settings of hk_config in hocket.h. None: the default."""

    def __init__(self, *, transport: str | None = None, algorithm: str | None = None, determinism: str | None = None) -> None:
        self.transport, self.algorithm, self.determinism = transport, algorithm, determinism
        self._timeout: timedelta | None = None


class Group(Collectives):
    """Life and properties, common to both shapes."""

    def _settle(self, o: Any, handle: Handle, limit: timedelta | None) -> None:
        self._begin(handle, limit)
        self._pid = os.getpid()
        self._name, self._desc = str(o.group_id), "undefined"
        self._store, self._timeout = o.store, o.timeout
        self._barriers = 0
        self.memory = Memory(handle)
        _groups.add(self)

    def getBackendName(self) -> str:
        return "hocket"

    def name(self) -> str:
        return "hocket"

    def rank(self) -> int:
        return self._rank

    def size(self) -> int:
        return self._size

    getRank, getSize = rank, size

    def set_timeout(self, timeout: timedelta) -> None:
        """The limit of each later operation that has none of its own."""
        self._timeout = timeout
        self._set_limit(timeout)

    _set_default_timeout = setTimeout = set_timeout

    def get_group_store(self) -> Any:
        return self._store

    def abort(self) -> None:
        """Ends what is under way, on all ranks, with Aborted. From any thread; never blocks."""
        if os.getpid() == self._pid:
            self._handle.abort()

    def shutdown(self) -> None:
        """Waits for what is under way, at most CLOSE_SECONDS, for sends SEND_SECONDS, and frees. Idempotent; nothing in a child of fork."""
        if os.getpid() == self._pid:
            limit = self._timeout.total_seconds()
            self._handle.destroy(min(CLOSE_SECONDS, limit), min(SEND_SECONDS, limit), self.memory.close)

    def supports_tensor_alloc(self, device: Any) -> bool:
        return device is None or torch.device(device).type == "cpu"

    def allocate_tensor(self, size: int, *, dtype: torch.dtype, device: Any = None) -> torch.Tensor:
        """A tensor of ``size`` elements, uninitialized, in memory that ranks on this host see: see hocket.torch.empty. Raises Invalid for
        another device than the CPU.
        """
        if not self.supports_tensor_alloc(device):
            raise Invalid(f"allocate_tensor: device {device}: hocket's memory is the CPU's")
        return _memory.allocate(self.memory, size, dtype)

    def watch_buckets(self) -> None:
        """See hocket.torch.register_ddp_buckets."""
        self._buckets = _memory.Buckets(self.memory)

    def monitored_barrier(self, timeout: Any = None, wait_all_ranks: bool = False) -> None:
        """A barrier through the store, so that it can tell who is missing: see hocket.torch.monitored_barrier."""
        from ._monitored import barrier

        limit = timeout if isinstance(timeout, timedelta) else getattr(timeout, "timeout", None)
        self._barriers += 1
        barrier(self._store, self._rank, self._size, self._barriers, self._timeout if limit is None or limit.days < 0 else limit, wait_all_ranks)

    def _set_sequence_number_for_group(self) -> None:
        self._count = 0

    def _get_sequence_number_for_group(self) -> int:
        return self._count

    def _wait_for_pending_works(self) -> None:
        self._handle.finish(self._timeout.total_seconds())

    def _enable_collectives_timing(self) -> None:
        return None

    def __repr__(self) -> str:
        return f"<hocket group '{self._name}': rank {self._rank} of {self._size}>"


_groups: weakref.WeakSet[Group] = weakref.WeakSet()


@atexit.register
def _leave() -> None:
    for group in list(_groups):
        if group._pid == os.getpid():
            group._handle.destroy(EXIT_SECONDS)
    _work.stop()


class ProcessGroup(Group, _c10d.ProcessGroup):
    """The shape of a group for the CPU alone, and of every group until torch 2.13."""

    bound_device_id = None
    supports_splitting = supports_time_estimate = supports_shrinking = supports_reconfigure = supports_window = False
    supports_coalescing = True

    def __init__(self, o: Any, handle: Handle, limit: timedelta | None) -> None:
        _c10d.ProcessGroup.__init__(self, o.group_rank, o.group_size)
        self._settle(o, handle, limit)

    def getGroupName(self) -> str:
        return self._name

    def setGroupName(self, name: str) -> None:
        self._name = name

    def getGroupDesc(self) -> str:
        return self._desc

    def setGroupDesc(self, desc: str) -> None:
        self._desc = desc

    _set_group_name, _set_group_desc = setGroupName, setGroupDesc

    @property
    def group_name(self) -> str:
        return self._name

    @property
    def group_desc(self) -> str:
        return self._desc

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device("cpu")]

    def _get_backend(self, device: Any) -> ProcessGroup:
        return self

    get_backend = _get_backend

    def _get_backend_name(self) -> str:
        return "hocket"

    def _has_hooks(self) -> bool:
        return False


def _takes_backends() -> bool:
    """Can a Python class be a Backend?"""
    try:
        type("_Probe", (_c10d.Backend,), {})(0, 1)
    except Exception:  # no constructor
        return False
    return True


_Beside: Any = None
if _takes_backends():

    class Backend(Group, _c10d.Backend):
        """The shape in a group that has other devices too."""

        supports_splitting = supports_time_estimate = supports_shrinking = False
        supports_coalescing = True

        def __init__(self, o: Any, handle: Handle, limit: timedelta | None) -> None:
            _c10d.Backend.__init__(self, o.group_rank, o.group_size)
            self._settle(o, handle, limit)

        @property
        def options(self) -> Any:
            return _c10d.Backend.Options("hocket", self._timeout)

    _Beside = Backend


def _shape() -> Any:
    """Of the group that torch is making: it tells nothing of other devices, so its own variable is asked."""
    frame = sys._getframe(2)
    config = frame.f_locals.get("backend_config") if _Beside is not None else None
    return _Beside if config is not None and len(config.get_device_backend_map()) > 1 else ProcessGroup


# ---- Making one

_world: weakref.ref[Group] | None = None


def _parent(members: list[int]) -> Group | None:
    """The default group, if it is hocket's and usable and has all of these ranks."""
    group = _world() if _world is not None else None
    if not members or group is None or not group._handle.at or group._pid != os.getpid() or not dist.is_initialized():
        return None
    return group if max(members) < group._size and group._rank == members_rank() else None


def members_rank() -> int:
    """This process's rank in torch's default group."""
    return int(dist.distributed_c10d._get_default_group().rank())


def create(o: Any, pg_options: Any = None) -> Any:
    """What torch calls on the members of a new group. Raises BootFailed, naming who is missing; Invalid."""
    global _world
    members, shape = list(o.global_ranks_in_group), _shape()
    parent = _parent(members)
    if parent is not None and pg_options is None:
        return shape(o, _derived(parent, members), o.timeout if o.timeout != parent._timeout else None)
    group = shape(o, _met(o, pg_options), None)
    if not members:
        _world = weakref.ref(group)
    return group


def _derived(parent: Group, members: list[int]) -> Handle:
    import ctypes

    at, numbers = ctypes.c_void_p(), (ctypes.c_int * len(members))(*members)
    handle = parent._handle
    # No tag: groups of the same ranks are told apart by how many there were before. torch's names would not do, since those of groups made
    # with use_local_synchronization depend on what else this process has made.
    status = handle.lib.hold.hk_comm_create_group(handle.at, numbers, len(members), 0, ctypes.addressof(at))
    if status:
        raise handle.error(status)
    assert at.value is not None
    return Handle(at.value, BY_STATUS)


def _met(o: Any, pg_options: Any) -> Handle:
    """Through the store: rank 0 leaves an id there."""
    import ctypes

    from .._library import Id, library

    seconds = o.timeout.total_seconds()
    given = pg_options if isinstance(pg_options, Options) else Options()
    settings = _comm.config(seconds, seconds, given.transport, given.algorithm, given.determinism)
    lib = library()

    def meet(at: int) -> int:
        if o.group_rank == 0:
            made = _comm.create_id()
            o.store.set(_KEY, made)
        else:
            o.store.wait([_KEY], o.timeout)
            made = bytes(o.store.get(_KEY))
        held = Id.from_buffer_copy(made)
        return lib.free.hk_comm_create(at, o.group_size, o.group_rank, ctypes.addressof(held), ctypes.addressof(settings))

    return _comm.meet(meet, BY_STATUS)
