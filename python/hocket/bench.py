# SPDX-License-Identifier: Apache-2.0
"""python -m hocket.bench: how long operations take from Python, beside another backend of torch.distributed in the same processes.

Rounds of the two alternate, size by size, so that slow minutes of the machine hit both. A figure is the best round's p50 of the slower
rank, in microseconds; the ratio is the median of the rounds' ratios: above 1, hocket is faster. Without --against, and without torch, it
measures hocket.Comm on byte arrays.

--train measures steps of training instead, by DDP and FSDP2 from random numbers: a perceptron with 21 MB of gradients, whose step is mostly
communication, and a small transformer. Exit code 1 if the losses are not the other backend's and one process's to 1e-6. Behind a real network,
or one made of namespaces: --via 'ip netns exec host-{}', with GLOO_SOCKET_IFNAME.
"""

from __future__ import annotations

import argparse
import array
import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
OPS = ("all_reduce", "all_gather", "reduce_scatter", "broadcast")
TRAIN = ("ddp-mlp", "ddp-transformer", "fsdp-mlp", "ddp-mlp-shared", "fsdp-mlp-shared")


def bytes_of(text: str) -> int:
    """64K -> 65536. Raises ValueError."""
    text = text.strip().upper()
    return int(float(text[:-1]) * UNITS[text[-1]]) if text[-1:] in UNITS else int(text)


def _calls(n: int) -> int:
    return 300 if n <= 65536 else 60 if n <= 4 << 20 else 12


def _p50(call: Callable[[], Any], rounds: int) -> float:
    times = []
    for k in range(-3, rounds):
        begin = time.perf_counter()
        call()
        if k >= 0:
            times.append(time.perf_counter() - begin)
    return statistics.median(times) * 1e6


def _torch_calls(a: argparse.Namespace) -> tuple[dict[str, Callable[[int], Callable[[], Any]]], Callable[[list[float]], list[float]], Any]:
    """By backend: from a number of bytes to a call; the maximum over ranks of numbers; what ends it."""
    import torch
    import torch.distributed as dist

    import hocket.torch  # noqa: F401

    torch.set_num_threads(1)
    dist.init_process_group("hocket", init_method=f"file://{a.meet}", rank=a.rank, world_size=a.n)
    gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor  # the newer name first: the other one warns there
    scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
    groups = {"hocket": dist.group.WORLD, a.against: dist.new_group(backend=a.against)}

    def make(group: Any) -> Callable[[int], Callable[[], Any]]:
        def of(n: int) -> Callable[[], Any]:
            count = max(n // 4, a.n) // a.n * a.n if a.op == "reduce_scatter" else max(n // 4, 1)
            x = torch.zeros(count)
            if a.op == "all_reduce":
                return lambda: dist.all_reduce(x, group=group)
            if a.op == "broadcast":
                return lambda: dist.broadcast(x, 0, group=group)
            if a.op == "all_gather":
                out = torch.zeros(count * a.n)
                return lambda: gather(out, x, group=group)
            part = torch.zeros(count // a.n)
            return lambda: scatter(part, x, group=group)
        return of

    def slowest(values: list[float]) -> list[float]:
        t = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(t, dist.ReduceOp.MAX)
        return t.tolist()

    return {name: make(g) for name, g in groups.items()}, slowest, dist.destroy_process_group


def _comm_calls(a: argparse.Namespace) -> tuple[dict[str, Callable[[int], Callable[[], Any]]], Callable[[list[float]], list[float]], Any]:
    """The same for hocket.Comm."""
    import hocket

    comm = hocket.init(a.rank, a.n, a.meet)

    def of(n: int) -> Callable[[], Any]:
        count = max(n // 4 // a.n, 1) * a.n if a.op == "reduce_scatter" else max(n // 4, 1)
        x = array.array("f", bytes(4 * count))
        if a.op == "all_reduce":
            return lambda: comm.all_reduce(x, out=x)
        if a.op == "broadcast":
            return lambda: comm.broadcast(x)
        out = array.array("f", bytes(4 * (count * a.n if a.op == "all_gather" else count // a.n)))
        if a.op == "all_gather":
            return lambda: comm.all_gather(x, out=out)
        return lambda: comm.reduce_scatter(x, out=out)

    def slowest(values: list[float]) -> list[float]:
        return list(comm.all_reduce(array.array("d", values), "max"))

    return {"hocket": of}, slowest, comm.destroy


def worker(a: argparse.Namespace) -> None:
    """One rank. Rank 0 leaves what it found in a.out."""
    if a.train:
        from . import _bench_train

        found: list[Any] = _bench_train.worker(a)
    else:
        found = _sweep(a)
    if a.rank == 0:
        with open(a.out, "w") as f:
            json.dump(found, f)


def _sweep(a: argparse.Namespace) -> list[Any]:
    """[[bytes, {backend: [p50 of each round]}], ...]"""
    backends, slowest, end = _torch_calls(a) if a.against else _comm_calls(a)
    found = []
    for n in map(bytes_of, a.sizes.split(",")):
        calls = {name: of(n) for name, of in backends.items()}
        p50s: dict[str, list[float]] = {name: [] for name in calls}
        for _ in range(a.rounds):
            for name, call in calls.items():
                p50s[name] += slowest([_p50(call, _calls(n))])
        found.append([n, p50s])
    end()
    return found


def report(found: list[Any], a: argparse.Namespace) -> bool:
    """The table; False if something in it is wrong."""
    if a.train:
        from . import _bench_train

        return _bench_train.report(found, a)
    print(f"{a.op} of f32, {a.n} ranks, best p50 of {a.rounds} rounds, us" + (f"; ratio: {a.against} / hocket" if a.against else ""))
    print(f"{'bytes':>10} {'hocket':>10}" + (f" {a.against:>10} {'ratio':>7}" if a.against else ""))
    for n, p50s in found:
        line = f"{n:>10} {min(p50s['hocket']):>10.1f}"
        if a.against:
            ratios = [b / h for h, b in zip(p50s["hocket"], p50s[a.against])]
            line += f" {min(p50s[a.against]):>10.1f} {statistics.median(ratios):>7.2f}"
        print(line)
    return True


def main() -> int:
    """Exit code 0; 1 if losses of --train differ; 3 if a rank failed."""
    p = argparse.ArgumentParser(prog="python -m hocket.bench", description=__doc__.splitlines()[0])
    p.add_argument("-n", type=int, default=2, help="ranks (2)")
    p.add_argument("--against", metavar="BACKEND", help="of torch.distributed, for instance gloo; needs torch")
    p.add_argument("--op", choices=OPS, default="all_reduce")
    p.add_argument("--sizes", default="8,512,4K,64K,1M,16M", help="bytes (8,512,4K,64K,1M,16M)")
    p.add_argument("--train", nargs="+", choices=TRAIN, help="steps of training instead of operations; needs torch")
    p.add_argument("--batch", type=int, default=8, help="of --train: rows of a rank (8)")
    p.add_argument("--bucket-mb", type=float, default=25, help="of --train: DDP's bucket_cap_mb (25)")
    p.add_argument("--steps", type=int, default=10, help="of --train: in a round (10)")
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--via", default="", metavar="COMMAND", help="put before each rank's command, {} being its host: 'ip netns exec host-{}'")
    p.add_argument("--per-host", type=int, default=1, metavar="N", help="of --via: ranks on a host, neighbours (1)")
    for hidden in ("--rank", "--meet", "--out"):
        p.add_argument(hidden, type=int if hidden == "--rank" else str, help=argparse.SUPPRESS)
    a = p.parse_args()
    if a.rank is not None:
        worker(a)
        return 0
    with tempfile.TemporaryDirectory() as place:
        out = os.path.join(place, "out")
        env = {**os.environ, "OMP_NUM_THREADS": "1"}
        ranks = [subprocess.Popen([*shlex.split(a.via.format(r // a.per_host)), sys.executable, "-m", "hocket.bench", *sys.argv[1:], "--rank", str(r),
                                   "--meet", os.path.join(place, "meet"), "--out", out], env=env) for r in range(a.n)]
        if any([p.wait() for p in ranks]):
            return 3
        with open(out) as f:
            return 0 if report(json.load(f), a) else 1


if __name__ == "__main__":
    sys.exit(main())
