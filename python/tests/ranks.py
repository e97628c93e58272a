# SPDX-License-Identifier: Apache-2.0
"""Ranks for tests: forked children of the test process, which itself never communicates, so that what it has imported is there already."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

LIMIT_S = 40.0


def _child(pipe: Connection, rank: int, ranks: int, place: str, body: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(ranks), LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE=str(ranks), HOCKET_JOB=place,
                      HOCKET_RANK=str(rank), HOCKET_RANKS=str(ranks), OMP_NUM_THREADS="1")
    try:
        pipe.send((True, body(rank, ranks, place, *arguments)))
    except BaseException:  # told to the test
        pipe.send((False, traceback.format_exc()))
    finally:
        pipe.close()


def run(n: int, place: Path, body: Callable[..., Any], *arguments: Any, lost: tuple[int, ...] = ()) -> list[Any]:
    """body(rank, ranks, path of a new file, *arguments) in n processes; what each returned. Ranks in ``lost`` may die without a word.

    Fails with the first rank's traceback, or after LIMIT_S with who is late.
    """
    context = multiprocessing.get_context("fork")
    sys.stdout.flush()
    pipes, children = [], []
    for rank in range(n):
        here, there = context.Pipe(duplex=False)
        child = context.Process(target=_child, args=(there, rank, n, str(place / "meet"), body, arguments), daemon=True)
        child.start()
        there.close()
        pipes.append(here)
        children.append(child)
    end = time.monotonic() + LIMIT_S
    results: list[Any] = [None] * n
    problems = []
    for rank, pipe in enumerate(pipes):
        try:
            if not pipe.poll(max(0.0, end - time.monotonic())):
                problems.append(f"rank {rank}: nothing after {LIMIT_S:g} s")
                continue
            good, results[rank] = pipe.recv()
            if not good:
                problems.append(f"rank {rank}:\n{results[rank]}")
        except EOFError:
            if rank not in lost:
                problems.append(f"rank {rank}: died without a word")
    for rank, child in enumerate(children):
        child.join(0.1 if problems else max(0.1, end - time.monotonic()))
        if child.is_alive():
            if not problems:
                problems.append(f"rank {rank}: does not end")
            os.kill(child.pid, signal.SIGKILL)
            child.join()
        elif child.exitcode and rank not in lost and not problems:
            problems.append(f"rank {rank}: exit code {child.exitcode}")
    assert not problems, "\n".join(problems)
    return results


def say(place: str) -> None:
    """Lets others go on that wait_until(place)."""
    Path(place + ".said").touch()


def wait_until(place: str) -> None:
    """Returns when some rank has said so. The way between ranks that does not go through what is tested."""
    end = time.monotonic() + LIMIT_S
    while not Path(place + ".said").exists():
        assert time.monotonic() < end, "nobody said so"
        time.sleep(0.005)
