# SPDX-License-Identifier: Apache-2.0
"""Failures as exceptions: one class a status of hocket.h, all of them :class:`Error`.

Two branches matter to a caller. Below :class:`Broken` the communicator is unusable from then on, on every rank, and every later call
raises the first cause again: destroy it. All others broke nothing: communicator and peers are as they were.

The text is the library's own sentence: rank, operation, cause, remedy.
"""

from __future__ import annotations


class Error(RuntimeError):
    """Any failure of hocket. ``status`` is the number in hocket.h (negative)."""

    status: int = 0


class Invalid(Error, ValueError):
    """An argument is wrong; the text names it."""

    status = -1


class Unsupported(Error):
    """A right call that this build or the forced algorithm cannot do."""

    status = -2


class OutOfMemory(Error, MemoryError):
    """An allocation failed before the operation started."""

    status = -3


class WaitExpired(Error, TimeoutError):
    """The limit given to ``wait`` passed. The operation goes on, and so does the communicator."""

    status = -4


class Forked(Error):
    """A communicator of the parent was used in a child of ``fork``."""

    status = -5


class SystemFailure(Error):
    """A system call failed before the operation started, or the library cannot be loaded here."""

    status = -6


class BootFailed(Error):
    """Ranks could not meet: no communicator was made."""

    status = -7


class Broken(Error):
    """The communicator is broken, for good and on all ranks."""


class Timeout(Broken, TimeoutError):
    """The time limit of an operation passed."""

    status = -20


class Mismatch(Broken):
    """Ranks called different operations; the text has both calls."""

    status = -21


class PeerLost(Broken):
    """A rank died or its link broke."""

    status = -22


class PeerLeft(PeerLost):
    """A rank destroyed its communicator while others still needed it."""

    status = -23


class Aborted(Broken):
    """``abort`` was called on some rank."""

    status = -24


class Corrupt(Broken):
    """A peer sent bytes that cannot be right."""

    status = -25


BY_STATUS: dict[int, type[Error]] = {
    c.status: c
    for c in (Invalid, Unsupported, OutOfMemory, WaitExpired, Forked, SystemFailure, BootFailed, Timeout, Mismatch, PeerLost, PeerLeft,
              Aborted, Corrupt)
}
