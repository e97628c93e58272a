#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Python objects between ranks: handwritten digits read by rank 0 alone and told apart by all.

    torchrun --nproc-per-node 2 examples/torch_objects.py --check
    hocket run -n 4 -- python examples/torch_objects.py --backend gloo

A digit is taken for the class whose mean is nearest. Rank 0 sends the means to all (broadcast_object_list) and to each its share of the
held-out digits (scatter_object_list); what each mistook for what comes back as a Counter (gather_object).
"""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch_digits import HELD_OUT, digits

import hocket.torch  # noqa: F401  registers the backend


def mistakes(means: Tensor, x: Tensor, y: Tensor) -> Counter[tuple[int, int]]:
    """How often (label, taken for) was wrong."""
    taken = torch.cdist(x, means).argmin(1)
    return Counter(pair for pair in zip(y.tolist(), taken.tolist()) if pair[0] != pair[1])


def main() -> int:
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--backend", default="hocket")
    p.add_argument("--check", action="store_true", help="exit code 1 if the mistakes are not those of one process")
    a = p.parse_args()
    dist.init_process_group(a.backend)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    who: list[Any] = [None] * ranks
    dist.all_gather_object(who, {"rank": rank, "pid": os.getpid()})

    means: list[Any] = [None]
    shares: list[Any] | None = None
    if rank == 0:
        x, y = digits()
        means = [torch.stack([x[:-HELD_OUT][y[:-HELD_OUT] == digit].mean(0) for digit in range(10)])]
        x, y = x[-HELD_OUT:], y[-HELD_OUT:]
        shares = [(x[r::ranks], y[r::ranks]) for r in range(ranks)]
    dist.broadcast_object_list(means)
    mine: list[Any] = [None]
    dist.scatter_object_list(mine, shares)
    found: list[Any] | None = [None] * ranks if rank == 0 else None
    dist.gather_object(mistakes(means[0], *mine[0]), found)
    dist.destroy_process_group()
    if found is None:
        return 0
    total = sum(found, Counter())
    print(f"{a.backend}, processes {', '.join(str(w['pid']) for w in who)}: {sum(total.values())} of {HELD_OUT} digits mistaken")
    for (label, taken), times in total.most_common(3):
        print(f"  {label} for {taken}: {times} times")
    return int(a.check and total != mistakes(means[0], x, y))


if __name__ == "__main__":
    sys.exit(main())
