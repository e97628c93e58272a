#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Handwritten digits learnt by FSDP2: each rank keeps a part of every parameter, of its gradient and of the optimizer's state.

    torchrun --nproc-per-node 2 examples/torch_fsdp.py --check
    hocket run -n 4 -- python examples/torch_fsdp.py --backend gloo

A layer's parameters are gathered before it computes (all_gather) and its gradients averaged into the parts afterwards (reduce_scatter).
Each rank takes every n-th digit of a batch. Needs torch 2.8 or later.
"""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch_digits import SGD, finish, network, options, train_shared

import hocket.torch  # noqa: F401  registers the backend


def main() -> int:
    a = options(__doc__).parse_args()
    dist.init_process_group(a.backend)
    model, mesh = network(a), init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), **SGD)

    return finish(a, *train_shared(a, model, optimizer))


if __name__ == "__main__":
    sys.exit(main())
