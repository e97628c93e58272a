#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Handwritten digits learnt with two layers split over the ranks, by DTensor.

    torchrun --nproc-per-node 2 examples/torch_tensor_parallel.py --check
    hocket run -n 4 -- python examples/torch_tensor_parallel.py --backend gloo

Every rank sees every digit. It computes its share of the first layer's outputs (colwise) and, from these alone, its part of the sums of the
second (rowwise), so that one all_reduce serves both layers; backward is the mirror image. The last layer is the same on all ranks.
"""

from __future__ import annotations

import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch_digits import SGD, batches, finish, network, options

import hocket.torch  # noqa: F401  registers the backend


def main() -> int:
    a = options(__doc__).parse_args()
    dist.init_process_group(a.backend)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    # By their place in the network: Linear, ReLU, Linear, ReLU, Linear.
    model = parallelize_module(network(a), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    optimizer = torch.optim.SGD(model.parameters(), **SGD)

    losses, seconds = [], []
    for x, y in batches(a):
        begin = time.perf_counter()
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seconds.append(time.perf_counter() - begin)
        losses.append(loss.detach())
    return finish(a, torch.stack(losses), seconds)


if __name__ == "__main__":
    sys.exit(main())
