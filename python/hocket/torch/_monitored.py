# SPDX-License-Identifier: Apache-2.0
"""A barrier that names who is missing. Through torch's store: it works also when the group is stuck, and breaks nothing."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any


def barrier(store: Any, rank: int, ranks: int, number: int, limit: timedelta, wait_all_ranks: bool) -> None:
    """The ``number``-th of the group. Rank 0 waits for all, the others for its word. Raises RuntimeError with the missing ranks."""
    end, ms = time.monotonic() + limit.total_seconds(), int(limit.total_seconds() * 1000)
    place = f"hocket/monitored/{number}"
    if rank:
        store.set(f"{place}/{rank}", b"here")
        if not _comes(store, f"{place}/done", end):
            raise RuntimeError(f"Rank {rank} successfully reached monitoredBarrier, but received errors while waiting for send/recv from "
                               f"rank 0 in {ms} ms. Please check rank 0 logs for faulty rank.")
        return
    missing: list[int] = []
    for r in range(1, ranks):
        if time.monotonic() >= end and not wait_all_ranks:
            raise RuntimeError(f"Rank {rank} timed out in monitoredBarrier after {ms} ms. Successfully processed ranks: "
                               f"{', '.join(map(str, range(1, r))) or 'none'}")
        if _comes(store, f"{place}/{r}", end):
            continue
        missing.append(r)
        if not wait_all_ranks:
            break
    if missing:
        who = f"Rank {missing[0]}" if len(missing) == 1 else "Ranks " + ", ".join(map(str, missing))
        raise RuntimeError(f"{who} failed to pass monitoredBarrier in {ms} ms")
    store.set(f"{place}/done", b"all")


def _comes(store: Any, key: str, end: float) -> bool:
    """Does the key come until then?"""
    if store.check([key]):
        return True
    left = end - time.monotonic()
    if left <= 0:
        return False
    try:
        store.wait([key], timedelta(seconds=max(left, 0.001)))
    except RuntimeError:  # DistStoreError: the time is over, or the store is gone
        return False
    return True
