# SPDX-License-Identifier: Apache-2.0
"""Memory that ranks on the same host see: hk_mem_register for buffers that come and go.

Blocks are plain memory, registered once and used again and again: to move pages costs more than one operation saves. When the
communicator is destroyed they stay good memory of this process, which peers no longer see.
"""

from __future__ import annotations

import ctypes
import itertools
import mmap
import os
import threading
import weakref
from collections import deque
from typing import Any

from ._handle import Handle

_shown: dict[int, int] = {}  # address -> bytes, of all that this process has registered: its communicators share it
_serials = itertools.count(1)
_memories: weakref.WeakSet[Memory] = weakref.WeakSet()


class _Block:
    """Whole pages of plain memory."""

    __slots__ = ("pages", "at", "size")

    def __init__(self, size: int) -> None:
        self.size = (size + mmap.PAGESIZE - 1) // mmap.PAGESIZE * mmap.PAGESIZE
        self.pages = mmap.mmap(-1, self.size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.at = ctypes.addressof(ctypes.c_char.from_buffer(self.pages))


class Memory:
    """What was registered through one communicator. May be used from several threads."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle
        self._lock = threading.Lock()
        self._mine: dict[int, int] = {}  # address -> serial of its registration
        self._owners: dict[int, weakref.ref[Any]] = {}  # by serial, of what was not made here
        self._idle: list[_Block] = []  # blocks that nobody uses, oldest first
        self._back: deque[_Block] = deque()  # the same, as finalizers leave them, which may run anywhere and so take no lock
        self._live = self._most = 0  # bytes of blocks in use, now and at most
        _memories.add(self)

    def take(self, size: int) -> memoryview | None:
        """A block of ``size`` bytes or some more, its contents anything, while the view lives; None where ranks cannot share memory, as in a
        child of fork, where idle blocks are the parent's.
        """
        if os.getpid() != self._handle.pid:
            return None
        with self._lock:
            while self._back:
                back = self._back.popleft()
                self._live -= back.size
                self._idle.append(back)
            block = min((b for b in self._idle if size <= b.size <= size + size // 4 + mmap.PAGESIZE), key=lambda b: b.size, default=None)
            if block is not None:
                self._idle.remove(block)
            else:
                try:
                    block = _Block(size)
                except (OSError, OverflowError):  # more than there can be: so says whoever makes it otherwise
                    return None
                if self._show(block.at, block.size) is not None:
                    return None
            self._live += block.size
            self._most = max(self._most, self._live)
            self._trim()
        view = memoryview(block.pages)
        weakref.finalize(view, self._back.append, block).atexit = False
        return view

    def register(self, owner: Any) -> str | None:
        """Shows the nbytes() at data_ptr() of ``owner`` to ranks of this host until it dies, which must be before its memory is used for
        something else.

        No other thread may write there meanwhile. None, or why it cannot be. Twice is as good as once.
        """
        at, size = owner.data_ptr(), owner.nbytes()
        with self._lock:
            if _shown.get(at, -1) >= size:
                return None
            why = self._show(at, size)
            if why is None:
                serial = self._mine[at]
                self._owners[serial] = weakref.ref(owner)
                weakref.finalize(owner, self._hide, at, serial).atexit = False
        return why

    def look_after(self) -> None:
        """Takes back what its owner has given up without dying, as a storage does that is resized or goes to share_memory_()."""
        for at, serial in list(self._mine.items()):
            owner = self._owners[serial]() if serial in self._owners else None
            if owner is not None and owner.data_ptr() != at:
                self._hide(at, serial)

    def close(self) -> None:
        """What was registered becomes memory as any other, contents kept. To be called before the communicator is destroyed."""
        with self._lock:
            for at, serial in list(self._mine.items()):
                self._hide(at, serial)
            self._idle.clear()  # not before: what is unmapped first keeps its place in the segment

    def _trim(self) -> None:
        """No more bytes are kept than were in use at once."""
        excess = self._live + sum(b.size for b in self._idle) - self._most
        while excess > 0 and self._idle:
            block = self._idle.pop(0)
            excess -= block.size
            self._hide(block.at, self._mine.get(block.at, 0))

    def _show(self, at: int, size: int) -> str | None:
        handle = self._handle
        if not handle.at:
            raise handle.gone()
        if handle.lib.free.hk_mem_register(handle.at, at, size):
            return handle.lib.last_error(handle.at)
        _shown[at] = size
        self._mine[at] = next(_serials)
        return None

    def _hide(self, at: int, serial: int) -> None:
        """Also run by finalizers, so it takes no lock; the GIL, kept from here on, keeps the communicator."""
        handle = self._handle
        if os.getpid() != handle.pid or self._mine.get(at) != serial or self._mine.pop(at, None) is None:  # another thread was first
            return
        self._owners.pop(serial, None)
        _shown.pop(at, None)
        if handle.at:
            handle.lib.hold.hk_mem_deregister(handle.at, at)  # fails if it was unmapped, which is as good


def _before_fork() -> None:
    """What is the heap's again must not be shared with a child, whose heap would write into this one."""
    for memory in list(_memories):
        memory.look_after()


os.register_at_fork(before=_before_fork)
