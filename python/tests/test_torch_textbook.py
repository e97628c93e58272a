# SPDX-License-Identifier: Apache-2.0
"""What courses do by hand, on 8 ranks beside one process; torch's comm hooks on 2 and 4 beside gloo."""

from __future__ import annotations

from datetime import timedelta

import pytest
from ranks import run

torch = pytest.importorskip("torch")
dist = pytest.importorskip("torch.distributed")
from torch import nn  # noqa: E402
from torch.distributed.algorithms.ddp_comm_hooks import debugging_hooks, default_hooks, post_localSGD_hook, powerSGD_hook  # noqa: E402
from torch.nn.parallel import DistributedDataParallel as DDP  # noqa: E402

import hocket.torch  # noqa: E402,F401

EACH, STEPS = 4, 5  # rows of a rank


def begin(backend, rank, ranks, place):
    torch.set_num_threads(1)
    dist.init_process_group(backend, init_method=f"file://{place}.{backend}", rank=rank, world_size=ranks, timeout=timedelta(seconds=30))


def network():
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))


def batch(step, ranks):
    """Of all ranks together."""
    of_step = torch.Generator().manual_seed(step)
    return torch.randn(ranks * EACH, 6, generator=of_step), torch.randn(ranks * EACH, 3, generator=of_step)


def train(model, ranks, rank=None, exchange=lambda model: None, lr=0.1):
    """STEPS of SGD: a rank's share of each batch, or all of it; the losses. ``exchange`` comes between backward and the step."""
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=lr), []
    for step in range(STEPS):
        x, y = (t if rank is None else t.chunk(ranks)[rank] for t in batch(step, ranks))
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        exchange(model)
        optimizer.step()
        losses.append(loss.item())
    return losses


def flat(model):
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


# ---- By hand


def averaged_by_hand(model):
    for p in model.parameters():
        dist.all_reduce(p.grad)
        p.grad /= dist.get_world_size()


def rounded_shares(model, step, ranks):
    """One process does what the fp16 hook of so many ranks does: each share's gradients as halves, divided, then added up (here in float)."""
    total = [torch.zeros_like(p) for p in model.parameters()]
    for x, y in zip(*(t.chunk(ranks) for t in batch(step, ranks))):
        grads = torch.autograd.grad(nn.functional.mse_loss(model(x), y), list(model.parameters()))
        for sum_, grad in zip(total, grads):
            sum_ += (grad.half() / ranks).float()
    for p, sum_ in zip(model.parameters(), total):
        p.grad = sum_


def by_hand(rank, ranks, place):
    begin("hocket", rank, ranks, place)
    whole = network()
    train(whole, ranks)  # the reference: one process, all rows

    mine = network()
    train(mine, ranks, rank, averaged_by_hand)
    assert torch.allclose(flat(mine), flat(whole), atol=1e-6)

    x, _ = batch(9, ranks)
    with torch.no_grad():
        out = whole(x.chunk(ranks)[rank])
        parts = [torch.empty_like(out) for _ in range(ranks)]
        dist.all_gather(parts, out)
        assert torch.allclose(torch.cat(parts), whole(x), atol=1e-6)

    def of(r):
        return [batch(100 * r + q, 1)[0] for q in range(ranks)]  # one for each rank

    got = torch.empty(EACH, 6)
    dist.reduce_scatter(got, of(rank))
    assert torch.allclose(got, sum(of(r)[rank] for r in range(ranks)), atol=1e-6)

    model = DDP(network())
    model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    train(model, ranks, rank)
    rounded, steps = network(), iter(range(STEPS))
    train(rounded, ranks, exchange=lambda model: rounded_shares(model, next(steps), ranks))
    assert torch.allclose(flat(model), flat(rounded), atol=1e-4)
    assert torch.allclose(flat(model), flat(whole), atol=1e-3)
    everyone = [torch.empty_like(flat(model)) for _ in range(ranks)]
    dist.all_gather(everyone, flat(model))
    assert all(torch.equal(one, everyone[0]) for one in everyone)
    dist.barrier()
    dist.destroy_process_group()


def test_by_hand(tmp_path):
    run(8, tmp_path, by_hand)


# ---- Comm hooks


def low_rank():
    return powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=2, min_compression_rate=1)


def local():
    subgroup, _ = dist.new_subgroups(group_size=dist.get_world_size() // 2)
    return post_localSGD_hook.PostLocalSGDState(None, subgroup, start_localSGD_iter=3)


# Halves added up in another order round differently, which 4 ranks of two backends do: with this step by 3e-7 of a loss, while it shows in the
# loss's fourth digit whether gradients were exchanged at all.
SMALL_STEP = 0.001
HOOKS = {  # state, hook, MiB of a bucket: one bucket for PowerSGD, whose continuations communicate
    "allreduce": (lambda: None, default_hooks.allreduce_hook, 0.0002),
    "fp16": (lambda: None, default_hooks.fp16_compress_hook, 0.0002),
    "fp16 around allreduce": (lambda: None, default_hooks.fp16_compress_wrapper(default_hooks.allreduce_hook), 0.0002),
    "PowerSGD": (low_rank, powerSGD_hook.powerSGD_hook, 25),
    "fp16 around PowerSGD": (low_rank, default_hooks.fp16_compress_wrapper(powerSGD_hook.powerSGD_hook), 25),
    "post_localSGD": (local, post_localSGD_hook.post_localSGD_hook, 0.0002),
    "noop": (lambda: None, debugging_hooks.noop_hook, 0.0002),
}


def hooked(rank, ranks, place, backend):
    begin(backend, rank, ranks, place)
    found = {}
    for name, (state, hook, bucket) in HOOKS.items():
        model = DDP(network(), bucket_cap_mb=bucket)
        model.register_comm_hook(state(), hook)
        found[name] = train(model, ranks, rank, lr=SMALL_STEP)
    dist.barrier()
    dist.destroy_process_group()
    return found


@pytest.mark.parametrize("ranks", [2, 4])
def test_hooks(tmp_path, ranks):
    ours, theirs = run(ranks, tmp_path, hooked, "hocket"), run(ranks, tmp_path, hooked, "gloo")
    for rank in range(ranks):
        for name in HOOKS:
            assert ours[rank][name] == pytest.approx(theirs[rank][name], abs=1e-6), (name, rank)
        for name in set(HOOKS) - {"noop"}:
            assert max(abs(a - b) for a, b in zip(ours[rank][name], ours[rank]["noop"])) > 1e-4, (name, rank)
