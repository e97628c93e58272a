#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Handwritten digits learnt by DistributedDataParallel, by hocket or any other backend.

    torchrun --nproc-per-node 2 examples/torch_ddp.py                    # hocket
    torchrun --nproc-per-node 2 examples/torch_ddp.py --backend gloo     # the same losses

Each rank takes every n-th digit of a batch, so the number of ranks changes nothing but rounding. Rank 0 prints the losses, the accuracy on
digits that were held out, and the median time of a step.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import statistics
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import hocket.torch  # noqa: F401  registers the backend

HELD_OUT = 297


def digits() -> tuple[Tensor, Tensor]:
    """Pixels (1797, 64) in 0..1, and labels (1797)."""
    with gzip.open(Path(__file__).parent / "data" / "digits.csv.gz", "rt") as f:
        rows = torch.tensor([[float(v) for v in row] for row in csv.reader(f)])
    return rows[:, :64] / 16, rows[:, 64].long()


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--backend", default="hocket")
    p.add_argument("--epochs", type=int, default=4)
    p.add_argument("--batch", type=int, default=100, help="digits of a step, over all ranks")
    p.add_argument("--hidden", type=int, default=512)
    a = p.parse_args()

    dist.init_process_group(a.backend)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    x, y = digits()
    model = DistributedDataParallel(nn.Sequential(nn.Linear(64, a.hidden), nn.ReLU(), nn.Linear(a.hidden, a.hidden), nn.ReLU(),
                                                  nn.Linear(a.hidden, 10)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    n = len(x) - HELD_OUT
    times = []
    for epoch in range(a.epochs):
        order, total = torch.randperm(n), torch.zeros(1)
        for at in range(0, n, a.batch):
            begin = time.perf_counter()
            whole = order[at : at + a.batch]
            mine = whole[rank::ranks]
            # DDP takes the mean over ranks; with shares of unequal size that is weighted.
            loss = nn.functional.cross_entropy(model(x[mine]), y[mine], reduction="sum") * ranks / len(whole)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            times.append(time.perf_counter() - begin)
            total += loss.detach() / ranks
        dist.all_reduce(total)
        with torch.no_grad():
            right = (model.module(x[n:]).argmax(1) == y[n:]).float().mean().item()
        if rank == 0:
            print(f"epoch {epoch + 1}  loss {total.item() / (n // a.batch):.6f}  held-out accuracy {100 * right:.2f} %")
    if rank == 0:
        print(f"{a.backend}, {ranks} ranks: median step {statistics.median(times) * 1e3:.2f} ms")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
