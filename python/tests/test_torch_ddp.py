# SPDX-License-Identifier: Apache-2.0
"""DistributedDataParallel by hocket: the losses are gloo's, in every mode; comm hooks; data from worker processes."""

from __future__ import annotations

from contextlib import nullcontext
from datetime import timedelta

import pytest
from ranks import run

torch = pytest.importorskip("torch")
dist = pytest.importorskip("torch.distributed")
from torch import nn  # noqa: E402
from torch.nn.parallel import DistributedDataParallel as DDP  # noqa: E402

import hocket.torch  # noqa: E402,F401

MODES = {
    "plain": {},
    "small buckets": {"bucket_cap_mb": 0.002},
    "unused": {"find_unused_parameters": True},
    "static": {"static_graph": True},
    "view": {"gradient_as_bucket_view": True, "bucket_cap_mb": 0.002},
    "no_sync": {"bucket_cap_mb": 0.002},
}


class Net(nn.Module):
    """Some layers, one of which every other step leaves out."""

    def __init__(self, may_skip):
        super().__init__()
        self.may_skip = may_skip
        self.first, self.second, self.third = nn.Linear(8, 32), nn.Linear(32, 32), nn.Linear(32, 4)
        self.norm = nn.BatchNorm1d(32)

    def forward(self, x, step):
        x = self.norm(torch.relu(self.first(x)))
        if not (self.may_skip and step % 2):
            x = torch.relu(self.second(x))
        return self.third(x)


def losses(rank, ranks, name, more):
    """Ten steps; different data on each rank."""
    torch.manual_seed(rank)  # DDP makes rank 0's parameters everybody's
    model = DDP(Net(name == "unused"), **more)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    data = torch.Generator().manual_seed(100 + rank)
    found = []
    for step in range(10):
        x, y = torch.randn(16, 8, generator=data), torch.randint(4, (16,), generator=data)
        with model.no_sync() if name == "no_sync" and step % 2 == 0 else nullcontext():
            loss = nn.functional.cross_entropy(model(x, step), y)
            loss.backward()
        if name != "no_sync" or step % 2:
            optimizer.step()
            optimizer.zero_grad()
        found.append(loss.item())
    return found


def all_modes(rank, ranks, place, backend):
    torch.set_num_threads(1)
    dist.init_process_group(backend, init_method=f"file://{place}.{backend}", rank=rank, world_size=ranks, timeout=timedelta(seconds=30))
    found = {name: losses(rank, ranks, name, more) for name, more in MODES.items()}
    dist.barrier()
    dist.destroy_process_group()
    return found


def test_losses(tmp_path):
    ours, theirs = run(2, tmp_path, all_modes, "hocket"), run(2, tmp_path, all_modes, "gloo")
    for rank in range(2):
        for name in MODES:
            assert ours[rank][name] == pytest.approx(theirs[rank][name], abs=1e-6), (name, rank)
    assert ours[0]["plain"] != ours[1]["plain"]


def hooked(rank, ranks, place):
    torch.set_num_threads(1)
    dist.init_process_group("hocket", init_method=f"file://{place}", rank=rank, world_size=ranks, timeout=timedelta(seconds=30))
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

    # PowerSGD's continuations communicate while later buckets are issued, in an order that is nobody's: one bucket.
    def gradients(register, cap=0.005):
        torch.manual_seed(1)
        model = DDP(nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2)), bucket_cap_mb=cap)
        register(model)
        for step in range(4):
            model.zero_grad()
            model(torch.full((3, 64), 0.1 * (rank + 1) + step)).sum().backward()
        return torch.cat([p.grad.reshape(-1) for p in model.parameters()])

    plain = gradients(lambda model: None)
    by_hook = gradients(lambda model: model.register_comm_hook(None, default_hooks.allreduce_hook))
    assert torch.allclose(plain, by_hook, atol=1e-6)
    assert torch.allclose(plain, gradients(lambda m: m.register_comm_hook(None, default_hooks.fp16_compress_hook)), rtol=1e-2, atol=1e-2)
    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=2, start_powerSGD_iter=2)
    low = gradients(lambda model: model.register_comm_hook(state, powerSGD_hook.powerSGD_hook), 25)
    assert torch.isfinite(low).all()
    every = [torch.empty_like(low) for _ in range(ranks)]
    dist.all_gather(every, low)
    assert all(torch.equal(low, e) for e in every)
    # An embedding with sparse gradients.
    model = DDP(nn.Embedding(10, 3, sparse=True))
    model(torch.tensor([rank, 9])).sum().backward()
    expected = torch.zeros(10, 3)
    for r in range(ranks):
        expected[r] += 1 / ranks
        expected[9] += 1 / ranks
    assert torch.allclose(model.module.weight.grad.to_dense(), expected)
    dist.destroy_process_group()


def test_hooks(tmp_path):
    run(2, tmp_path, hooked)


def accumulated(rank, ranks, place):
    """Gradients of micro-batches under no_sync come into the mean once, with the last one."""
    torch.set_num_threads(1)
    dist.init_process_group("hocket", init_method=f"file://{place}", rank=rank, world_size=ranks, timeout=timedelta(seconds=30))
    model = DDP(nn.Linear(1, 1, bias=False))
    micro = ((1.0, 3.0), (3.0, 4.0))[rank]
    with model.no_sync():
        model(torch.tensor([[micro[0]]])).sum().backward()
    assert model.module.weight.grad.item() == micro[0]
    model(torch.tensor([[micro[1]]])).sum().backward()
    assert model.module.weight.grad.item() == 5.5
    # A parameter without a gradient is named by the next step, on every rank.
    model = DDP(Half())
    model(torch.ones(1, 2)).sum().backward()
    with pytest.raises(RuntimeError, match=r"Parameter indices which did not receive grad for rank \d: 2 3"):
        model(torch.ones(1, 2)).sum().backward()
    dist.barrier()
    dist.destroy_process_group()


class Half(nn.Module):
    """Never uses its second layer."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(2, 2), nn.Linear(2, 2)

    def forward(self, x):
        return self.first(x)


def uneven(rank, ranks, place):
    """5, 6 and 7 batches: with join() the mean is over all ranks, the ended ones with nothing; without, those that go on are told."""
    torch.set_num_threads(1)
    dist.init_process_group("hocket", init_method=f"file://{place}", rank=rank, world_size=ranks, timeout=timedelta(seconds=30))
    model = DDP(nn.Linear(1, 1, bias=False))
    steps = []
    with model.join(divide_by_initial_world_size=True):
        for batch in range(5 + rank):
            model.zero_grad()
            model(torch.tensor([[float(rank + 1)]])).sum().backward()
            steps.append(model.module.weight.grad.item())
    assert steps == [2.0] * 5 + [pytest.approx(5 / 3), 1.0][:rank]
    model = DDP(nn.Linear(1, 1, bias=False))

    def train():
        for batch in range(5 + rank):
            model(torch.ones(1, 1)).sum().backward()
        dist.barrier()

    if rank == 0:
        for batch in range(5):
            model(torch.ones(1, 1)).sum().backward()
    else:
        with pytest.raises(RuntimeError, match="rank 0"):
            train()
    dist.destroy_process_group()


def test_batches(tmp_path):
    run(2, tmp_path, accumulated)


def test_uneven_batches(tmp_path):
    run(3, tmp_path, uneven)


class Squares(torch.utils.data.Dataset):
    def __len__(self):
        return 32

    def __getitem__(self, i):
        return torch.tensor([float(i * i)])


def loaded(rank, ranks, place):
    import multiprocessing

    multiprocessing.current_process()._config["daemon"] = False  # ranks of tests may not have children otherwise
    torch.set_num_threads(1)
    dist.init_process_group("hocket", init_method=f"file://{place}", rank=rank, world_size=ranks, timeout=timedelta(seconds=30))
    total = torch.zeros(1)
    for batch in torch.utils.data.DataLoader(Squares(), batch_size=8, num_workers=2, multiprocessing_context="fork"):
        part = batch.sum().reshape(1)
        dist.all_reduce(part)
        work = dist.all_reduce(part, async_op=True)
        work.get_future().wait()
        total += part
    assert total.item() == sum(i * i for i in range(32)) * ranks * ranks
    dist.destroy_process_group()


def test_loader_workers(tmp_path):
    run(2, tmp_path, loaded)


def sharded(rank, ranks, place):
    torch.set_num_threads(1)
    dist.init_process_group("hocket", init_method=f"file://{place}", rank=rank, world_size=ranks, timeout=timedelta(seconds=30))
    from torch.distributed.fsdp import fully_shard

    def train(shard):
        torch.manual_seed(3)
        model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
        if shard:
            from torch.distributed.device_mesh import init_device_mesh

            mesh = init_device_mesh("cpu", (ranks,))
            for layer in (model[0], model[2], model):
                fully_shard(layer, mesh=mesh)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        found = []
        for step in range(5):
            x = torch.linspace(-1, 1, 8 * 4 * ranks).reshape(ranks, 4, 8) + step
            loss = (model(x[rank] if shard else x.reshape(-1, 8)) ** 2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            mean = loss.detach().clone()
            if shard:
                dist.all_reduce(mean, dist.ReduceOp.AVG)
            found.append(mean.item())
        return found

    assert train(True) == pytest.approx(train(False), abs=1e-5)
    dist.barrier()
    dist.destroy_process_group()


def test_fsdp2(tmp_path):
    if tuple(int(v) for v in torch.__version__.split(".")[:2]) < (2, 8):
        pytest.skip("FSDP2 runs on the CPU from torch 2.8 on")
    run(2, tmp_path, sharded)
