# SPDX-License-Identifier: Apache-2.0
"""Groups from their making to their end: errors with their types, time limits, abort, death, forks, exits; who is missing."""

from __future__ import annotations

import os
import signal
import threading
import time
from datetime import timedelta

import pytest
from ranks import run, say, wait_until

torch = pytest.importorskip("torch")
dist = pytest.importorskip("torch.distributed")

import hocket  # noqa: E402
import hocket.torch  # noqa: E402


def start(rank, ranks, place, seconds=20.0, name="hocket"):
    torch.set_num_threads(1)
    dist.init_process_group(name, init_method=f"file://{place}", rank=rank, world_size=ranks, timeout=timedelta(seconds=seconds))


def works(rank, ranks, place):
    start(rank, ranks, place, name="cpu:hocket")
    assert dist.get_backend() in ("hocket", "cpu:hocket", "undefined")
    x = torch.ones(4)
    w = dist.all_reduce(x, async_op=True)
    assert isinstance(w, dist.distributed_c10d.Work)
    chained = w.get_future().then(lambda f: f.value()[0] * 2)
    assert (chained.wait() == 2 * ranks).all() and w.wait() and w.is_completed() and w.is_success() and w.exception() is None
    assert w.result()[0] is x
    # Many at once, waited for from several threads; continuations that wait for other operations.
    xs = [torch.full((k + 1,), 1.0) for k in range(40)]
    ws = [dist.all_reduce(x, async_op=True) for x in xs]
    threads = [threading.Thread(target=lambda: [w.wait() for w in reversed(ws)]) for _ in range(2)]
    for t in threads:
        t.start()
    for w in ws:
        w.wait()
    for t in threads:
        t.join()
    assert all((x == ranks).all() for x in xs)

    def again(f):
        y = torch.ones(1)
        dist.all_reduce(y)
        return y + f.value()[0].sum()

    w = dist.all_reduce(torch.ones(1), async_op=True)
    assert w.get_future().then(again).wait().item() == 2 * ranks
    # Dropped at once.
    dist.isend(torch.full((100000,), float(rank)), (rank + 1) % ranks)
    got = torch.zeros(100000)
    dist.recv(got, (rank - 1) % ranks)
    assert (got == (rank - 1) % ranks).all()
    # wait() gives up without harm.
    late = torch.zeros(1)
    w = dist.irecv(late, (rank - 1) % ranks, tag=1)
    with pytest.raises(TimeoutError, match=" Timed out "):
        w.wait(timedelta(milliseconds=50))
    with pytest.raises(TimeoutError):
        w.wait(timedelta(milliseconds=-1))
    dist.barrier()
    dist.send(torch.ones(1), (rank + 1) % ranks, tag=1) if rank == 0 else w.wait()
    w.wait() if rank == 0 else dist.send(torch.ones(1), (rank + 1) % ranks, tag=1)
    assert late.item() == 1
    dist.destroy_process_group()
    start(rank, ranks, place + ".again")
    dist.all_reduce(late)
    assert late.item() == ranks
    dist.destroy_process_group()


def limit(rank, ranks, place):
    start(rank, ranks, place, 0.5)
    if rank == 0:
        begin = time.monotonic()
        with pytest.raises(hocket.Timeout, match=r" Timed out .*rank 0.*rank 1") as e:
            dist.all_reduce(torch.zeros(1))
        assert 0.3 < time.monotonic() - begin < 5 and isinstance(e.value, dist.DistBackendError) and isinstance(e.value, TimeoutError)
        say(place)
    else:
        wait_until(place)
        with pytest.raises(hocket.Broken):
            dist.all_reduce(torch.zeros(1))  # may be right still: rank 0's part is there
            dist.all_reduce(torch.zeros(1))
    dist.destroy_process_group()


def mismatch(rank, ranks, place):
    start(rank, ranks, place)
    w = dist.all_reduce(torch.zeros(3 + rank), async_op=True)
    with pytest.raises(RuntimeError, match=r"all_reduce.*f32\[3\].*all_reduce.*f32\[4\]|f32\[4\].*f32\[3\]"):
        w.get_future().wait()
    with pytest.raises(hocket.Mismatch) as e:
        w.wait()
    assert isinstance(e.value, dist.DistBackendError) and not w.is_success() and isinstance(w.exception(), hocket.Mismatch)
    from torch.nn.parallel import DistributedDataParallel as DDP
    with pytest.raises(RuntimeError):
        DDP(torch.nn.Linear(2, 2))
    dist.destroy_process_group()


def ddp_fails(rank, ranks, place):
    start(rank, ranks, place)
    from torch.nn.parallel import DistributedDataParallel as DDP
    model = DDP(torch.nn.Linear(2, 2))
    model(torch.ones(1, 2)).sum().backward()
    if rank == 0:
        dist.group.WORLD.abort()
    with pytest.raises(RuntimeError, match="abort"):
        while True:
            model(torch.ones(1, 2)).sum().backward()
    dist.destroy_process_group()


def abort(rank, ranks, place):
    start(rank, ranks, place)
    w = dist.irecv(torch.zeros(1), (rank + 1) % ranks)
    if rank == 0:
        threading.Timer(0.2, dist.group.WORLD.abort).start()
    begin = time.monotonic()
    with pytest.raises(hocket.Aborted):
        dist.recv(torch.zeros(1), (rank + 1) % ranks, tag=2)
    with pytest.raises(hocket.Aborted):
        w.wait()
    assert time.monotonic() - begin < 2
    dist.destroy_process_group()
    assert time.monotonic() - begin < 3


def dead(rank, ranks, place):
    start(rank, ranks, place)
    dist.barrier()
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    begin = time.monotonic()
    with pytest.raises(hocket.PeerLost, match="rank 1") as e:
        dist.all_reduce(torch.zeros(10))
    assert isinstance(e.value, dist.DistNetworkError) and time.monotonic() - begin < 5
    dist.destroy_process_group()


def at_its_end(rank, ranks, place):
    """Ctrl-C in the very wait that sees the end of an operation: how it ended is not lost, and what is not contiguous gets its values."""
    start(rank, ranks, place)
    handle = dist.group.WORLD._handle
    for k in range(4):
        there = f"{place}.{k}"
        if rank:
            wait_until(there)
            dist.send(torch.full((8,), float(k)), 0)
            continue
        handle.spins = k % 2 == 0
        x = torch.full((8, 2), -1.0).t()[0]
        work = dist.irecv(x, 1)

        def strike(work=work, there=there):
            while not work._request._lock.locked():
                time.sleep(0.001)
            os.kill(os.getpid(), signal.SIGINT)
            say(there)

        thread = threading.Thread(target=strike)
        with pytest.raises(KeyboardInterrupt):
            thread.start()
            work.wait()
        thread.join()
        assert work.wait() and (x == k).all()
    dist.barrier()
    dist.destroy_process_group()


def at_its_beginning(rank, ranks, place):
    """Ctrl-C just when something has been issued: it is known and keeps its memory; what was to start together is issued."""
    start(rank, ranks, place)
    handle = dist.group.WORLD._handle

    def strike(*_):
        raise KeyboardInterrupt

    if rank == 0:
        run, spins = handle._run, handle.spins
        handle._run, handle.spins = lambda at: strike(run(at)), False
        with pytest.raises(KeyboardInterrupt):
            dist.all_reduce(torch.ones(10))
        handle._run, handle.spins = run, spins
        assert len(handle._pending) == 1
        with pytest.raises(KeyboardInterrupt):
            handle.submit_group([(strike, None)])
    else:
        dist.all_reduce(torch.ones(10))
    x = torch.ones(10)
    dist.all_reduce(x)
    assert (x == ranks).all()
    dist.destroy_process_group()


def missing(rank, ranks, place):
    start(rank, ranks, place)
    hocket.torch.monitored_barrier(timeout=timedelta(seconds=10))
    short = timedelta(seconds=0.5)
    if rank == 0:
        with pytest.raises(RuntimeError, match="Ranks 1, 2 failed to pass monitoredBarrier in 500 ms"):
            hocket.torch.monitored_barrier(timeout=short, wait_all_ranks=True)
    elif rank == 3:
        with pytest.raises(RuntimeError, match="from rank 0 in 20000 ms. Ranks 1, 2 failed"):  # by rank 0's word, long before its own limit
            hocket.torch.monitored_barrier(wait_all_ranks=True)
    dist.barrier()
    if rank in (1, 2):
        with pytest.raises(RuntimeError, match="Ranks 1, 2 failed"):  # too late
            hocket.torch.monitored_barrier()
        with pytest.raises(RuntimeError, match="in 500 ms. Ranks 0, 3 failed"):  # without rank 0 they find out by themselves
            hocket.torch.monitored_barrier(timeout=short)
    dist.barrier()  # nothing is broken
    dist.destroy_process_group()


def interrupted(rank, ranks, place):
    start(rank, ranks, place)
    x = torch.full((4,), float(rank))
    if rank == 0:
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            dist.all_reduce(x)
        say(place)
    else:
        wait_until(place)
        dist.all_reduce(x)
    dist.barrier()
    assert (x == 1).all()
    dist.destroy_process_group()


def forked(rank, ranks, place):
    start(rank, ranks, place)
    dist.all_reduce(torch.ones(1), async_op=True).get_future().wait()
    child = os.fork()
    if child == 0:
        try:
            dist.all_reduce(torch.ones(1))
        except hocket.Forked:
            dist.destroy_process_group()
            os._exit(7)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    dist.barrier()
    dist.destroy_process_group()


def mixed(rank, ranks, place):
    start(rank, ranks, place, name="cpu:hocket,cuda:gloo")
    cpu = dist.group.WORLD._get_backend(torch.device("cpu"))
    beside = hocket.torch._group._Beside
    assert isinstance(cpu, beside if beside is not None else hocket.torch._group.ProcessGroup)
    x = torch.ones(5)
    dist.all_reduce(x)
    work = dist.all_reduce(x, async_op=True)
    assert work.wait() and (x == ranks**2).all() and (work.get_future().wait()[0] == ranks**2).all()
    dist.all_reduce(x, group=dist.new_group(list(range(ranks))))
    assert (x == ranks**3).all() and len(hocket.torch.empty(9999)) == 9999
    hocket.torch.monitored_barrier()
    dist.destroy_process_group()


@pytest.mark.parametrize("body, ranks", [(works, 2), (works, 3), (limit, 2), (mismatch, 2), (ddp_fails, 2), (abort, 2), (missing, 4),
                                         (interrupted, 2), (at_its_end, 2),
                                         (at_its_beginning, 2), (forked, 2), (mixed, 2)])
def test(body, ranks, tmp_path):
    run(ranks, tmp_path, body)


def test_dead_rank(tmp_path):
    run(3, tmp_path, dead, lost=(1,))


def profiled(rank, ranks, place):
    start(rank, ranks, place)
    with torch.autograd.profiler.profile(record_shapes=True) as p:
        dist.all_reduce(torch.ones(3))
        dist.broadcast(torch.ones(2, 3), 0, async_op=True).wait()
        w = dist.all_reduce(torch.ones(4), async_op=True)
        assert w.get_future().wait()[0][0] == ranks
        dist.all_gather([torch.empty(r + 1) for r in range(ranks)], torch.ones(rank + 1))
        dist.all_gather_object([None] * ranks, rank)
        if rank == 0:
            dist.send(torch.ones(5), 1)
        elif rank == 1:
            dist.recv(torch.ones(5))
        w.wait()
    seen = [(e.name, e.input_shapes, e.is_async) for e in p.function_events if e.name.startswith("hocket:")]
    assert all(is_async for _, _, is_async in seen), seen
    shapes = [(name, shape) for name, shape, _ in seen]
    for expected in (("all_reduce", [[3]]), ("broadcast", [[2, 3]]), ("all_reduce", [[4]]), ("all_gather", [[rank + 1]])):
        assert ("hocket:" + expected[0], expected[1]) in shapes
    assert rank > 1 or ("hocket:send" if rank == 0 else "hocket:recvAnySource", [[5]]) in shapes
    # Operations that outlast the profiler, and one that ends badly under it.
    with torch.autograd.profiler.profile():
        late = [dist.irecv(torch.zeros(1), (rank - 1) % ranks, tag=k) for k in range(20)]
    with torch.autograd.profiler.profile():
        for k in range(20):
            dist.send(torch.ones(1), (rank + 1) % ranks, tag=k)
        for w in late:
            w.wait()
        hocket.torch.monitored_barrier()
        with pytest.raises(hocket.Aborted):
            w = dist.irecv(torch.zeros(1), (rank - 1) % ranks)
            if rank == 0:
                dist.group.WORLD.abort()
            w.wait()
    dist.destroy_process_group()


def test_profiler(tmp_path):
    run(3, tmp_path, profiled)


def over_tcp(rank, ranks, place):
    torch.set_num_threads(1)
    hocket.torch.set_default()
    dist.init_process_group(init_method=f"file://{place}", rank=rank, world_size=ranks, pg_options=hocket.torch.Options(transport="tcp"))
    x = torch.full((1000,), float(rank + 1))
    dist.all_reduce(x)
    assert (x == ranks * (ranks + 1) / 2).all()
    pair = dist.new_group([0, 1])
    if rank < 2:
        dist.all_reduce(x, group=pair)
        assert x[0] == ranks * (ranks + 1)
    dist.destroy_process_group()


def test_tcp(tmp_path):
    run(3, tmp_path, over_tcp)
