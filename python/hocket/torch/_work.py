# SPDX-License-Identifier: Apache-2.0
"""Works: what a collective returns to torch, and the threads that complete their futures.

A Work is a subclass of torch's own, so that errors come out of wait() with their type through C++ as well. A future is made on demand; its
base is completed with nothing, and a continuation returns the result or raises, which is the one way to put a real error into a future.
A thread completes each future, asleep in the library until then, never the one that moves data: a continuation may wait for another
operation (PowerSGD's does).
"""

from __future__ import annotations

import os
import sys
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from queue import SimpleQueue
from typing import Any

import torch
from torch._C._distributed_c10d import Work as _Base
from torch.futures import Future

from .._handle import Request

_ZERO = timedelta(0)
# Before 2.7 C++ does not keep a Python Work alive that it was given, so the latest are kept, the results of a few only.
_OLD = tuple(int(v) for v in torch.__version__.split(".")[:2]) < (2, 7)
_kept: deque[HocketWork] = deque(maxlen=65536)
_fresh: deque[HocketWork] = deque()


class _Finished:
    """Stands for the request of an operation that ended well before its call returned."""

    done = True

    def poll(self) -> bool:
        return True

    def wait(self, seconds: float | None = None) -> None:
        return None

    def failure(self) -> None:
        return None


_FINISHED = _Finished()


class HocketWork(_Base):
    """An operation of a group. May be waited for any number of times, from any thread; dropping it does not stop the operation."""

    _request: Any
    _result: list[torch.Tensor]
    _future: Future[Any] | None = None
    _source: Any = None

    def wait(self, timeout: timedelta | float | None = _ZERO) -> bool:
        """True when it is there; raises its failure. ``timeout`` 0: only the operation's own limit. Expiry harms nothing."""
        request = self._request
        if timeout is _ZERO or not timeout:
            request.wait()
        else:
            request.wait(timeout.total_seconds() if isinstance(timeout, timedelta) else float(timeout))
        return True

    def synchronize(self) -> None:
        self._request.wait()

    def is_completed(self) -> bool:
        return self._request.poll()

    def is_success(self) -> bool:
        return self._request.poll() and self._request.failure() is None

    def exception(self) -> BaseException | None:
        return self._request.failure()

    def result(self) -> list[torch.Tensor]:
        return self._result

    def source_rank(self) -> int:
        """Of a receive: whose message it was, as a rank of the group."""
        if self._source is None:
            raise RuntimeError("source_rank: this is not a receive")
        return self._source if isinstance(self._source, int) else self._source.value

    _source_rank = source_rank

    def get_future(self) -> Future[Any]:
        """Completed with the list of result tensors, or with the failure."""
        future = self._future
        if future is None:
            request, result = self._request, self._result
            base: Future[Any] = Future()
            if request.done and request.failure() is None:
                base.set_result(result)
                future = base
            else:
                future = base.then(lambda _: _outcome(request, result))
                if request.done:
                    base.set_result(None)
                else:
                    _completers.add(request, base)
            self._future = future
        return future


def _outcome(request: Request, result: list[torch.Tensor]) -> list[torch.Tensor]:
    failure = request.failure()
    if failure is not None:
        raise failure
    return result


def work(request: Any, result: list[torch.Tensor], source: Any = None) -> HocketWork:
    """A Work for a request; without one, of an operation that has ended well."""
    w = HocketWork()
    w._request = request if request is not None else _FINISHED
    w._result = result
    if source is not None:
        w._source = source
    if _OLD:
        _keep(w)
    return w


def _keep(w: HocketWork) -> None:
    _fresh.append(w)
    if len(_fresh) > 16:
        old = _fresh.popleft()
        if not old._request.done:
            _fresh.append(old)
        else:
            if sys.getrefcount(old) == 2:  # ours and getrefcount's: C++ at most may wait for it still
                old._result = []
            _kept.append(old)


DONE = work(None, [])  # for calls that ended before they returned, whose caller wants no result


class _Completers:
    """Threads that complete futures: one for each that is open, as far as LIMIT goes; they stay for the next ones."""

    LIMIT = 64

    def __init__(self) -> None:
        self._queue: SimpleQueue[tuple[Request, Future[Any]] | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._open = 0  # futures that wait for completion

    def add(self, request: Request, base: Future[Any]) -> None:
        """Completes ``base`` with None once the request is finished."""
        with self._lock:
            self._open += 1
            if self._open > len(self._threads) and len(self._threads) < self.LIMIT:
                thread = threading.Thread(target=self._body, name="hocket-futures", daemon=True)
                self._threads.append(thread)
                thread.start()
        self._queue.put((request, base))

    def _body(self) -> None:
        while True:
            item = self._queue.get()
            if item is None:
                return
            request, base = item
            del item
            request.rest()
            try:
                base.set_result(None)
            except RuntimeError:
                pass  # a continuation raised: that is in its own future
            finally:
                with self._lock:
                    self._open -= 1
            del request, base

    def stop(self, seconds: float) -> None:
        """Ends the threads, those that are idle at once; the groups are to be shut down before."""
        with self._lock:
            threads, self._threads = self._threads, []
        for _ in threads:
            self._queue.put(None)
        for thread in threads:
            thread.join(seconds)


_completers = _Completers()


# ---- Under a profiler

@contextmanager
def event(title: str, inputs: list[torch.Tensor]) -> Iterator[None]:
    """What is done inside is an asynchronous event, which a profiler knows by that it ends in another thread.

    It never outlasts the call: an event that ends when its profiler is gone would write where that was.
    """
    record = torch.autograd._record_function_with_args_enter(title, *inputs)
    base: Future[Any] = Future()
    torch.ops.profiler._call_end_callbacks_on_jit_fut._RecordFunction(record, base)
    try:
        yield
    finally:
        ender = threading.Thread(target=base.set_result, args=(None,), name="hocket-profiled")
        ender.start()
        ender.join()


def _after_fork() -> None:
    """The threads are the parent's."""
    global _completers
    _completers = _Completers()


os.register_at_fork(after_in_child=_after_fork)


def stop(seconds: float = 2.0) -> None:
    """Ends the threads that complete futures."""
    _completers.stop(seconds)

