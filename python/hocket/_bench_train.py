# SPDX-License-Identifier: Apache-2.0
"""python -m hocket.bench --train: steps of training by hocket and another backend of torch.distributed, in turn in the same processes."""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from .torch import register_ddp_buckets

NEAR = 1e-6   # losses
BATCHES = 4   # different ones, again and again
Step = Callable[[Tensor, Tensor], Tensor]


def _mlp() -> nn.Module:
    """21 MB of gradients, next to nothing to compute for a few rows."""
    return nn.Sequential(*[layer for _ in range(5) for layer in (nn.Linear(1024, 1024), nn.ReLU())][:-1])


def _transformer() -> nn.Module:
    """13 MB of gradients in 48 tensors."""
    return nn.TransformerEncoder(nn.TransformerEncoderLayer(256, 4, 1024, dropout=0.0, batch_first=True), 4, enable_nested_tensor=False)


def _ddp(model: nn.Module, group: Any, bucket_mb: float) -> nn.Module:
    return DistributedDataParallel(model, process_group=group, bucket_cap_mb=bucket_mb)


def _ddp_shared(model: nn.Module, group: Any, bucket_mb: float) -> nn.Module:
    wrapped = _ddp(model, group, bucket_mb)
    if _is_ours(group):
        register_ddp_buckets(wrapped)
    return wrapped


def _is_ours(group: Any) -> bool:
    return hasattr(group._get_backend(torch.device("cpu")), "watch_buckets")


def _fsdp(model: nn.Module, group: Any, _: float) -> nn.Module:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import fully_shard

    mesh = DeviceMesh.from_group(group, "cpu")
    for layer in model.children():
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def _fsdp_shared(model: nn.Module, group: Any, bucket_mb: float) -> nn.Module:
    wrapped = _fsdp(model, group, bucket_mb)
    for module in wrapped.modules() if _is_ours(group) else ():
        if hasattr(module, "set_allocate_memory_from_process_group_for_comm"):
            module.set_allocate_memory_from_process_group_for_comm(True)
    return wrapped


# By name: the model, the shape of a row, how ranks share the work.
KINDS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], Callable[[nn.Module, Any, float], nn.Module]]] = {
    "ddp-mlp": (_mlp, (1024,), _ddp),
    "ddp-transformer": (_transformer, (32, 256), _ddp),
    "fsdp-mlp": (_mlp, (1024,), _fsdp),
    # The same, hocket's buffers in memory that ranks on a host share.
    "ddp-mlp-shared": (_mlp, (1024,), _ddp_shared),
    "fsdp-mlp-shared": (_mlp, (1024,), _fsdp_shared),
}


def _stepper(kind: str, group: Any = None, bucket_mb: float = 25) -> Step:
    """A step of training from the same start on all ranks: (x, y) -> loss. ``group`` None: of one process alone."""
    make, _, shared = KINDS[kind]
    torch.manual_seed(0)
    model = make() if group is None else shared(make(), group, bucket_mb)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step(x: Tensor, y: Tensor) -> Tensor:
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def _batches(kind: str, rows: int) -> list[tuple[Tensor, Tensor]]:
    """Of all ranks together."""
    of_all, shape = torch.Generator().manual_seed(1), (rows, *KINDS[kind][1])
    return [(torch.randn(shape, generator=of_all), torch.randn(shape, generator=of_all)) for _ in range(BATCHES)]


def _losses(step: Step, batches: list[tuple[Tensor, Tensor]], steps: int) -> Tensor:
    return torch.stack([step(*batches[k % BATCHES]) for k in range(steps)])


def _times(step: Step, batches: list[tuple[Tensor, Tensor]], steps: int) -> tuple[float, float]:
    """Seconds of a step on the slower rank: median by the clock, mean of CPU (all threads of a rank)."""
    times, cpu = [], time.process_time()
    for k in range(steps):
        begin = time.perf_counter()
        step(*batches[k % BATCHES])
        times.append(time.perf_counter() - begin)
    found = torch.tensor([statistics.median(times), (time.process_time() - cpu) / steps], dtype=torch.float64)
    dist.all_reduce(found, dist.ReduceOp.MAX)
    return found[0].item(), found[1].item()


def _measure(kind: str, a: argparse.Namespace, groups: dict[str, Any]) -> dict[str, Any]:
    """_times of each round by backend; how far the losses of the first steps are from each other's and from one process's."""
    whole = _batches(kind, a.batch * a.n)
    mine = [(x.chunk(a.n)[a.rank], y.chunk(a.n)[a.rank]) for x, y in whole]
    steppers = {name: _stepper(kind, group, a.bucket_mb) for name, group in groups.items()}
    losses = {}
    for name, step in steppers.items():
        losses[name] = _losses(step, mine, a.steps)
        dist.all_reduce(losses[name], dist.ReduceOp.AVG)
    if a.rank == 0:
        losses["one process"] = _losses(_stepper(kind), whole, a.steps)
    dist.barrier()
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in steppers}
    for _ in range(a.rounds):
        for name, step in steppers.items():
            _times(step, mine, 2)
            times[name].append(_times(step, mine, a.steps))
    ours = losses.pop("hocket")
    return {"times": times, "away": {name: (ours - theirs).abs().max().item() for name, theirs in losses.items()}}


def worker(a: argparse.Namespace) -> list[tuple[str, dict[str, Any]]]:
    """One rank: what was measured, by kind."""
    torch.set_num_threads(1)
    dist.init_process_group("hocket", init_method=f"file://{a.meet}", rank=a.rank, world_size=a.n)
    groups = {"hocket": dist.group.WORLD}
    if a.against:
        groups[a.against] = dist.new_group(backend=a.against)
    found = [(kind, _measure(kind, a, groups)) for kind in a.train]
    dist.barrier()
    dist.destroy_process_group()
    return found


def report(found: list[tuple[str, dict[str, Any]]], a: argparse.Namespace) -> bool:
    """The table; False if losses differ by more than NEAR."""
    print(f"a step of {a.batch} rows a rank, {a.n} ranks, the slower one, ms: the best of {a.rounds} rounds' medians of {a.steps} steps, (least CPU)"
          + (f"; ratio: {a.against} / hocket, median (range) of the rounds" if a.against else ""))
    for kind, of_kind in found:
        times, away = of_kind["times"], of_kind["away"]
        line = f"{kind:>16} " + "".join(f" {name} {min(t for t, _ in of) * 1e3:.1f} ({min(c for _, c in of) * 1e3:.1f})" for name, of in times.items())
        if a.against:
            ratios = sorted(b[0] / h[0] for h, b in zip(times["hocket"], times[a.against]))
            line += f"  ratio {statistics.median(ratios):.2f} ({ratios[0]:.2f}-{ratios[-1]:.2f})"
        print(line + "  losses away from " + ", ".join(f"{name} {value:.0e}" for name, value in away.items()))
    return all(value <= NEAR for _, of_kind in found for value in of_kind["away"].values())
