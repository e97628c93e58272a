# SPDX-License-Identifier: Apache-2.0
"""What the examples with torch share: handwritten digits, a network, one process to compare with, and what is printed."""

from __future__ import annotations

import argparse
import csv
import gzip
import statistics
import time
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn

HELD_OUT = 297  # of 1797 digits, at the end
SGD = {"lr": 0.1, "momentum": 0.9}
NEAR = 1e-5


def digits() -> tuple[Tensor, Tensor]:
    """Pixels (1797, 64) in 0..1, and labels (1797)."""
    with gzip.open(Path(__file__).parent / "data" / "digits.csv.gz", "rt") as f:
        rows = torch.tensor([[float(v) for v in row] for row in csv.reader(f)])
    return rows[:, :64] / 16, rows[:, 64].long()


def options(doc: str) -> argparse.ArgumentParser:
    """What all that train understand."""
    p = argparse.ArgumentParser(description=doc.splitlines()[0])
    p.add_argument("--backend", default="hocket")
    p.add_argument("--epochs", type=int, default=4)
    p.add_argument("--batch", type=int, default=100, help="digits of a step, over all ranks")
    p.add_argument("--hidden", type=int, default=512, help="width of the hidden layers")
    p.add_argument("--layers", type=int, default=2, help="hidden layers")
    p.add_argument("--check", action="store_true", help=f"exit code 1 if the losses are not those of one process to {NEAR}")
    return p


def network(a: argparse.Namespace) -> nn.Sequential:
    """A perceptron: Linear, ReLU, ..., Linear. The same on every rank."""
    torch.manual_seed(0)
    widths = [64, *[a.hidden] * a.layers, 10]
    layers: list[nn.Module] = []
    for before, after in zip(widths, widths[1:]):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def batches(a: argparse.Namespace) -> Iterator[tuple[Tensor, Tensor]]:
    """The steps of all epochs: pixels (batch, 64) and labels (batch), the same on every rank; what does not fill a batch is left out."""
    x, y = digits()
    n, order = len(x) - HELD_OUT, torch.Generator().manual_seed(1)
    for _ in range(a.epochs):
        shuffled = torch.randperm(n, generator=order)
        for at in range(0, n - a.batch + 1, a.batch):
            of_step = shuffled[at : at + a.batch]
            yield x[of_step], y[of_step]


def train_shared(a: argparse.Namespace, model: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[Tensor, list[float]]:
    """Each rank takes every n-th digit of a batch. The losses (steps), each over its whole batch, and the seconds of each step."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    losses, seconds = [], []
    for x, y in batches(a):
        begin = time.perf_counter()
        # DDP and FSDP take the mean over ranks; with shares of unequal size that is weighted.
        loss = nn.functional.cross_entropy(model(x[rank::ranks]), y[rank::ranks], reduction="sum") * ranks / len(y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seconds.append(time.perf_counter() - begin)
        losses.append(loss.detach())
    mean = torch.stack(losses)
    dist.all_reduce(mean, dist.ReduceOp.SUM)
    return mean / ranks, seconds


def alone(a: argparse.Namespace) -> list[float]:
    """The losses of one process, step by step."""
    model, losses = network(a), []
    optimizer = torch.optim.SGD(model.parameters(), **SGD)
    for x, y in batches(a):
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def finish(a: argparse.Namespace, losses: Tensor, seconds: list[float]) -> int:
    """Leaves the group, prints on rank 0, and returns the exit code. ``losses`` (steps): each over its whole batch; ``seconds``: of each."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    dist.destroy_process_group()
    if rank:
        return 0
    for epoch, mean in enumerate(losses.reshape(a.epochs, -1).mean(1).tolist(), 1):
        print(f"epoch {epoch}  loss {mean:.6f}")
    print(f"{a.backend}, {ranks} ranks: median step {statistics.median(seconds) * 1e3:.2f} ms")
    if not a.check:
        return 0
    away = (losses - torch.tensor(alone(a))).abs().max().item()
    print(f"at most {away:.1e} from the losses of one process")
    return 0 if away <= NEAR else 1
