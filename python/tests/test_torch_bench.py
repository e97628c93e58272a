# SPDX-License-Identifier: Apache-2.0
"""python -m hocket.bench --train: works, and notices losses that differ."""

from __future__ import annotations

import argparse

import pytest
from ranks import run

torch = pytest.importorskip("torch")

from hocket import _bench_train, bench  # noqa: E402


def worker(rank, ranks, place, settings):
    return _bench_train.worker(argparse.Namespace(rank=rank, meet=place, **settings))


def test_train(tmp_path, capsys):
    kinds = [k for k in bench.TRAIN if not k.startswith("fsdp") or tuple(int(v) for v in torch.__version__.split(".")[:2]) >= (2, 8)]
    settings = {"n": 2, "train": kinds, "batch": 2, "steps": 2, "rounds": 1, "bucket_mb": 25, "against": "gloo"}
    found = run(2, tmp_path, worker, settings)[0]
    a = argparse.Namespace(**settings)
    assert set(bench.TRAIN) == set(_bench_train.KINDS)
    assert bench.report(found, a)
    lines = capsys.readouterr().out.splitlines()[1:]
    assert [line.split()[0] for line in lines] == kinds and all("ratio" in line for line in lines)
    found[0][1]["away"]["gloo"] = 1e-3
    assert not bench.report(found, a)
    found[0][1]["away"]["gloo"] = float("nan")
    assert not bench.report(found, a)
