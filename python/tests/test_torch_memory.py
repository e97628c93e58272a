# SPDX-License-Identifier: Apache-2.0
"""Tensors that other ranks see: values and contents stay right, memory comes and goes with its tensors, and nothing is stale."""

from __future__ import annotations

import gc
import mmap
import os
import time

import numpy
import pytest
from ranks import run
from test_torch_life import start

torch = pytest.importorskip("torch")
dist = pytest.importorskip("torch.distributed")
from torch import nn  # noqa: E402
from torch.nn.parallel import DistributedDataParallel as DDP  # noqa: E402

import hocket  # noqa: E402
import hocket.torch as ht  # noqa: E402

pytestmark = pytest.mark.skipif(ht._work._OLD, reason="before torch 2.7 tensors of the latest operations live longer")
MANY = 1 << 18


def seen(t):
    """Is the middle of t's storage shared memory of this process? The kernel's word."""
    storage = t.untyped_storage()
    at = storage.data_ptr() + storage.nbytes() // 2
    for line in open("/proc/self/maps"):
        place, rights = line.split()[:2]
        low, high = (int(v, 16) for v in place.split("-"))
        if low <= at < high:
            return rights[3] == "s"
    return False


def sums(t, rank, ranks):
    t.copy_(torch.arange(t.numel()).view(t.shape) % 50 + rank)
    dist.all_reduce(t)
    want = (torch.arange(t.numel()).view(t.shape) % 50) * ranks + ranks * (ranks - 1) // 2
    assert (t == want.to(t.dtype)).all()


def raises(kind, words, call):
    with pytest.raises(kind, match=words):
        call()


def fresh(rank, ranks, place):
    start(rank, ranks, place)
    torch.set_default_dtype(torch.float64)
    assert ht.empty(3, 5).dtype is torch.float64 and ht.empty([3, 5]).shape == (3, 5) and ht.empty(torch.Size([2])).shape == (2,)
    torch.set_default_dtype(torch.float32)
    assert ht.empty(0).numel() == 0 and ht.empty((0, 7)).shape == (0, 7) and ht.empty(()).shape == ()
    t = ht.empty(numpy.int64(3), numpy.int32(70000))
    assert t.shape == (3, 70000) and t.stride() == (70000, 1) and t.detach_() is t and not t._is_view()
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int8, torch.int64):
        t = ht.zeros(3, 64, 1000, dtype=dtype)
        assert seen(t) and t.is_contiguous() and (t == 0).all() and t.dtype is dtype
        if dtype in (torch.float32, torch.float64, torch.int64):
            sums(t, rank, ranks)
    for dtype in (torch.bool, torch.complex64, torch.float8_e4m3fn):
        assert ht.empty(40000, dtype=dtype).dtype is dtype
    model = torch.empty(300, 200, dtype=torch.int32).t()
    like = ht.empty_like(model)
    assert like.shape == (200, 300) and like.dtype is torch.int32 and like.is_contiguous() and seen(like)
    assert not seen(ht.empty(10))  # not worth it
    sums(ht.empty(10), rank, ranks)
    # What is dropped is used again, and what is kept is no more than was in use at once.
    memory = ht._memory.of(None, "a test").memory
    gc.collect()
    places = set()
    for _ in range(10):
        a, b = ht.empty(MANY), ht.empty(MANY)
        places |= {a.data_ptr(), b.data_ptr()}
        sums(a, rank, ranks)
        del a, b
    assert len(places) == 2
    for n in range(1, 40):
        ht.empty(n * MANY // 16)
    memory.take(1 << 16)
    assert sum(b.size for b in memory._idle) <= memory._most < 5 * 4 * MANY
    # A view keeps the block; the group's end does not take it.
    part = ht.zeros(MANY)[5:]
    group = dist.new_group(sorted({0, ranks - 1}))
    if rank in (0, ranks - 1):
        t = ht.empty(MANY, group=group)
        assert seen(t)
        dist.all_reduce(t.fill_(1), group=group)
        assert (t == len({0, ranks - 1})).all()
    dist.barrier()
    dist.destroy_process_group()
    assert not seen(part) and (part == 0).all()
    part += 1
    assert (part == 1).all()
    return True


def held():
    """Bytes of memory that this process shows: of its segment, a memory file."""
    files = (f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd"))
    return sum(os.stat(f).st_blocks * 512 for f in files if os.path.exists(f) and "memfd:" in os.readlink(f))


def given_back(rank, ranks, place):
    """At the end of a group that others outlive, also when something was under way in it."""
    start(rank, ranks, place)
    before = None
    for busy in (False, False, True, True):
        group = dist.new_group(list(range(ranks)))
        registered = ht.register_(torch.ones(MANY), group=group)
        a, b = [ht.empty(16 * MANY, group=group).fill_(1) for _ in range(2)], ht.zeros(MANY, group=group).add_(2)
        dist.all_reduce(a[0], group=group)
        del a
        a = ht.empty(8 * MANY, group=group)  # another block: one of those stays idle
        del a
        assert ht._memory.of(group, "a test").memory._idle
        if busy:
            dist.irecv(torch.zeros(3), (rank + 1) % ranks, group=group)
        dist.barrier()
        memory = ht._memory.of(group, "a test").memory
        dist.destroy_process_group(group)
        assert not memory._mine and not seen(b) and not seen(registered) and (b == 2).all() and (registered == 1).all()
        dist.barrier()
        before = held() if before is None else before
        assert held() < before + 32 * MANY  # half a block: what else lies there varies
    dist.destroy_process_group()
    return True


def child(rank, ranks, place):
    """A forked child gets none of the blocks that its parent may use next."""
    start(rank, ranks, place)
    t = ht.empty(MANY)
    del t
    pid = os.fork()
    if not pid:
        ht.empty(MANY).fill_(7)
        os._exit(0)
    t = ht.empty(MANY).fill_(1)
    assert os.waitpid(pid, 0)[1] == 0 and (t == 1).all()
    # Nor does it share what a storage has given up.
    for give_up in (torch.UntypedStorage.share_memory_, lambda s: s.resize_(0)):
        storages = [ht.register_(torch.zeros(MANY // 16)).untyped_storage() for _ in range(8)]
        for s in storages:
            give_up(s)
        others = [torch.ones(n) for n in (MANY // 16, MANY // 32, MANY // 64) * 20]
        pid = os.fork()
        if not pid:
            for o in others:
                o.fill_(7)
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0 and all((o == 1).all() and not seen(o) for o in others)
    inside = dist.group.WORLD
    assert inside.supports_tensor_alloc("cpu") and not inside.supports_tensor_alloc("cuda")
    assert seen(inside.allocate_tensor(MANY, dtype=torch.float32, device=torch.device("cpu")))
    raises(hocket.Invalid, "device cuda:1", lambda: inside.allocate_tensor(MANY, dtype=torch.float32, device="cuda:1"))
    raises(RuntimeError, "allocate", lambda: ht.empty(1 << 50))
    dist.destroy_process_group()
    return True


def moved(rank, ranks, place):
    start(rank, ranks, place)
    t = torch.randn(MANY, requires_grad=True)
    before, at = t.detach().clone(), t.data_ptr()
    assert not seen(t) and ht.register_(t) is t and seen(t)
    assert t.data_ptr() == at and t.requires_grad and (t == before).all()
    assert ht.register_(t.detach()[7:]) is not None and ht.register_(ht.empty(MANY)) is not None  # there already
    with torch.no_grad():
        sums(t, rank, ranks)
    # Views of something larger: their storage is meant.
    whole = torch.zeros(4, MANY)
    ht.register_(whole[2])
    assert seen(whole)
    sums(whole[1], rank, ranks)
    assert (whole[0] == 0).all() and (whole[2:] == 0).all()
    # When the storage dies so does this; what is at the address afterwards is nobody's. On one rank only.
    memory = ht._memory.of(None, "a test").memory
    known = len(memory._mine)
    for _ in range(5):
        x = ht.register_(torch.zeros(MANY)) if rank == 0 else torch.zeros(MANY)
        sums(x, rank, ranks)
        del x
    assert len(memory._mine) == known
    weight = torch.ones(MANY, requires_grad=True)
    x = ht.register_(torch.full((MANY,), 2.0))
    held = (weight * x).sum()  # C++ holds it now
    del x
    assert len(memory._mine) == known + 1
    held.backward()
    del held
    assert len(memory._mine) == known and (weight.grad == 2).all()
    # Refused, with the reason; nothing is lost.
    raises(hocket.Unsupported, "no whole page", lambda: ht.register_(torch.zeros(100)))
    with open(place + f".{rank}", "wb") as f:
        f.write(bytes(4 * MANY))
    raises(hocket.Unsupported, "not plain memory", lambda: ht.register_(torch.from_file(place + f".{rank}", shared=True, size=MANY)))
    raises(hocket.Invalid, "sparse_coo", lambda: ht.register_(torch.zeros(3, 3).to_sparse()))
    raises(hocket.Invalid, "meta", lambda: ht.register_(torch.zeros(3, 3, device="meta")))
    box = torch.zeros(MANY)
    work = dist.irecv(box, (rank - 1) % ranks)
    raises(hocket.Invalid, "under way", lambda: ht.register_(box))
    assert seen(ht.register_(torch.zeros(MANY)))
    dist.send(torch.full((MANY,), float(rank)), (rank + 1) % ranks)
    work.wait()
    assert (box == (rank - 1) % ranks).all()
    dist.destroy_process_group()
    assert not seen(t) and (whole[0] == 0).all()
    if rank == 0:
        dist.init_process_group("gloo", init_method=f"file://{place}.gloo", rank=0, world_size=1)
        raises(hocket.Invalid, "gloo, not hocket", lambda: ht.register_(box))
        raises(hocket.Invalid, "gloo, not hocket", lambda: ht.empty(5))
    return True


def net():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 8))


def train(model, rank, steps):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    data = torch.Generator().manual_seed(rank)
    found = []
    for _ in range(steps):
        loss = (model(torch.randn(8, 64, generator=data)) ** 2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        found.append(loss.item())
    return found


def buckets(rank, ranks, place):
    start(rank, ranks, place)
    memory = ht._memory.of(None, "a test").memory
    for more in ({}, {"gradient_as_bucket_view": True}, {"bucket_cap_mb": 0.1}):
        want = train(DDP(net(), **more), rank, 6)
        model = DDP(net(), **more)
        ht.register_ddp_buckets(model)
        assert train(model, rank, 6) == want
        assert memory._mine and sum(hocket._memory._shown[at] for at in memory._mine) >= 4 * 64 * 256
        del model
        end = time.monotonic() + 10
        while memory._mine:  # a thread that completed the last future may be about to let go of it
            assert time.monotonic() < end
            gc.collect()
    raises(hocket.Invalid, "a Linear, not a DistributedDataParallel", lambda: ht.register_ddp_buckets(nn.Linear(2, 2)))
    dist.destroy_process_group()
    return True


def sharded(rank, ranks, place):
    from torch.distributed.fsdp import fully_shard

    start(rank, ranks, place)

    def losses(ours):
        model = net()
        for layer in model:
            if isinstance(layer, nn.Linear):
                fully_shard(layer)
        fully_shard(model)
        if ours:
            for module in model.modules():
                if hasattr(module, "set_allocate_memory_from_process_group_for_comm"):
                    module.set_allocate_memory_from_process_group_for_comm(True)
        return train(model, rank, 5)

    want = losses(False)
    memory = ht._memory.of(None, "a test").memory
    assert memory._most == 0
    assert losses(True) == want
    assert memory._most > 256 * 256 * 4
    dist.destroy_process_group()
    return True


@pytest.mark.parametrize("body, n", [(fresh, 1), (fresh, 3), (given_back, 2), (child, 1), (moved, 2), (buckets, 2)])
def test_memory(tmp_path, body, n):
    assert run(n, tmp_path, body) == [True] * n


def test_fsdp(tmp_path):
    if not hasattr(pytest.importorskip("torch.distributed.fsdp"), "fully_shard"):
        pytest.skip("no FSDP2 in this torch")
    assert run(2, tmp_path, sharded) == [True] * 2


def test_pages_are_whole():
    from hocket._memory import _Block

    assert [_Block(n).size for n in (1, mmap.PAGESIZE, mmap.PAGESIZE + 1)] == [mmap.PAGESIZE, mmap.PAGESIZE, 2 * mmap.PAGESIZE]
    assert all(_Block(n).at % mmap.PAGESIZE == 0 for n in (1, 100000))
