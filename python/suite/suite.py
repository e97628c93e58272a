# SPDX-License-Identifier: Apache-2.0
"""PyTorch's own tests of torch.distributed, as its wheel carries them, on hocket: what must pass is in expected.txt beside this file.

    python suite.py [--quick] [--ranks 3,4] [--backend own,as-gloo] [--only test_one,test_two]

Three ways to run them: `own`, hocket by its own name, for which many tests are left out since they ask for a backend by name; `as-gloo`,
where torch's class for gloo is hocket's group, so that what is for gloo runs on hocket; `gloo`, the real one, for comparison. Each way and
number of ranks is a process of its own, as the tests read both when they are imported, and forks the ranks of each test.

The last line is `N passed, N failed, N skipped`; what fails as the list knows it is among the failed. Exit code 1 if a test that is to pass
does not, another fails, or fewer pass than the list's `least`.
"""

from __future__ import annotations

import argparse
import importlib
import os
import subprocess
import sys
import tempfile
import time
import unittest
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

HERE = Path(__file__).parent
WAYS = ("own", "as-gloo", "gloo")
LIMIT_S = 100  # of one test


# ---- One way, one number of ranks: in a process of its own

def _impersonate() -> None:
    """The class that torch makes for gloo becomes hocket's. It says hocket where C++ asks for its name, as that casts what says gloo."""
    import torch.distributed as dist

    from hocket.torch import _group

    class AsGloo(_group.ProcessGroup):
        _title = "gloo"  # of events under a profiler

        def __init__(self, store: Any, rank: int, size: int, timeout: Any = None) -> None:
            o = SimpleNamespace(store=store, group_rank=rank, group_size=size, timeout=timeout, group_id="", global_ranks_in_group=[])
            super().__init__(o, _group._met(o, None), None)
            self._options_of_gloo = SimpleNamespace()

        @property
        def options(self) -> Any:  # torch writes to it
            return self._options_of_gloo

    dist.distributed_c10d.ProcessGroupGloo = AsGloo  # type: ignore[misc, assignment]


def _cases(way: str, ranks: int) -> type[unittest.TestCase]:
    """The class of all tests."""
    os.environ.update(BACKEND="hocket" if way == "own" else "gloo", WORLD_SIZE=str(ranks), INIT_METHOD="env://", OMP_NUM_THREADS="1",
                      DISTRIBUTED_TESTS_DEFAULT_TIMEOUT=str(LIMIT_S), GLOO_SOCKET_IFNAME="lo")
    import torch._dynamo  # noqa: F401  # what DDP imports when it is first made: else each rank would for itself
    from torch.multiprocessing import get_context
    from torch.testing._internal import common_distributed

    if way != "gloo":
        import hocket.torch  # noqa: F401
    if way == "own":
        for feature in ("ddp", "subgroup", "plugin"):
            common_distributed.DistTestCases.backend_feature[feature].add("hocket")
    if way == "as-gloo":
        _impersonate()
    tests = importlib.import_module("torch.testing._internal.distributed.distributed_test")

    class Suite(tests.TestDistBackend, tests.DistributedTest._DistTestBase):  # type: ignore[misc, name-defined]
        def setUp(self) -> None:
            super().setUp()
            self._start_processes(get_context("fork").Process)

    return Suite


class _Told(unittest.TestResult):
    """One line for each test on ``out``: what became of it, its name, seconds, why."""

    def __init__(self, out: Any) -> None:
        super().__init__()
        self._out, self._begin = out, 0.0

    def startTest(self, test: unittest.TestCase) -> None:
        super().startTest(test)
        self._begin = time.monotonic()

    def _say(self, what: str, test: Any, why: str = "") -> None:
        seconds = f"{time.monotonic() - self._begin:.1f}"
        self._out.write("\t".join((what, test.id().split(".")[-1], seconds, why.replace("\n", "\\n"))) + "\n")
        self._out.flush()

    def addSuccess(self, test: Any) -> None:
        self._say("pass", test)

    def addSkip(self, test: Any, reason: str) -> None:
        self._say("skip", test, reason)

    def addFailure(self, test: Any, err: Any) -> None:
        self._say("fail", test, str(err[1]))

    addError = addFailure


def _run_here(way: str, ranks: int, names: list[str], out: Any) -> None:
    cases = _cases(way, ranks)
    have = unittest.defaultTestLoader.getTestCaseNames(cases)
    for name in names:
        if name not in have:
            out.write(f"fail\t{name}\t0\tthere is no such test\n")
    unittest.TestSuite(cases(n) for n in have if not names or n in names).run(_Told(out))


# ---- All of them, against the list

class List:
    """expected.txt: a legend, how many must pass at least, and for each test a letter for each way and number of ranks."""

    COLUMNS = (("own", 3), ("own", 4), ("as-gloo", 3), ("as-gloo", 4))

    def __init__(self, path: Path) -> None:
        self.why: dict[str, str] = {}                    # letter -> reason
        self.least: dict[tuple[str, int], int] = {}
        self.letters: dict[str, str] = {}                # test -> one letter for each column
        self.notes: dict[str, str] = {}                  # test -> why it fails
        self.quick: list[str] = []
        for line in path.read_text().splitlines():
            word, *rest = line.split(None, 2)[:3] if line.strip() else ["#"]
            if word.startswith("#"):
                continue
            if word == "why":
                self.why[rest[0]] = rest[1]
            elif word == "least":
                self.least[rest[0], int(rest[1].split()[0])] = int(rest[1].split()[1])
            else:
                self.letters[word.rstrip("*")] = rest[0]
                if word.endswith("*"):
                    self.quick.append(word.rstrip("*"))
                if len(rest) > 1:
                    self.notes[word.rstrip("*")] = rest[1]

    def letter(self, test: str, way: str, ranks: int) -> str:
        """'.' to pass, '!' fails and the note tells why, another letter of the legend: left out; '?' not in the list."""
        if (way, ranks) not in self.COLUMNS or test not in self.letters:
            return "?"
        return self.letters[test][self.COLUMNS.index((way, ranks))]


def judged(told: list[list[str]], way: str, ranks: int, known: List, chosen: list[str]) -> tuple[Counter[str], bool]:
    """Of the tests ``chosen``, or if there are none of all: says what is not as listed. Returns how many passed, failed and were skipped,
    and whether all is as it must be.
    """
    count: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    good, seen = True, set()

    def say(text: str) -> None:
        print(f"{way}, {ranks} ranks: {text}", flush=True)

    for what, test, seconds, why in told:
        letter = known.letter(test, way, ranks)
        seen.add(test)
        count[what] += 1
        if what == "skip":
            reasons[known.why.get(letter, why)] += 1
        if what == "fail":
            say(f"{test} fails{', as known: ' + known.notes[test] if letter == '!' else ': ' + why.encode().decode('unicode_escape')}")
            good &= letter == "!"
        if letter == "." and what == "skip":
            good = False
            say(f"{test} is to pass and has been skipped: {why}")
        elif letter not in ".?" and what == "pass":
            say(f"{test} passes, which the list does not know")
    for test in sorted(t for t in set(chosen or known.letters) - seen if known.letter(t, way, ranks) == "."):
        good = False
        say(f"{test} is to pass and has not been run")
    least = 0 if chosen else known.least.get((way, ranks), 0)
    if count["pass"] < least:
        good = False
        say(f"{count['pass']} passed, at least {least} must")
    say(f"{count['pass']} passed{f' (at least {least} must)' if least else ''}, {count['fail']} failed, {count['skip']} skipped")
    if reasons:
        say("skipped: " + ", ".join(f"{n} ({why})" for why, n in reasons.most_common()))
    return count, good


def in_process(way: str, ranks: int, tests: list[str], log: Path) -> list[list[str]]:
    """The lines of _Told of a process of its own."""
    with tempfile.TemporaryDirectory() as place, log.open("w") as noise:  # the tests leave files behind
        told = Path(place) / "told"
        subprocess.run([sys.executable, __file__, "--here", told, "--backend", way, "--ranks", str(ranks), "--only", ",".join(tests)],
                       stdout=noise, stderr=noise, stdin=subprocess.DEVNULL, env={**os.environ, "TMPDIR": place}, check=False)
        return [line.split("\t") for line in told.read_text().splitlines()] if told.exists() else []


def main() -> int:
    p = argparse.ArgumentParser(description="PyTorch's own tests of torch.distributed on hocket")
    p.add_argument("--backend", default="own,as-gloo", help=f"of {', '.join(WAYS)}")
    p.add_argument("--ranks", default=None, help="numbers of ranks (3,4; with --quick 3)")
    p.add_argument("--quick", action="store_true", help="the tests with a star in the list")
    p.add_argument("--only", default="", help="names of tests")
    p.add_argument("--log", type=Path, default=Path(tempfile.gettempdir()), help="folder for what the tests say")
    p.add_argument("--here", help=argparse.SUPPRESS)
    a = p.parse_args()
    tests = [t for t in a.only.split(",") if t]
    if a.here:
        with open(a.here, "w") as out:
            _run_here(a.backend, int(a.ranks), tests, out)
        return 0
    known = List(HERE / "expected.txt")
    runs = [(way, int(n)) for n in (a.ranks or ("3" if a.quick else "3,4")).split(",") for way in a.backend.split(",")]
    a.log.mkdir(parents=True, exist_ok=True)
    total: Counter[str] = Counter()
    good = True

    def chosen(run: tuple[str, int]) -> list[str]:
        return tests or ([t for t in known.quick if known.letter(t, *run) in ".?"] if a.quick else [])

    def go(run: tuple[str, int]) -> list[list[str]]:
        return in_process(*run, chosen(run), a.log / f"torch-suite-{run[0]}-{run[1]}.log")

    with ThreadPoolExecutor(2) as pool:  # the tests mostly sleep
        for run, told in zip(runs, pool.map(go, runs)):
            count, as_listed = judged(told, *run, known, chosen(run))
            total += count
            good &= as_listed
    print(f"{total['pass']} passed, {total['fail']} failed, {total['skip']} skipped")
    return 0 if good and total["pass"] else 1


if __name__ == "__main__":
    sys.exit(main())
