# SPDX-License-Identifier: Apache-2.0
"""torch.compile leaves this package alone.

Under a compiled function it looks at every Python function that runs, those that C++ calls for DDP too, and would fail to compile ours.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import CodeType, ModuleType
from typing import Any

import torch


def leave_alone(package: str) -> None:
    """Tells it so of all functions in the loaded modules of a package."""
    skip = _skip()
    for name, module in list(sys.modules.items()):
        if name == package or name.startswith(package + "."):
            _each(module, skip)


def _skip() -> Callable[[CodeType], Any]:
    """What torch.compile itself uses, without importing it: that takes a second. Versions of torch differ."""
    frames: Any = getattr(getattr(torch._C, "_dynamo", None), "eval_frame", None)
    if hasattr(frames, "skip_code"):
        return frames.skip_code
    if not hasattr(frames, "set_code_exec_strategy"):
        return lambda code: None
    never = frames._FrameExecStrategy(frames._FrameAction.SKIP, frames._FrameAction.DEFAULT)
    return lambda code: frames.set_code_exec_strategy(code, never)


def _each(owner: ModuleType | type, skip: Callable[[CodeType], Any]) -> None:
    name = owner.__name__ if isinstance(owner, ModuleType) else owner.__module__
    for thing in list(vars(owner).values()):
        thing = thing.fget if isinstance(thing, property) else getattr(thing, "__func__", thing)
        code = getattr(thing, "__code__", None)
        if isinstance(thing, type) and thing.__module__ == name and thing is not owner:
            _each(thing, skip)
        elif isinstance(code, CodeType):
            _with_inner(code, skip)


def _with_inner(code: CodeType, skip: Callable[[CodeType], Any]) -> None:
    skip(code)
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            _with_inner(inner, skip)
