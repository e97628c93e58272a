# SPDX-License-Identifier: Apache-2.0
"""hocket.Comm with NumPy arrays, buffers and DLPack, against NumPy on one rank."""

from __future__ import annotations

import array
import os
import signal
import threading
import time

import numpy as np
import pytest
from ranks import run, say, wait_until

import hocket

DTYPES = [np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64, np.float16, np.float32, np.float64]


def of_rank(rank, n, dtype):
    """Different for each rank and position, small enough for sums and products to be exact."""
    return ((np.arange(n) * 3 + rank * 5) % 4 + 1).astype(dtype)


def numbers(rank, ranks, place):
    with hocket.init() as comm:
        assert (comm.rank, comm.ranks) == (rank, ranks)
        reductions = {"sum": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum}
        for dtype in DTYPES:
            for n in (1, 7, 1000):
                every = [of_rank(r, n, dtype) for r in range(ranks)]
                for name, f in reductions.items():
                    expected = f.reduce(every, dtype=dtype)
                    x = every[rank].copy()
                    y = comm.all_reduce(x, name)
                    assert y.dtype == dtype and (y == expected).all() and (x == every[rank]).all(), (dtype, n, name)
                    assert comm.all_reduce(x, name, out=x) is x and (x == expected).all()
                total = np.add.reduce([e.astype(np.float64) for e in every])
                mean = comm.all_reduce(every[rank], hocket.AVG)
                assert np.allclose(mean, np.trunc(total / ranks) if np.issubdtype(dtype, np.integer) else total / ranks, rtol=1e-3)
        for name, f in {"band": np.bitwise_and, "bor": np.bitwise_or, "bxor": np.bitwise_xor}.items():
            assert (comm.all_reduce(of_rank(rank, 9, np.int32), name) == f.reduce([of_rank(r, 9, np.int32) for r in range(ranks)])).all()
        with pytest.raises(hocket.Unsupported):
            comm.all_reduce(np.zeros(2, np.float32), "band")


def movement(rank, ranks, place):
    comm = hocket.init()
    for shape in ((3,), (2, 5)):
        every = np.stack([np.arange(np.prod(shape), dtype=np.float32).reshape(shape) + 100 * r for r in range(ranks)])
        assert (comm.all_gather(every[rank]) == every).all()
        x = every[rank].copy()
        assert comm.broadcast(x, 1) is x and (x == every[1]).all()
        assert (comm.reduce(every[rank], 1) is None) == (rank != 1)
        whole = comm.gather(every[rank], 1)
        assert whole is None if rank != 1 else (whole == every).all()
        out = np.empty((1, *shape), np.float32)
        comm.scatter(every if rank == 0 else None, 0, out=out)
        assert (out[0] == every[rank]).all()
        blocks = np.stack([every[rank] + 1000 * q for q in range(ranks)])
        assert (comm.all_to_all(blocks) == every + 1000 * rank).all()
        part = comm.reduce_scatter(blocks)
        assert (part[0] == every.sum(0) + ranks * 1000 * rank).all()
    comm.barrier()
    comm.destroy()
    comm.destroy()
    with pytest.raises(hocket.Invalid, match="destroyed"):
        comm.barrier()


def kinds(rank, ranks, place):
    comm = hocket.init()
    total = ranks * (ranks + 1) // 2
    assert comm.all_reduce(array.array("d", [rank + 1.0] * 3)) == array.array("d", [total] * 3)
    assert comm.all_reduce(bytearray([rank + 1] * 3)) == bytearray([total] * 3)
    assert (comm.all_reduce(np.full(2, (rank + 1) * (1 + 2j))) == total * (1 + 2j)).all()
    assert (comm.all_reduce(np.array([rank == 0, False])) == [True, False]).all()
    assert comm.all_reduce(np.zeros((0, 3))).shape == (0, 3)
    with pytest.raises(hocket.Invalid, match="not contiguous"):
        comm.all_reduce(np.zeros((4, 4))[:, ::2])
    with pytest.raises(hocket.Invalid, match="not writable"):
        comm.all_reduce(np.zeros(3), out=bytes(24))
    with pytest.raises(hocket.Invalid, match="out has 2 elements of f64, it needs 3 of f64"):
        comm.all_reduce(np.zeros(3), out=np.zeros(2))
    with pytest.raises(hocket.Invalid, match="is no array"):
        comm.all_reduce([1, 2])
    for root in (-1, ranks, 1 << 40):
        with pytest.raises(hocket.Invalid, match=f"rank {rank}: (broadcast: an argument|.*root {root} is no rank)"):
            comm.broadcast(np.zeros(3), root)
    with pytest.raises(hocket.Invalid, match="none of i8"):
        comm.all_reduce(np.array(["a"]))
    torch = pytest.importorskip("torch")
    for dtype in (torch.float32, torch.bfloat16, torch.int64):
        t = torch.full((2, 3), rank + 1, dtype=dtype)
        assert (comm.all_reduce(t) == total).all()
    comm.destroy()


def work(rank, ranks, place):
    comm = hocket.init()
    xs = [np.full(1 << k, float(rank + k)) for k in range(0, 18, 3)]
    works = [comm.all_reduce(x, out=x, async_op=True) for x in xs]
    for k, w in zip(range(0, 18, 3), reversed(works)):
        w.wait()
    for k, (x, w) in enumerate(zip(xs, works)):
        assert w.test() and w.wait() is x and (x == sum(r + 3 * k for r in range(ranks))).all()
    right, left = (rank + 1) % ranks, (rank - 1) % ranks
    got = np.zeros(5)
    sent = comm.send(np.full(5, float(rank)), right, tag=3, async_op=True)
    assert comm.recv(got, left, tag=3) == left and (got == left).all()
    sent.wait()
    if rank == 0:
        assert sorted(comm.recv(got[:1]) for _ in range(1, ranks)) == list(range(1, ranks))
    else:
        comm.send(np.array([float(rank)]), 0)
    late = comm.recv(got, left, tag=4, async_op=True)
    with pytest.raises(hocket.WaitExpired):
        late.wait(0.05)
    comm.barrier()
    comm.send(np.full(5, float(rank)), right, tag=4, async_op=True)
    late.wait()
    assert late.source == left and (got == left).all()
    comm.destroy()


def others(rank, ranks, place):
    comm = hocket.init()
    half = comm.split(rank % 2, -rank)
    assert half.ranks == len(range(rank % 2, ranks, 2)) and half.rank == (half.ranks - 1 - rank // 2)
    assert half.all_reduce(np.array([rank]))[0] == sum(range(rank % 2, ranks, 2))
    assert comm.split(0 if rank else -1) is None or rank
    with comm.dup() as twin:
        assert twin.all_reduce(np.array([1]))[0] == ranks
    if rank < 2:
        with comm.group([1, 0], tag=5) as pair:
            assert pair.rank == 1 - rank and pair.all_gather(np.array([rank])).tolist() == [[1], [0]]
    comm.destroy()


def mismatch(rank, ranks, place):
    comm = hocket.init(rank, ranks, place + ".file", timeout=20)
    with pytest.raises(hocket.Mismatch, match=r"all_reduce.*f32\[3\].*broadcast|broadcast.*all_reduce.*f32\[3\]") as e:
        comm.all_reduce(np.zeros(3, np.float32)) if rank else comm.broadcast(np.zeros(3, np.float32))
        comm.barrier()  # a root may be done with its broadcast before anybody looks at it
    assert e.value.status == -21 and isinstance(e.value, hocket.Broken)
    with pytest.raises(hocket.Mismatch):
        comm.barrier()
    comm.destroy()


def aborted(rank, ranks, place):
    comm = hocket.init()
    if rank == 0:
        threading.Timer(0.2, comm.abort).start()
    begin = time.monotonic()
    with pytest.raises(hocket.Aborted):
        comm.recv(np.zeros(1), (rank + 1) % ranks)
    assert time.monotonic() - begin < 5
    comm.destroy()


def limits(rank, ranks, place):
    comm = hocket.init()
    if rank == 0:
        with pytest.raises(hocket.Timeout) as e:
            comm.recv(np.zeros(1), 1, timeout=0.2)
        assert isinstance(e.value, TimeoutError) and "rank" in str(e.value)
    else:
        with pytest.raises(hocket.Broken):
            comm.recv(np.zeros(1), 0)
    comm.destroy()


def dead(rank, ranks, place):
    comm = hocket.init()
    comm.barrier()
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(hocket.PeerLost, match="rank 1"):
        comm.all_reduce(np.zeros(10))
    comm.destroy()


def interrupted(rank, ranks, place):
    comm = hocket.init()
    x = np.full(4, float(rank))
    if rank == 0:
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            comm.all_reduce(x, out=x)
        say(place)
        comm.barrier()  # the operation went on
        assert (x == 1).all()
    else:
        wait_until(place)
        comm.all_reduce(x, out=x)
        comm.barrier()
    comm.destroy()


def forked(rank, ranks, place):
    comm = hocket.init()
    child = os.fork()
    if child == 0:
        try:
            comm.barrier()
        except hocket.Forked:
            os._exit(7)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    comm.barrier()
    comm.destroy()


def destroyed_meanwhile(rank, ranks, place):
    """destroy() while another thread is inside a call, also where it has not yet come to the library: that call comes to its end before."""
    world = hocket.init()
    comm = world.dup()
    handle, run, x = comm._handle, comm._handle._run, np.full(4, rank)
    inside, go, results = threading.Event(), threading.Event(), []

    def held_up(frame):
        inside.set()
        assert go.wait(20)
        return run(frame)

    handle._run = held_up
    caller = threading.Thread(target=lambda: results.append(comm.all_reduce(x)))
    caller.start()
    assert inside.wait(20)
    destroyer = threading.Thread(target=comm.destroy)
    destroyer.start()
    while handle.open:
        time.sleep(0.001)
    with pytest.raises(hocket.Invalid, match="destroyed"):
        comm.all_reduce(x)
    assert handle.at and destroyer.is_alive()
    go.set()
    for thread in (caller, destroyer):
        thread.join(20)
    assert not handle.at and (results[0] == ranks * (ranks - 1) // 2).all()
    world.barrier()
    world.destroy()


def careless(rank, ranks, place):
    comm = hocket.init()
    comm.send(np.zeros(1), 1 - rank, async_op=True)  # nobody receives it, and nobody destroys
    comm.barrier()


@pytest.mark.parametrize("body, ranks", [(numbers, 1), (numbers, 2), (numbers, 3), (movement, 2), (movement, 3), (kinds, 2), (work, 3),
                                         (others, 4), (mismatch, 2), (aborted, 2), (limits, 2), (interrupted, 2), (forked, 2),
                                         (destroyed_meanwhile, 1), (destroyed_meanwhile, 2), (careless, 2)])
def test(body, ranks, tmp_path):
    run(ranks, tmp_path, body)


def test_dead_rank(tmp_path):
    run(3, tmp_path, dead, lost=(1,))


def test_who_is_missing(tmp_path):
    with pytest.raises(hocket.BootFailed, match="rank"):
        hocket.init(1, 2, str(tmp_path / "never"), init_timeout=0.1)
