# SPDX-License-Identifier: Apache-2.0
"""A barrier that names who is missing. Through torch's store: it works also when the group is stuck, and breaks nothing."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any


def barrier(store: Any, rank: int, ranks: int, number: int, limit: timedelta, wait_all_ranks: bool) -> None:
    """The group's ``number``-th. Rank 0 waits for all, the others for its word. Raises RuntimeError with the missing, everywhere."""
    end, ms = time.monotonic() + limit.total_seconds(), int(limit.total_seconds() * 1000)
    place = f"hocket/monitored/{number}"
    store.set(f"{place}/{rank}", b"here")
    if rank:
        if _comes(store, f"{place}/word", end):
            who = bytes(store.get(f"{place}/word")).decode()
        else:
            who = _named(_missing(store, place, ranks) or [0])  # all are there now: rank 0 was late
        if who:
            raise RuntimeError(f"Rank {rank} successfully reached monitoredBarrier, but received errors while waiting for send/recv from "
                               f"rank 0 in {ms} ms. {who} failed to pass it")
        return
    for r in range(1, ranks):
        over = time.monotonic() >= end
        if _comes(store, f"{place}/{r}", end):
            continue
        who = _named((wait_all_ranks and _missing(store, place, ranks)) or [r])
        store.set(f"{place}/word", who.encode())
        if over and not wait_all_ranks:
            raise RuntimeError(f"Rank {rank} timed out in monitoredBarrier after {ms} ms. Successfully processed ranks: "
                               f"{', '.join(map(str, range(1, r))) or 'none'}. {who} had not come")
        raise RuntimeError(f"{who} failed to pass monitoredBarrier in {ms} ms")
    store.set(f"{place}/word", b"")


def _missing(store: Any, place: str, ranks: int) -> list[int]:
    return [r for r in range(ranks) if not store.check([f"{place}/{r}"])]


def _named(ranks: list[int]) -> str:
    return f"Rank {ranks[0]}" if len(ranks) == 1 else "Ranks " + ", ".join(map(str, ranks))


def _comes(store: Any, key: str, end: float) -> bool:
    """Does the key come until then? Asks again and again: Ctrl-C does not get through to a wait of the store's."""
    pause = 0.001
    while not store.check([key]):
        left = end - time.monotonic()
        if left <= 0:
            return False
        time.sleep(min(pause, left))
        pause = min(pause * 1.5, 0.05)
    return True
