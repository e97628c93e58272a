# SPDX-License-Identifier: Apache-2.0
"""hocket's exceptions as torch.distributed expects them: each is also a DistBackendError, losses of a peer a DistNetworkError too.

So ``except hocket.PeerLost``, ``except dist.DistBackendError`` and, for time limits, ``except TimeoutError`` all work.
"""

from __future__ import annotations

import torch.distributed as dist

from .. import _errors as base

_Network = getattr(dist, "DistNetworkError", dist.DistBackendError)


class Timeout(base.Timeout, dist.DistBackendError):
    """The time limit of an operation passed."""

    def __init__(self, text: str) -> None:
        super().__init__(f"Operation Timed out - {text}")  # the words that callers of other backends look for


class WaitExpired(base.WaitExpired, dist.DistBackendError):
    """The limit given to ``wait`` passed; the operation goes on."""

    def __init__(self, text: str) -> None:
        super().__init__(f"Wait Timed out - {text}")


class PeerLost(base.PeerLost, dist.DistBackendError, _Network):  # type: ignore[misc]
    """A rank died or its link broke."""


class PeerLeft(base.PeerLeft, dist.DistBackendError, _Network):  # type: ignore[misc]
    """A rank destroyed its group while others still needed it."""


def _joined(cls: type[base.Error]) -> type[base.Error]:
    made = type(cls.__name__, (cls, dist.DistBackendError), {"__doc__": cls.__doc__, "__module__": __name__})
    return made


BY_STATUS: dict[int, type[base.Error]] = {status: _joined(cls) for status, cls in base.BY_STATUS.items()}
for _cls in (Timeout, WaitExpired, PeerLost, PeerLeft):
    BY_STATUS[_cls.status] = _cls
Invalid = BY_STATUS[base.Invalid.status]
Unsupported = BY_STATUS[base.Unsupported.status]
Aborted = BY_STATUS[base.Aborted.status]
