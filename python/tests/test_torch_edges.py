# SPDX-License-Identifier: Apache-2.0
"""What breaks backends of torch.distributed at the edges: memory that is not contiguous, nothing to send, NaN, extreme numbers, roots."""

from __future__ import annotations

import functools
import itertools
import os

import pytest
from ranks import run
from test_torch import BITS, FLOATS, INTS, OP, UNSIGNED, F, group, of_rank

torch = pytest.importorskip("torch")
dist = pytest.importorskip("torch.distributed")

import hocket  # noqa: E402
import hocket.torch  # noqa: E402

UNTOUCHED = 77.0
# By name: the shape of the tensor in which a view of (rows, columns) lies, and how the view is cut out of it.
LAYOUTS = {
    "transposed": (lambda n, m: (m, n), lambda b: b.t()),
    "every other row": (lambda n, m: (2 * n, m), lambda b: b[::2]),
    "every other column": (lambda n, m: (n, 2 * m), lambda b: b[:, ::2]),
    "chunk": (lambda n, m: (n, 3 * m), lambda b: b.chunk(3, dim=1)[1]),
    "plain": (lambda n, m: (n + 2, m), lambda b: b[1:-1]),
}


class Laid:
    """A view of a layout with these values, and the tensor around it."""

    def __init__(self, layout, values):
        shape, self.cut = LAYOUTS[layout]
        self.base = torch.full(shape(*values.shape), UNTOUCHED)
        self.view = self.cut(self.base)
        self.view.copy_(values)
        self.layout = layout

    def has(self, values, what):
        assert torch.equal(self.view, values), (what, self.layout)
        around = torch.ones_like(self.base, dtype=torch.bool)
        self.cut(around).fill_(False)
        assert (self.base[around] == UNTOUCHED).all(), (what, self.layout)


@group
def layouts(rank, ranks):
    rows, last = 2 * ranks, ranks - 1
    every = [of_rank(r, (rows, 4)) + 10 * r for r in range(ranks)]
    total, blocks = sum(every), [torch.cat([e[2 * q:2 * q + 2] for e in every]) for q in range(ranks)]
    for layout in LAYOUTS:
        laid = functools.partial(Laid, layout)

        def empty(n=rows, laid=laid):
            return laid(torch.zeros(n, 4))

        def mine(laid=laid):
            return laid(every[rank]).view

        for op, call, expected in (("broadcast", lambda t: dist.broadcast(t, last), every[last]),
                                   ("reduce", lambda t: dist.reduce(t, last), total if rank == last else every[rank]),
                                   ("all_reduce", dist.all_reduce, total)):
            x = laid(every[rank])
            call(x.view)
            x.has(expected, op)
        outs = [empty() for _ in range(ranks)]
        for op, call in (("all_gather", lambda: dist.all_gather([o.view for o in outs], mine())),
                         ("all_to_all", lambda: dist.all_to_all([o.view for o in outs], [mine() for _ in range(ranks)]))):
            call()
            for o, e in zip(outs, every):
                o.has(e, op)
                o.view.zero_()
        dist.gather(mine(), [o.view for o in outs] if rank == last else None, last)
        for o, e in zip(outs, every):
            o.has(e if rank == last else torch.zeros(rows, 4), "gather")
        for op, n, expected, call in (
                ("scatter", rows, every[rank], lambda o: dist.scatter(o, [laid(e).view for e in every] if rank == 0 else None, 0)),
                ("all_gather_into_tensor", rows * ranks, torch.cat(every), lambda o: dist.all_gather_into_tensor(o, mine())),
                ("reduce_scatter", rows, total, lambda o: dist.reduce_scatter(o, [mine() for _ in range(ranks)])),
                ("reduce_scatter_tensor", 2, total[2 * rank:2 * rank + 2], lambda o: dist.reduce_scatter_tensor(o, mine())),
                ("all_to_all_single", rows, blocks[rank], lambda o: dist.all_to_all_single(o, mine()))):
            out = empty(n)
            call(out.view)
            out.has(expected, op)
        out = empty()
        works = [dist.isend(mine(), (rank + 1) % ranks), dist.irecv(out.view, (rank - 1) % ranks)]
        for w in works:
            w.wait()
        out.has(every[(rank - 1) % ranks], "recv")
        xs = [laid(every[rank]), laid(every[rank] * 2)]
        with dist._coalescing_manager(device=torch.device("cpu")):
            for x in xs:
                dist.all_reduce(x.view)
        xs[0].has(total, "coalesced")
        xs[1].has(total * 2, "coalesced")


@group
def expanded(rank, ranks):
    """Refused as an output on every rank, before anything is sent; welcome as an input."""
    wide, part = torch.zeros(1).expand(2 * ranks), torch.zeros(1).expand(2)
    plain = torch.arange(2.0)
    for call in (lambda: dist.all_reduce(wide), lambda: dist.broadcast(wide, 0), lambda: dist.reduce(wide, 0),
                 lambda: dist.all_gather([part] * ranks, plain), lambda: dist.all_gather_into_tensor(wide, plain),
                 lambda: dist.scatter(part, [plain] * ranks if rank == 0 else None, 0), lambda: dist.reduce_scatter(part, [plain] * ranks),
                 lambda: dist.reduce_scatter_tensor(part, torch.ones(2 * ranks)), lambda: dist.all_to_all([part] * ranks, [plain] * ranks),
                 lambda: dist.all_to_all_single(wide, torch.ones(2 * ranks)), lambda: dist.recv(part, (rank + 1) % ranks)):
        with pytest.raises(ValueError, match="expanded") as e:
            call()
        assert isinstance(e.value, hocket.Invalid)
    outs = [torch.zeros(2) for _ in range(ranks)]
    dist.all_gather(outs, torch.tensor([float(rank)]).expand(2))
    assert [o.tolist() for o in outs] == [[r, r] for r in range(ranks)]


@group
def nothing(rank, ranks):
    """No elements: nowhere, or on one rank only."""
    for shape in ((0,), (1, 0, 2)):
        x, flat = torch.empty(shape), torch.empty(0)
        dist.all_reduce(x)
        dist.broadcast(x, 0)
        dist.reduce(x, 0, OP.MAX)
        outs = [torch.empty(shape) for _ in range(ranks)]
        dist.all_gather(outs, x)
        assert all(o.shape == x.shape for o in outs)
        dist.all_gather_into_tensor(flat, x)
        dist.gather(x, outs if rank == 0 else None, 0)
        dist.scatter(x, outs if rank == 0 else None, 0)
        dist.reduce_scatter(x, outs)
        dist.reduce_scatter_tensor(x, flat)
        dist.all_to_all(outs, [x] * ranks)
        dist.all_to_all_single(flat, flat)
        with dist._coalescing_manager():
            dist.all_reduce(x)
            dist.all_reduce(x)
        if ranks > 1:
            works = [dist.isend(x, (rank + 1) % ranks), dist.irecv(x, (rank - 1) % ranks)]
            for w in works:
                w.wait()
    sizes = [0 if r == ranks - 1 else r + 1 for r in range(ranks)]
    outs = [torch.empty(n) for n in sizes]
    dist.all_gather(outs, torch.full((sizes[rank],), float(rank)))
    assert [o.tolist() for o in outs] == [[float(r)] * n for r, n in enumerate(sizes)]
    out = torch.empty(sizes[rank])
    dist.reduce_scatter(out, [torch.ones(n) for n in sizes])
    assert out.tolist() == [ranks] * sizes[rank]
    got = [torch.empty(sizes[rank]) for _ in range(ranks)]
    dist.all_to_all(got, [torch.full((n,), float(rank)) for n in sizes])
    assert [g.tolist() for g in got] == [[float(r)] * sizes[rank] for r in range(ranks)]
    if ranks > 1:
        other = dist.new_group(list(range(ranks)))
        with pytest.raises(hocket.Mismatch, match=r"f32\[0\]"):
            dist.all_reduce(torch.empty(0 if rank == 1 else 3), group=other)
            dist.barrier(other)


def same_everywhere(x, ranks, among=None):
    every = [torch.empty_like(x).view(torch.uint8) for _ in range(ranks)]
    dist.all_gather(every, x.view(torch.uint8), group=among)
    return all(torch.equal(e, every[0]) for e in every)


@group
def not_a_number(rank, ranks):
    placed = list(itertools.permutations([1.0, float("nan"), 3.0, 4.0]))
    for dtype, op in itertools.product(FLOATS, (OP.MIN, OP.MAX)):
        found = []
        for n, places in ((1, placed), (7, placed), (64, placed), (100003, placed[::9])):
            for values in places:
                x = torch.full((n,), values[rank], dtype=dtype)
                dist.all_reduce(x, op)
                assert x.isnan().all(), (dtype, op, n, values)
                found.append(x[:64])
        for values in ((0.0, -0.0, 0.0, -0.0), (-0.0, 0.0, 0.0, 0.0), (float("inf"), 1.0, float("-inf"), 2.0)):
            x = torch.full((65,), values[rank], dtype=dtype)
            dist.all_reduce(x, op)
            assert (x == (min if op == OP.MIN else max)(values)).all(), (dtype, op, values)
            found.append(x)
        assert same_everywhere(torch.cat(found), ranks), (dtype, op)


@group
def halves(rank, ranks):
    """Means of halves neither overflow nor vanish: they are computed wide and rounded once. Sums overflow to the same infinity."""
    half, tiny = torch.float16, 2 * 2.0**-24
    four = dist.new_group(list(range(4)))
    for n in (1, 33, 5000):
        for value in (10000.0, tiny):
            x = torch.full((n,), value, dtype=half)
            dist.all_reduce(x, OP.AVG)
            assert (x == value).all(), (n, value)
        x = torch.full((n,), 30000.0, dtype=half)
        if rank < 4:
            dist.all_reduce(x, OP.AVG, group=four)
        assert (x == 30000.0).all()
        x = torch.full((n,), 10000.0, dtype=half)
        dist.all_reduce(x)
        assert x.isinf().all() and same_everywhere(x, ranks)


@group
def extremes(rank, ranks):
    """MIN and MAX of the least and greatest integers, whoever has them; means of negative ones."""
    pair = dist.new_group([0, 1])
    for dtype in INTS + UNSIGNED:
        bits = torch.iinfo(dtype)
        for low, high in {(bits.min, bits.max), (-1 if bits.min else 0, 0 if bits.min else bits.max)}:
            for n, among, swap in itertools.product((1, 15, 16, 17, 33, 1000), (None, pair), (0, 1)):
                if among is pair and rank > 1:
                    continue
                x = torch.tensor([high if rank == swap else low] * n, dtype=dtype)
                y = x.clone()
                dist.all_reduce(x, OP.MAX, group=among)
                dist.all_reduce(y, OP.MIN, group=among)
                assert x.tolist() == [high] * n and y.tolist() == [low] * n, (dtype, low, high, n)
    for dtype in INTS:
        if dtype.is_signed:
            x = torch.tensor([-1 if rank else -2, 7 if rank else -14], dtype=dtype)
            dist.all_reduce(x, OP.AVG)
            assert x.tolist() == [-1, 0]  # -4/3, 0/3: toward zero


@group
def same_bits(rank, ranks):
    subsets = {n: dist.new_group(list(range(n))) for n in (3, 4)}
    strict = dist.new_group(list(range(4)), pg_options=hocket.torch.Options(determinism="strict"))
    g = torch.Generator().manual_seed(rank)
    for dtype, n in itertools.product((torch.float32, torch.float16, torch.bfloat16), (1, 7, 1001, 100003)):
        for size, among in ((ranks, None), *subsets.items()):
            if rank < size:
                x = torch.randn(n, generator=g).to(dtype)
                dist.all_reduce(x, group=among)
                assert same_everywhere(x, size, among), (dtype, n, size)
    if rank < 4:
        value = (1e8, 1.0, -1e8, 1.0)[rank]
        found = set()
        for _ in range(100):
            x = torch.full((5,), value)
            dist.all_reduce(x, group=subsets[4])
            found.update(x.tolist())
        assert len(found) == 1
        found = set()
        for n in (1, 1000, 1000000):
            x = torch.full((n,), value)
            dist.all_reduce(x, group=strict)
            found.update(x.unique().tolist())
        assert len(found) == 1


REDUCED = {**F, **BITS, OP.AVG: None}


def defined(dtype):
    """The reductions of a type that docs/python.md promises."""
    if dtype is torch.bool:
        return set(REDUCED) - {OP.AVG}
    if dtype.is_complex:
        return {OP.SUM, OP.AVG}
    if dtype in FLOATS:
        return {*F, OP.AVG}
    return set(REDUCED) if dtype in INTS + UNSIGNED else set()


@group
def matrix(rank, ranks):
    """Type by reduction by operation: right, or refused before anything is sent, everywhere alike."""
    types = [*FLOATS, *INTS, *UNSIGNED, torch.bool, torch.complex64, torch.complex128, torch.float8_e4m3fn, torch.float8_e5m2]
    for dtype, op in itertools.product(types, REDUCED):
        whole = torch.int64 if not (dtype.is_floating_point or dtype.is_complex) else torch.float64
        every = [of_rank(r, (ranks, 3), whole) % 2 if dtype is torch.bool else of_rank(r, (ranks, 3), whole) for r in range(ranks)]
        x = expected = every[rank].to(dtype)
        if op in defined(dtype):
            total = sum(every) / ranks if whole is torch.float64 else sum(every) // ranks
            expected = (total if op == OP.AVG else functools.reduce(REDUCED[op], every)).to(dtype)
        outs = [x.clone(), x.clone(), torch.zeros(3, dtype=dtype), torch.zeros(3, dtype=dtype)]
        for out, good, call in ((outs[0], expected, lambda: dist.all_reduce(outs[0], op)),
                                (outs[1], expected if rank == 0 else x, lambda: dist.reduce(outs[1], 0, op)),
                                (outs[2], expected[rank], lambda: dist.reduce_scatter_tensor(outs[2], x, op)),
                                (outs[3], expected[rank], lambda: dist.reduce_scatter(outs[3], list(x), op))):
            if op in defined(dtype):
                call()
                assert torch.allclose(out.to(torch.complex128), good.to(torch.complex128), rtol=1e-2), (dtype, op, out, good)
            else:
                with pytest.raises((hocket.Unsupported, ValueError)):
                    call()
    x = torch.tensor([1.0 + rank, 3.0 + rank])
    dist.all_reduce(x, dist._make_nccl_premul_sum(0.5))
    assert x.tolist() == [sum(1.0 + r for r in range(ranks)) / 2, sum(3.0 + r for r in range(ranks)) / 2]


@group
def roots(rank, ranks):
    """Every root; groups whose ranks are numbered otherwise; roots that are not there."""
    for root in range(ranks):
        x = torch.tensor([float(rank)])
        outs = [torch.zeros(1) for _ in range(ranks)] if rank == root else None
        dist.gather(x, outs, root)
        assert outs is None or [o.item() for o in outs] == list(range(ranks))
        dist.scatter(x, [torch.tensor([100.0 * root + r]) for r in range(ranks)] if rank == root else None, root)
        assert x.item() == 100 * root + rank
        dist.reduce(x, root)
        assert x.item() == (100.0 * root * ranks + sum(range(ranks)) if rank == root else 100 * root + rank)
    some = dist.new_group([3, 1])  # torch numbers them by rank: 1 is its rank 0
    if rank in (1, 3):
        assert (dist.get_rank(some), dist.get_group_rank(some, 3), dist.get_global_rank(some, 0)) == (rank // 2, 1, 1)
        for how, expected in (({"src": 3}, 3.0), ({"src": 1}, 1.0), ({"group_src": 1}, 3.0)):
            x = torch.tensor([float(rank)])
            dist.broadcast(x, group=some, **how)
            assert x.item() == expected
        outs = [torch.zeros(1), torch.zeros(1)]
        dist.all_gather(outs, torch.tensor([float(rank)]), group=some)
        assert [o.item() for o in outs] == [1.0, 3.0]
        with pytest.raises(ValueError, match="not part of group"):
            dist.broadcast(torch.zeros(1), 2, group=some)
        dist.barrier(some)


@group
def alone(rank, ranks):
    """One rank: what it sends to itself it gets, and every operation is a copy."""
    x, got = torch.arange(1e6), torch.zeros(1000000)
    world = dist.group.WORLD
    late = world.recv([got], 0, 0)
    world.send([x], 0, 0).wait()
    late.wait()
    assert torch.equal(x, got)
    with pytest.raises(ValueError, match="the same as the rank"):
        dist.send(x, 0)
    for call in (lambda o: dist.all_gather([o], x), lambda o: dist.all_gather_into_tensor(o, x), lambda o: dist.gather(x, [o], 0),
                 lambda o: dist.scatter(o, [x], 0), lambda o: dist.reduce_scatter(o, [x]),
                 lambda o: dist.reduce_scatter_tensor(o, x, OP.AVG), lambda o: dist.all_to_all([o], [x]),
                 lambda o: dist.all_to_all_single(o, x)):
        out = torch.zeros_like(x)
        call(out)
        assert torch.equal(out, x)
    for call in (dist.all_reduce, lambda o: dist.reduce(o, 0, OP.AVG), lambda o: dist.broadcast(o, 0)):
        call(out)
        assert torch.equal(out, x)


@group
def defaults(rank, ranks):
    x = torch.tensor([1.0, 2.0])
    dist.all_reduce(x)
    assert x.tolist() == [2.0, 4.0]
    x = torch.tensor([1.0, 2.0])
    dist.all_reduce(x, OP.AVG)
    assert x.tolist() == [1.0, 2.0]


@group
def big(rank, ranks):
    """More than 2^31 elements."""
    n = 2**31 + 9
    x = torch.full((n,), 0, dtype=torch.uint8)
    at = torch.tensor([0, 1, 2**31 - 1, 2**31, n - 1])
    x[at] = (at % 100).to(torch.uint8) + rank
    dist.all_reduce(x)
    assert x[at].tolist() == [(2 * (int(i) % 100) + 1) % 256 for i in at] and x[2] == 0
    dist.broadcast(x, 1)
    work = dist.isend(x, 1) if rank == 0 else dist.irecv(x.zero_(), 0)
    work.wait()
    assert x[at].tolist() == [(2 * (int(i) % 100) + 1) % 256 for i in at]


@pytest.mark.parametrize("body, ranks", [(layouts, 3), (expanded, 2), (nothing, 1), (nothing, 2), (nothing, 4), (not_a_number, 4),
                                         (halves, 8), (extremes, 3), (same_bits, 5), (matrix, 2), (roots, 4), (alone, 1), (defaults, 2)])
def test(body, ranks, tmp_path):
    run(ranks, tmp_path, body)


@pytest.mark.skipif(not os.environ.get("HOCKET_BIG_TESTS"), reason="takes 5 GB, and a minute on a slow machine (HOCKET_BIG_TESTS=1)")
def test_big(tmp_path):
    run(2, tmp_path, big)
