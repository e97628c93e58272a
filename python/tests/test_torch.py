# SPDX-License-Identifier: Apache-2.0
"""Every operation of torch.distributed by hocket, against torch on one rank: types, reductions, memory that is not contiguous."""

from __future__ import annotations

import functools
from datetime import timedelta

import pytest
from ranks import run

torch = pytest.importorskip("torch")
dist = pytest.importorskip("torch.distributed")

import hocket  # noqa: E402
import hocket.torch  # noqa: E402

OP = dist.ReduceOp
FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
INTS = [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64]
UNSIGNED = [torch.uint16, torch.uint32, torch.uint64]
F = {OP.SUM: torch.add, OP.PRODUCT: torch.mul, OP.MIN: torch.minimum, OP.MAX: torch.maximum}
BITS = {OP.BAND: torch.bitwise_and, OP.BOR: torch.bitwise_or, OP.BXOR: torch.bitwise_xor}


def group(body):
    """The body inside a default group of hocket's, destroyed after."""
    @functools.wraps(body)
    def inside(rank, ranks, place):
        torch.set_num_threads(1)
        dist.init_process_group("hocket", init_method=f"file://{place}", rank=rank, world_size=ranks, timeout=timedelta(seconds=30))
        body(rank, ranks)
        dist.barrier()
        dist.destroy_process_group()
    return inside


def of_rank(rank, shape, dtype=torch.float32):
    """Different for each rank and position; small, so that sums and products are exact in every type."""
    n = torch.Size(shape).numel()
    return ((torch.arange(n) * 3 + rank * 5) % 4 + 1).reshape(shape).to(dtype)


def strided(t):
    """The same values, not contiguous."""
    wide = torch.zeros((*t.shape, 2), dtype=t.dtype)
    wide[..., 0] = t
    return wide[..., 0]


def reduced(f, ranks, shape, dtype):
    """Computed in a type that has the operation; the values are exact."""
    wide = torch.int64 if not dtype.is_floating_point else torch.float64
    return functools.reduce(f, [of_rank(r, shape, wide) for r in range(ranks)]).to(dtype)


@group
def reductions(rank, ranks):
    for dtype in FLOATS + INTS + UNSIGNED:
        ops = dict(F) if dtype.is_floating_point else {**F, **BITS}
        for op, f in ops.items():
            for shape in ((1,), (3, 5), (1000,)):
                x = of_rank(rank, shape, dtype)
                dist.all_reduce(x, op)
                assert torch.equal(x, reduced(f, ranks, shape, dtype)), (dtype, op, shape)
        x = of_rank(rank, (7,), dtype)
        dist.all_reduce(x, OP.AVG)
        mean = sum(of_rank(r, (7,), torch.float64) for r in range(ranks)) / ranks
        assert torch.allclose(x.double(), mean if dtype.is_floating_point else mean.trunc(), rtol=1e-2)
    for dtype in FLOATS:
        x = of_rank(rank, (7,), dtype)
        dist.all_reduce(x, dist._make_nccl_premul_sum(0.5))
        assert torch.equal(x, (sum(of_rank(r, (7,), torch.float64) for r in range(ranks)) / 2).to(dtype))
    b = torch.tensor([rank == 0, True, False])
    for op, expected in ((OP.SUM, [True, True, False]), (OP.PRODUCT, [ranks == 1, True, False]), (OP.MAX, [True, True, False]),
                         (OP.BXOR, [True, ranks % 2 == 1, False])):
        x = b.clone()
        dist.all_reduce(x, op)
        assert x.tolist() == expected, op
    for dtype in (torch.complex64, torch.complex128):
        x = of_rank(rank, (4,), dtype) * (1 + 2j)
        dist.all_reduce(x)
        assert torch.equal(x, sum(of_rank(r, (4,), dtype) * (1 + 2j) for r in range(ranks)))
        x = of_rank(rank, (4,), dtype) * 1j
        dist.reduce(x, 0)
        assert rank or torch.equal(x, sum(of_rank(r, (4,), dtype) * 1j for r in range(ranks)))
    x = strided(of_rank(rank, (3, 4)))
    dist.all_reduce(x)
    assert torch.equal(x, reduced(torch.add, ranks, (3, 4), torch.float32)) and not x.is_contiguous()
    work = dist.all_reduce(y := strided(of_rank(rank, (3, 4))), async_op=True)
    assert torch.equal(work.get_future().wait()[0], x)
    dist.all_reduce(torch.empty(0))
    with pytest.raises(RuntimeError, match="Cannot use ReduceOp.BAND with non-integral dtype"):
        dist.all_reduce(torch.zeros(1), OP.BAND)
    with pytest.raises(ValueError, match="on the CPU: pass t.cpu()"):
        dist.all_reduce(torch.zeros(1, device="meta"))
    i, v = torch.tensor([[rank, 5]]), torch.tensor([[1.0, 2.0], [float(rank), 1.0]])
    s = torch.sparse_coo_tensor(i, v, (9, 2))
    expected = sum(torch.sparse_coo_tensor(torch.tensor([[r, 5]]), torch.tensor([[1.0, 2.0], [float(r), 1.0]]), (9, 2)).to_dense()
                   for r in range(ranks))
    dist.all_reduce(s)
    assert torch.equal(s.to_dense(), expected)


@group
def movement(rank, ranks):
    last = ranks - 1
    every = FLOATS + INTS + UNSIGNED + [torch.bool, torch.complex64, torch.complex128, torch.float8_e4m3fn]
    for dtype in every:
        for lay in (lambda t: t, strided) if dtype in (torch.float32, torch.int64, torch.complex64) else (lambda t: t,):
            shape = (2, 3)
            all_of = [of_rank(r, shape, dtype) for r in range(ranks)]
            same = lambda a, b: torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))  # noqa: E731
            mine = lay(all_of[rank].clone())
            x = mine.clone()
            dist.broadcast(x, last)
            assert same(x, all_of[last])
            outs = [lay(torch.zeros(shape, dtype=dtype)) for _ in range(ranks)]
            dist.all_gather(outs, mine)
            assert all(same(a, b) for a, b in zip(outs, all_of)), dtype
            flat = torch.zeros((ranks * 2, 3), dtype=dtype)
            dist.all_gather_into_tensor(flat, mine)
            assert same(flat, torch.cat(all_of))
            outs = [lay(torch.zeros(shape, dtype=dtype)) for _ in range(ranks)] if rank == last else None
            dist.gather(mine, outs, dst=last)
            assert outs is None or all(same(a, b) for a, b in zip(outs, all_of))
            out = lay(torch.zeros(shape, dtype=dtype))
            dist.scatter(out, [lay(t) for t in all_of] if rank == 0 else None, src=0)
            assert same(out, all_of[rank])
            outs = [lay(torch.zeros(shape, dtype=dtype)) for _ in range(ranks)]
            dist.all_to_all(outs, [mine] * ranks)
            assert all(same(a, b) for a, b in zip(outs, all_of))
            right, left = (rank + 1) % ranks, (rank - 1) % ranks
            got = lay(torch.zeros(shape, dtype=dtype))
            for call in (dist.isend, dist.irecv):
                with pytest.raises(ValueError, match="does not fit"):
                    call(mine, right, tag=1 << 32)
            works = [dist.isend(mine, right, tag=3), dist.irecv(got, left, tag=3)]
            for w in works:
                w.wait()
            assert same(got, all_of[left])


@group
def scattered(rank, ranks):
    for dtype in FLOATS + INTS:
        whole = of_rank(rank, (ranks * 3,), dtype)
        expected = reduced(torch.add, ranks, (ranks * 3,), dtype).chunk(ranks)[rank]
        out = torch.empty(3, dtype=dtype)
        dist.reduce_scatter_tensor(out, whole)
        assert torch.equal(out, expected)
        out = strided(torch.zeros(3, dtype=dtype))
        dist.reduce_scatter(out, list(whole.clone().chunk(ranks)))
        assert torch.equal(out, expected)
        parts = [of_rank(rank, (r + 1,), dtype) for r in range(ranks)]  # uneven
        out = torch.empty(rank + 1, dtype=dtype)
        dist.reduce_scatter(out, parts)
        assert torch.equal(out, reduced(torch.add, ranks, (rank + 1,), dtype))
        outs = [torch.empty(r + 1, dtype=dtype) for r in range(ranks)]
        dist.all_gather(outs, of_rank(rank, (rank + 1,), dtype))
        assert all(torch.equal(o, of_rank(r, (r + 1,), dtype)) for r, o in enumerate(outs))
    out = torch.empty(3)
    dist.reduce_scatter_tensor(out, of_rank(rank, (ranks, 3)), OP.AVG)
    assert torch.allclose(out, sum(of_rank(r, (ranks, 3)) for r in range(ranks))[rank] / ranks)
    # all_to_all_single: even, uneven, with empty parts; rows of two.
    x = torch.arange(ranks * 2).reshape(ranks, 2) + 100 * rank
    y = torch.empty_like(x)
    dist.all_to_all_single(y, x)
    assert torch.equal(y, torch.stack([torch.arange(2) + 2 * rank + 100 * r for r in range(ranks)]))
    sent = [(rank + q) % 3 for q in range(ranks)]
    got = [(r + rank) % 3 for r in range(ranks)]
    x = torch.arange(sum(sent) * 2.0).reshape(-1, 2) + 100 * rank
    y = torch.empty(sum(got), 2)
    dist.all_to_all_single(y, x, got, sent)
    at = [sum((r + q) % 3 for q in range(rank)) for r in range(ranks)]
    assert torch.equal(y, torch.cat([torch.arange(2.0 * a, 2.0 * (a + g)).reshape(-1, 2) + 100 * r for r, (a, g) in enumerate(zip(at, got))]))
    x = of_rank(rank, (4,))
    keep = x.clone()
    dist.reduce(x, 0)
    assert torch.equal(x, reduced(torch.add, ranks, (4,), torch.float32) if rank == 0 else keep)
    with pytest.raises(ValueError, match="it needs"):
        dist.all_gather_into_tensor(torch.empty(ranks + 1), torch.empty(1))


@group
def together(rank, ranks):
    xs = [of_rank(rank, (n,)) for n in (1, 100, 5000)]
    total = [reduced(torch.add, ranks, (n,), torch.float32) for n in (1, 100, 5000)]
    with dist._coalescing_manager():
        for x in xs:
            dist.all_reduce(x)
    assert all(torch.equal(x, t) for x, t in zip(xs, total))
    xs = [of_rank(rank, (n,)) for n in (1, 100, 5000)]
    with pytest.raises(RuntimeError, match="mixed types"), dist._coalescing_manager(device=torch.device("cpu")):
        dist.all_reduce(torch.ones(2))
        dist.all_gather_into_tensor(torch.ones(2 * ranks), torch.ones(2))
    x = torch.ones(2)
    dist.all_reduce(x)  # is no part of what came to nothing
    assert (x == ranks).all()
    with dist._coalescing_manager(device=torch.device("cpu"), async_ops=True) as manager:
        for x in xs:
            dist.all_reduce(x)
    manager.wait()
    assert all(torch.equal(x, t) for x, t in zip(xs, total))
    outs = [torch.empty(ranks * 2), torch.empty(ranks * 3)]
    with dist._coalescing_manager():
        for o, n in zip(outs, (2, 3)):
            dist.all_gather_into_tensor(o, torch.full((n,), float(rank)))
    assert all(torch.equal(o.view(ranks, -1)[:, 0], torch.arange(ranks).float()) for o in outs)
    outs = [torch.empty(2), torch.empty(3)]
    with dist._coalescing_manager():
        for o, n in zip(outs, (2, 3)):
            dist.reduce_scatter_tensor(o, torch.ones(ranks * n))
    assert all((o == ranks).all() for o in outs)
    got = torch.zeros(3)
    works = dist.batch_isend_irecv([dist.P2POp(dist.isend, torch.full((3,), float(rank)), (rank + 1) % ranks),
                                    dist.P2POp(dist.irecv, got, (rank - 1) % ranks)])
    for w in works:
        w.wait()
    assert (got == (rank - 1) % ranks).all()
    if rank == 0:
        senders = [dist.recv(torch.empty(1), tag=9) for _ in range(1, ranks)]
        assert sorted(senders) == list(range(1, ranks))
    else:
        dist.send(torch.ones(1), 0, tag=9)
    import torch.distributed._functional_collectives as funcol
    world = dist.group.WORLD
    assert torch.equal(funcol.all_reduce(of_rank(rank, (4,)), "sum", world) + 0, reduced(torch.add, ranks, (4,), torch.float32))
    gathered = funcol.all_gather_tensor(torch.full((2,), float(rank)), 0, world)
    assert torch.equal(gathered + 0, torch.arange(ranks).repeat_interleave(2).float())


@group
def objects(rank, ranks):
    out = [None] * ranks
    dist.all_gather_object(out, {"rank": rank, "text": "x" * rank * 1000})
    assert [o["rank"] for o in out] == list(range(ranks)) and len(out[-1]["text"]) == (ranks - 1) * 1000
    things = ["a", {"b": 1}, rank] if rank == 0 else [None] * 3
    dist.broadcast_object_list(things, 0)
    assert things == ["a", {"b": 1}, 0]
    got = [None]
    dist.scatter_object_list(got, [f"for {r}" for r in range(ranks)] if rank == 0 else None, 0)
    assert got == [f"for {rank}"]
    out = [None] * ranks if rank == 0 else None
    dist.gather_object(rank * 2, out, 0)
    assert out is None or out == [2 * r for r in range(ranks)]


@group
def groups(rank, ranks):
    # Each rank makes its groups; torch has all call new_group, but only members reach the backend, and sizes overlap.
    pairs = [dist.new_group([a, (a + 1) % ranks]) for a in range(ranks)]
    for a, g in enumerate(pairs):
        if rank in (a, (a + 1) % ranks):
            x = torch.tensor([float(rank)])
            dist.all_reduce(x, group=g)
            assert x.item() == a + (a + 1) % ranks and dist.get_world_size(g) == 2
    evens, _ = dist.new_subgroups(group_size=2) if ranks % 2 == 0 else (dist.new_group(list(range(ranks))), None)
    x = torch.ones(1)
    dist.all_reduce(x, group=evens)
    assert x.item() == evens.size()
    # Made locally, in another order on each rank.
    import torch.distributed.distributed_c10d as c10d
    if ranks >= 3:
        order = [(0, 1, 2), (0, 1)] if rank else [(0, 1), (0, 1, 2)]
        made = {m: dist.new_group(list(m), use_local_synchronization=True) for m in order if rank in m}
        for m in sorted(made):
            x = torch.ones(1)
            dist.all_reduce(x, group=made[m])
            assert x.item() == len(m)
    assert c10d._get_default_group().rank() == rank
    mine = dist.new_group([0, ranks - 1], timeout=timedelta(seconds=0.3))
    if rank == 0:
        with pytest.raises(hocket.Timeout, match=" Timed out "):
            dist.recv(torch.zeros(1), ranks - 1, group=mine)
        assert dist.get_rank(mine) == 0
    dist.barrier()
    from torch.distributed.device_mesh import init_device_mesh
    mesh = init_device_mesh("cpu", (ranks,))
    try:
        from torch.distributed.tensor import Replicate, Shard, distribute_tensor
    except ImportError:  # torch 2.4
        from torch.distributed._tensor import Replicate, Shard, distribute_tensor
    whole = torch.arange(ranks * 2.0)
    d = distribute_tensor(whole, mesh, [Shard(0)])
    assert torch.equal(d.redistribute(mesh, [Replicate()]).to_local(), whole)


@pytest.mark.parametrize("body, ranks", [(reductions, 2), (reductions, 3), (movement, 3), (scattered, 2), (scattered, 3), (together, 3),
                                         (objects, 3), (groups, 2), (groups, 4)])
def test(body, ranks, tmp_path):
    run(ranks, tmp_path, body)
