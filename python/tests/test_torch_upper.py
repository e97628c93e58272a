# SPDX-License-Identifier: Apache-2.0
"""What builds on torch.distributed: compiled programs, distributed checkpoints."""

from __future__ import annotations

import pytest
from ranks import run
from test_torch_life import start

torch = pytest.importorskip("torch")
dist = pytest.importorskip("torch.distributed")
from torch import nn  # noqa: E402
from torch.nn.parallel import DistributedDataParallel as DDP  # noqa: E402

import hocket.torch  # noqa: E402,F401


def compiled(rank, ranks, place):
    start(rank, ranks, place)

    def losses(wrap):
        torch.manual_seed(0)
        model = DDP(nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2)))
        run_model, optimizer = wrap(model), torch.optim.SGD(model.parameters(), lr=0.1)
        data, found = torch.Generator().manual_seed(rank), []
        for _ in range(4):
            optimizer.zero_grad()
            loss = run_model(torch.randn(6, 8, generator=data)).pow(2).mean()
            loss.backward()
            optimizer.step()
            found.append(loss.item())
        return found

    assert losses(lambda m: torch.compile(m, backend="eager")) == losses(lambda m: m)

    def body(x):
        y = x * 2
        dist.all_reduce(y)
        return y + 1

    assert (torch.compile(body, backend="eager", fullgraph=True)(torch.ones(3)) == 2 * ranks + 1).all()
    dist.destroy_process_group()


def checkpoint(rank, ranks, place):
    from torch.distributed import checkpoint as dcp
    from torch.distributed.device_mesh import init_device_mesh

    try:
        from torch.distributed.tensor import Shard, distribute_tensor
    except ImportError:  # torch 2.4
        from torch.distributed._tensor import Shard, distribute_tensor

    start(rank, ranks, place)
    mesh = init_device_mesh("cpu", (ranks,))
    values = torch.arange(40.0).view(10, 4)
    saved = {"sharded": distribute_tensor(values, mesh, [Shard(0)]), "whole": values + 1, "step": 7}
    dcp.save(saved, checkpoint_id=place + ".saved")
    found = {"sharded": distribute_tensor(torch.zeros(10, 4), mesh, [Shard(1)]), "whole": torch.zeros(10, 4), "step": 0}
    dcp.load(found, checkpoint_id=place + ".saved")
    assert torch.equal(found["sharded"].full_tensor(), values) and torch.equal(found["whole"], values + 1) and found["step"] == 7
    dist.destroy_process_group()


@pytest.mark.parametrize("body", [compiled, checkpoint])
def test(tmp_path, body):
    run(2, tmp_path, body)
