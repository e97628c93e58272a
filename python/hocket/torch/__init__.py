# SPDX-License-Identifier: Apache-2.0
"""hocket as a backend of torch.distributed.

    import hocket.torch                       # not needed from torch 2.5 on, which finds it by itself
    dist.init_process_group("hocket")         # or "cpu:hocket"

Everything of torch.distributed on CPU tensors, DDP and FSDP2 included. docs/python.md tells what differs from other backends.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch.distributed as dist

from ._compile import leave_alone
from ._group import Options, create
from ._memory import empty, empty_like, register_, register_ddp_buckets, zeros

__all__ = ["Options", "empty", "empty_like", "monitored_barrier", "register_", "register_ddp_buckets", "set_default", "zeros"]


def _register() -> None:
    if "HOCKET" not in dist.Backend._plugins:
        dist.Backend.register_backend("hocket", create, extended_api=True, devices=["cpu"])


def set_default() -> None:
    """From here on init_process_group() without a backend, and device meshes, take hocket for the CPU."""
    dist.Backend.default_device_backend_map["cpu"] = "hocket"


def monitored_barrier(group: Any = None, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None:
    """dist.monitored_barrier, which torch until 2.13 allows for gloo only: a barrier that names the ranks that do not come.

    ``timeout``: the group's own if None. ``wait_all_ranks``: rank 0 names all that are missing, not just the first. Raises RuntimeError.
    """
    group = group if group is not None else dist.distributed_c10d._get_default_group()
    group.monitored_barrier(timeout, wait_all_ranks)


leave_alone("hocket")
_register()
