#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Handwritten digits learnt by a pipeline: each rank has some of the layers, and a batch flows through in pieces (GPipe).

    torchrun --nproc-per-node 2 examples/torch_pipeline.py --check
    hocket run -n 4 -- python examples/torch_pipeline.py --backend gloo

Activations go from rank to rank by isend and irecv, gradients come back the same way. Ranks: at most one more than --layers.
"""

from __future__ import annotations

import sys
import time

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch_digits import SGD, batches, finish, network, options

import hocket.torch  # noqa: F401  registers the backend


def main() -> int:
    p = options(__doc__)
    p.add_argument("--pieces", type=int, default=4, help="pieces of a batch (micro-batches); divides --batch")
    p.set_defaults(layers=3)
    a = p.parse_args()
    dist.init_process_group(a.backend)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    first, last = rank == 0, rank == ranks - 1
    begin, end = (2 * ((a.layers + 1) * r // ranks) for r in (rank, rank + 1))  # a Linear and its ReLU stay together
    mine = network(a)[begin:end]
    stage = PipelineStage(mine, rank, ranks, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, n_microbatches=a.pieces, loss_fn=nn.functional.cross_entropy)
    optimizer = torch.optim.SGD(mine.parameters(), **SGD)

    losses, seconds = [], []
    for x, y in batches(a):
        start = time.perf_counter()
        of_pieces: list[Tensor] = []
        optimizer.zero_grad()
        schedule.step(*[x] * first, target=y if last else None, losses=of_pieces if last else None)
        optimizer.step()
        seconds.append(time.perf_counter() - start)
        losses.append(torch.stack(of_pieces).detach().mean() if last else torch.zeros(()))
    known = torch.stack(losses)
    dist.broadcast(known, src=ranks - 1)  # the last stage knows them
    return finish(a, known, seconds)


if __name__ == "__main__":
    sys.exit(main())
