#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Handwritten digits learnt by DistributedDataParallel, by hocket or any other backend.

    torchrun --nproc-per-node 2 examples/torch_ddp.py                    # hocket
    torchrun --nproc-per-node 2 examples/torch_ddp.py --backend gloo     # the same losses
    hocket run -n 2 -- python examples/torch_ddp.py --zero               # each rank keeps a part of the momentum

Each rank takes every n-th digit of a batch, so the number of ranks changes nothing but rounding. Rank 0 prints the losses, the median time of
a step, and the accuracy on digits that were held out.
"""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel
from torch_digits import HELD_OUT, SGD, digits, finish, network, options, train_shared

import hocket.torch  # noqa: F401  registers the backend


def main() -> int:
    p = options(__doc__)
    p.add_argument("--zero", action="store_true", help="share the optimizer's state out among the ranks")
    a = p.parse_args()
    dist.init_process_group(a.backend)
    rank = dist.get_rank()
    model = DistributedDataParallel(network(a))
    if a.zero:
        optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, **SGD)
    else:
        optimizer = torch.optim.SGD(model.parameters(), **SGD)

    losses, seconds = train_shared(a, model, optimizer)

    x, y = (t[-HELD_OUT:] for t in digits())
    with torch.no_grad():
        right = (model.module(x).argmax(1) == y).float().mean().item()
    code = finish(a, losses, seconds)
    if rank == 0:
        print(f"held-out accuracy {100 * right:.2f} %")
    return code


if __name__ == "__main__":
    sys.exit(main())
