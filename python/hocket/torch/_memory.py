# SPDX-License-Identifier: Apache-2.0
"""Tensors in memory that ranks on the same host see, so that operations on them copy less.

``empty`` and its relatives take blocks of the group's; ``register_`` moves the pages of a tensor that is there, address and contents
kept; ``Buckets`` does so for what DDP reduces. All last until the tensor's storage dies or the group is shut down.
"""

from __future__ import annotations

import math
import operator
import weakref
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from .._memory import Memory
from ._errors import Invalid, Unsupported
from ._tensors import check

WORTH_BYTES = 16384  # of less, operations copy anyway


def of(group: Any, what: str) -> Any:
    """hocket's group behind a torch.distributed one, None meaning the default."""
    group = group if group is not None else dist.distributed_c10d._get_default_group()
    ours = group._get_backend(torch.device("cpu"))
    if not hasattr(ours, "memory"):
        raise Invalid(f"{what}: the group's backend is {dist.get_backend(group)}, not hocket")
    return ours


def allocate(memory: Memory, count: int, dtype: torch.dtype) -> Tensor:
    """A new tensor of one dimension; in ordinary memory where it is small, or ranks cannot share any."""
    size = count * torch.empty((), dtype=dtype).element_size()
    view = memory.take(size) if size >= WORTH_BYTES else None
    return torch.empty(count, dtype=dtype) if view is None else torch.frombuffer(view, dtype=dtype, count=count)


def empty(*size: Any, dtype: torch.dtype | None = None, group: Any = None) -> Tensor:
    """torch.empty in memory that ranks on this host see. ``size``: numbers or one sequence. ``group``: the default one if None.

    It stays valid when the group is destroyed. Its storage cannot be resized. A forked child shares it with its parent. Small tensors,
    and all of them where the kernel lets ranks share no memory, are ordinary ones.
    """
    shape = [operator.index(n) for n in (size[0] if len(size) == 1 and not hasattr(size[0], "__index__") else size)]
    memory, dtype = of(group, "hocket.torch.empty").memory, dtype if dtype is not None else torch.get_default_dtype()
    flat = allocate(memory, math.prod(shape), dtype)
    return torch.empty(0, dtype=dtype).set_(flat.untyped_storage(), 0, shape)  # no view, which some things refuse


def zeros(*size: Any, dtype: torch.dtype | None = None, group: Any = None) -> Tensor:
    """torch.zeros in such memory: see ``empty``."""
    return empty(*size, dtype=dtype, group=group).zero_()


def empty_like(t: Tensor, *, dtype: torch.dtype | None = None, group: Any = None) -> Tensor:
    """A contiguous tensor of t's shape and type in such memory: see ``empty``."""
    return empty(t.shape, dtype=dtype if dtype is not None else t.dtype, group=group)


def register_(t: Tensor, group: Any = None) -> Tensor:
    """Moves the whole pages of t's storage into memory that ranks on this host see, contents and address kept. Returns ``t``.

    It lasts until the storage dies or the group is shut down; a storage that is resized loses it. No other thread may write to the storage
    during the call. Views count as their storage; a second call does nothing. Raises Unsupported with the reason: less than a page, a file, memory
    that is shared already, a kernel that lets ranks share none; Invalid while an operation uses it, and for what is not a CPU tensor.
    """
    ours = of(group, "hocket.torch.register_")
    check(t, "hocket.torch.register_")
    why = _register(ours.memory, t.untyped_storage())
    if why is not None:
        raise (Invalid if "under way" in why else Unsupported)(f"hocket.torch.register_: {why}")
    return t


def _tells_before() -> bool:
    """Do finalizers of a storage run before its memory is free, when the last to hold it is C++? Not in every torch."""
    order: list[str] = []
    pages = memoryview(bytearray(64))
    weakref.finalize(pages, order.append, "memory")
    t, weight = torch.frombuffer(pages, dtype=torch.float32), torch.ones(16, requires_grad=True)
    del pages
    weakref.finalize(t.untyped_storage(), order.append, "storage")
    with torch.enable_grad():
        held = (weight * t).sum()
    del t, held
    return order == ["storage", "memory"]


_safe: bool | None = None


def _register(memory: Memory, storage: torch.UntypedStorage) -> str | None:
    global _safe
    if _safe is None:
        _safe = _tells_before()
    if not _safe:
        return f"torch {torch.__version__} does not tell in time when a storage ends; use hocket.torch.empty"
    return memory.register(storage)


class Buckets:
    """Registers what is reduced again and again in the same storage: gradient buckets, as DDP makes them anew after its first steps."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._seen: weakref.WeakSet[Any] = weakref.WeakSet()
        self._settled: weakref.WeakSet[Any] = weakref.WeakSet()

    def see(self, t: Tensor) -> None:
        """Before an all_reduce of ``t``."""
        storage = t.untyped_storage()
        if storage in self._settled or storage.nbytes() < WORTH_BYTES:
            return
        if storage in self._seen:
            _register(self._memory, storage)  # or not: it works as well, and slower
            self._settled.add(storage)
        self._seen.add(storage)


def register_ddp_buckets(model: Any) -> None:
    """Gradient buckets of a DistributedDataParallel become memory that ranks on this host see, each when it is reduced a second time.

    Any tensor of 16 KiB and more that the model's group reduces twice and asynchronously counts as one. Lasts as long as the buckets. Raises Invalid
    for another kind of model or backend.
    """
    group = getattr(model, "process_group", None)
    if not isinstance(model, torch.nn.parallel.DistributedDataParallel):
        raise Invalid(f"hocket.torch.register_ddp_buckets: a {type(model).__name__}, not a DistributedDataParallel")
    of(group, "hocket.torch.register_ddp_buckets").watch_buckets()
