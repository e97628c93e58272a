# SPDX-License-Identifier: Apache-2.0
"""The examples with torch: each gives the losses of one process, and says so by its exit code."""

from __future__ import annotations

import argparse
import importlib
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from ranks import run

torch = pytest.importorskip("torch")
dist = pytest.importorskip("torch.distributed")

from hocket._library import find  # noqa: E402

EXAMPLES = Path(__file__).parents[2] / "examples"
SMALL = ["--epochs", "1", "--hidden", "64", "--check"]
ALL = {
    "ddp": ("torch_ddp", SMALL),
    "zero": ("torch_ddp", [*SMALL, "--zero"]),
    "uneven shares": ("torch_ddp", [*SMALL, "--batch", "101"]),
    "fsdp": ("torch_fsdp", SMALL),
    "tensor parallel": ("torch_tensor_parallel", SMALL),
    "pipeline": ("torch_pipeline", SMALL),
    "objects": ("torch_objects", ["--check"]),
}


def imported(name):
    if str(EXAMPLES) not in sys.path:
        sys.path.insert(0, str(EXAMPLES))
    return importlib.import_module(name)


def as_program(rank, ranks, place, module, arguments, port):
    """What a launcher would start: the exit code."""
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    sys.argv = [module.__name__, *arguments]
    return module.main()


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("name", ALL)
def test_losses(tmp_path, name, ranks):
    module, arguments = ALL[name]
    if module == "torch_fsdp" and tuple(int(v) for v in torch.__version__.split(".")[:2]) < (2, 8):
        pytest.skip("FSDP2 runs on the CPU from torch 2.8 on")
    assert run(ranks, tmp_path, as_program, imported(module), arguments, free_port()) == [0] * ranks


def checked(rank, ranks, place, wrong_by):
    """The exit code for losses that are wrong by so much in one step."""
    common = imported("torch_digits")
    a = argparse.Namespace(backend="hocket", epochs=2, batch=500, hidden=8, layers=1, check=True)
    dist.init_process_group("hocket", init_method=f"file://{place}", rank=rank, world_size=ranks)
    losses = torch.tensor(common.alone(a))
    losses[-1] += wrong_by
    return common.finish(a, losses, [0.0])


def test_check_notices(tmp_path):
    for wrong_by, code in ((0.0, 0), (1e-4, 1), (float("nan"), 1)):
        place = tmp_path / str(wrong_by)
        place.mkdir()
        assert run(2, place, checked, wrong_by) == [code, 0]


def test_under_launcher():
    """torch's default way to meet works in a job of `hocket run`."""
    command = next((p for p in (find().parent / "bin" / "hocket", find().parent.parent / "bin" / "hocket") if p.exists()), None)
    if command is None:
        pytest.skip("no hocket command beside the library")
    r = subprocess.run([command, "run", "-n", "2", "--", sys.executable, EXAMPLES / "torch_objects.py", "--check"], capture_output=True, text=True,
                       timeout=60)
    assert r.returncode == 0, r.stdout + r.stderr
