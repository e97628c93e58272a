# SPDX-License-Identifier: Apache-2.0
"""How groups and processes end when something is left over, and what begins again after: destroy, exits, forks, Ctrl-C."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path

import pytest
from ranks import LIMIT_S, run, say, wait_until
from test_torch_life import start

torch = pytest.importorskip("torch")
dist = pytest.importorskip("torch.distributed")

import hocket  # noqa: E402
import hocket.torch  # noqa: E402


def pending(rank, ranks, place):
    """Destroyed with an all_reduce under way that a rank does not come to."""
    start(rank, ranks, place, LIMIT_S)
    if rank == 0:
        works = [dist.all_reduce(torch.ones(10), async_op=True), dist.irecv(torch.ones(1), 1)]
        begin = time.monotonic()
        dist.destroy_process_group()
        assert time.monotonic() - begin < 4
        for w in works:
            with pytest.raises(hocket.Aborted):
                w.wait()
            assert w.is_completed() and not w.is_success()
        say(place)
    else:
        wait_until(place)
        with pytest.raises(hocket.Broken):
            dist.all_reduce(torch.ones(10))
        dist.destroy_process_group()


def inside(rank, ranks, place):
    """Destroyed while another thread is in a call that has no Work, and that a rank does not come to."""
    start(rank, ranks, place, LIMIT_S)
    if rank == 0:
        raised = []

        def body():
            try:
                dist.all_reduce(torch.ones(10))
            except Exception as e:
                raised.append(e)

        thread = threading.Thread(target=body)
        thread.start()
        while not hocket.torch._memory.of(None, "a test")._handle._pending:
            time.sleep(0.001)
        begin = time.monotonic()
        dist.destroy_process_group()
        assert time.monotonic() - begin < 4
        thread.join(LIMIT_S)
        assert isinstance(raised[0], hocket.Aborted)
        say(place)
    else:
        wait_until(place)


def sent(rank, ranks, place):
    """A message too large for what lies between ranks, not waited for, is there for who comes after the sender's group has begun to end."""
    start(rank, ranks, place, LIMIT_S)
    if rank == 0:
        dist.isend(torch.arange(3e6), 1)
        threading.Timer(0.8, say, (place,)).start()  # in destroy by then, longer than it waits for what is not sent
    else:
        wait_until(place)
        x = torch.zeros(3000000)
        dist.recv(x, 0)
        assert torch.equal(x, torch.arange(3e6))
    dist.destroy_process_group()


def again(rank, ranks, place, port):
    """Many groups, one after another over one store: none gets what an earlier one left."""
    torch.set_num_threads(1)
    store = dist.TCPStore("127.0.0.1", port, ranks, rank == 0, timedelta(seconds=LIMIT_S))
    late = random.Random(rank)
    for k in range(100):
        time.sleep(late.random() * 0.01)  # ranks come in any order
        dist.init_process_group("hocket", store=dist.PrefixStore(str(k), store), rank=rank, world_size=ranks)
        x = torch.full((5,), float(10 * k + rank))
        dist.all_reduce(x)
        assert (x == 10 * k * ranks + sum(range(ranks))).all()
        dist.destroy_process_group()


def objects(rank, ranks, place):
    """Large ones; one that cannot be pickled is an error on its rank, and on the others as soon as that one ends its group."""
    start(rank, ranks, place, LIMIT_S)
    out = [None] * ranks
    dist.all_gather_object(out, {} if rank == 0 else os.urandom(1000) * 50000)
    assert out[0] == {} and all(len(o) == 50000000 for o in out[1:])
    begin = time.monotonic()
    if rank == 1:
        with pytest.raises(TypeError, match="pickle"):
            dist.all_gather_object(out, threading.Lock())
    else:
        with pytest.raises(hocket.Broken, match="rank 1"):
            dist.all_gather_object(out, {})
        assert time.monotonic() - begin < LIMIT_S / 2
    dist.destroy_process_group()


@pytest.mark.parametrize("body, ranks", [(pending, 2), (inside, 2), (sent, 2), (objects, 2)])
def test(body, ranks, tmp_path):
    run(ranks, tmp_path, body)


def test_again(tmp_path):
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    run(2, tmp_path, again, port)


# Real interpreters and real ends of them, forked from one that has imported torch. For each form two ranks; the parent prints exit codes.
FORMS = """
import gc, os, signal, sys, threading
from datetime import timedelta
import torch, torch.distributed as dist
import hocket.torch

place, forms = sys.argv[1], sys.argv[2:]

def part():
    gc.freeze()  # what children need not look through at their ends
    children = {}
    for form in forms:
        for rank in range(2):
            pid = os.fork()
            if not pid:
                return form, rank
            children[pid] = form, rank
    for _ in range(len(children)):
        pid, status = os.wait()
        print(*children[pid], os.waitstatus_to_exitcode(status), flush=True)
    sys.exit()

form, rank = part()
os.dup2(os.open(f"{place}/{form}.{rank}.err", os.O_WRONLY | os.O_CREAT), 2)
torch.set_num_threads(1)
dist.init_process_group("hocket", init_method=f"file://{place}/{form}", rank=rank, world_size=2, timeout=timedelta(seconds=60))
x = torch.ones(4)
dist.all_reduce(x)
if form == "model":
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
    model(torch.ones(1, 4)).sum().backward()
    dist.all_reduce(torch.ones(1), async_op=True).get_future().then(lambda f: None)
elif form == "exit":
    sys.exit(3)
elif form == "_exit":
    os._exit(4)
elif form == "thread":  # blocked for good in a receive, as a daemon; another under way
    inside = threading.Event()
    def body():
        inside.set()
        dist.recv(x, 1 - rank)
    threading.Thread(target=body, daemon=True).start()
    inside.wait()
    late = dist.irecv(x, 1 - rank, tag=1)
elif form == "fork":
    children = []
    for how in ("exit", "_exit", "exec", "crash"):
        pid = os.fork()
        if not pid:
            if how == "exit":
                sys.exit(0)
            if how == "exec":
                os.execv("/bin/true", ["true"])
            if how == "crash":
                signal.signal(signal.SIGSEGV, signal.SIG_DFL)
                os.kill(os.getpid(), signal.SIGSEGV)
            os._exit(0)
        children.append(pid)
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
    assert codes == [0, 0, 0, -signal.SIGSEGV], codes
    for k in range(100):
        x = torch.full((1000 * (k % 2) + 1,), float(rank + k))
        dist.all_reduce(x)
        assert (x == 2 * k + 1).all()
    raise KeyError("by the program")
"""
CODES = {"model": 0, "exit": 3, "_exit": 4, "thread": 0, "fork": 1}


def test_exits(tmp_path):
    """Without destroy: exit codes stay, nothing crashes, and nobody says anything but what the program or its threads raised."""
    done = subprocess.run([sys.executable, "-c", FORMS, str(tmp_path), *CODES], capture_output=True, text=True, timeout=90)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == sorted(f"{form} {rank} {code}" for form, code in CODES.items() for rank in range(2))
    for form in CODES:
        for rank in range(2):
            said = (tmp_path / f"{form}.{rank}.err").read_text()
            if form == "fork":
                assert said.count("Traceback") == 1 and said.rstrip().endswith("KeyError: 'by the program'"), said
            elif form == "thread":  # may come to raise in its thread before the end
                assert not any(word in said for word in ("terminate", "Fatal", "Segmentation", "core dumped")), said
            else:
                assert not said, (form, rank, said)


LOOP = """
import os, subprocess, sys
import numpy, hocket
children = [subprocess.Popen(["sleep", "1000"]) for _ in range(2)]
comm = hocket.init()
comm.barrier()
with open(f"{sys.argv[1]}/{comm.rank}.part", "w") as f:
    print(os.getpid(), os.getppid(), *(c.pid for c in children), file=f)
os.rename(f.name, f"{sys.argv[1]}/{comm.rank}.pids")
comm.all_reduce(numpy.ones(10)) if comm.rank else children[0].wait()  # rank 0 never comes to it
"""


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM])
def test_stopped_launcher(tmp_path, sign):
    """`hocket run`: one Ctrl-C ends ranks that are in an operation, the shells around them, and their children."""
    command = Path(os.environ.get("HOCKET_LIBRARY", "")).parent / "bin" / "hocket"
    if not command.is_file():
        pytest.skip("no hocket command beside HOCKET_LIBRARY")
    (tmp_path / "loop.py").write_text(LOOP)
    launcher = subprocess.Popen([command, "run", "-n", "2", "--", "sh", "-c", f"{sys.executable} {tmp_path}/loop.py {tmp_path}; exit 0"],
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    pids, end = [tmp_path / f"{r}.pids" for r in range(2)], time.monotonic() + LIMIT_S
    while not all(p.exists() for p in pids):
        assert launcher.poll() is None and time.monotonic() < end
        time.sleep(0.01)
    everyone = [int(word) for p in pids for word in p.read_text().split()]
    assert len(everyone) == 8 and all(alive(pid) for pid in everyone)
    launcher.send_signal(sign)
    said, _ = launcher.communicate(timeout=LIMIT_S)
    assert launcher.returncode == 128 + sign, said
    while any(alive(pid) for pid in everyone):  # those whose parents are gone end on their own time
        assert time.monotonic() < end, said
        time.sleep(0.01)
