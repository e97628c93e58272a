# SPDX-License-Identifier: Apache-2.0
"""One hk_comm and its unfinished operations: what Comm and the torch backend both stand on.

Every operation is issued with a request, without the GIL being given up, and then waited for: first for the moment that a message of a
rank that is there takes, then in slices of 200 ms, without the GIL, so that Ctrl-C works. Until it is finished somebody must keep its
buffers: the request does, and for requests that nobody keeps, the handle.

Lifetimes: a request points into its communicator, so destroy() finishes all requests first. A call that is being made has a frame, which it gives
back or to a request; destroy() lets no call begin any more and waits until no frame is out. In a child of fork() nothing is freed and every call
raises Forked.
"""

from __future__ import annotations

import ctypes
import os
import struct
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from . import _errors
from ._library import WAIT_EXPIRED, Frame, Library, library

SLICE_US = 200_000
_UNUSED = ctypes.c_int()
_UNUSED_AT = ctypes.addressof(_UNUSED)


class Handle:
    """A communicator of the library. ``at`` is its address, 0 once it is destroyed; no call begins unless it is ``open``. May be used from several
    threads.
    """

    __slots__ = ("at", "open", "rank", "ranks", "errors", "pid", "spins", "lib", "_run", "_wait_now", "_wait_free", "_frames", "_all_frames",
                 "_pending", "_lock", "__weakref__")

    def __init__(self, at: int, errors: dict[int, type[_errors.Error]] = _errors.BY_STATUS) -> None:
        """Takes over the hk_comm at address ``at``. ``errors``: status -> class to raise."""
        self.lib: Library = library()
        self.at, self.open, self.errors, self.pid = at, True, errors, os.getpid()
        self.rank: int = self.lib.hold.hk_comm_rank(at)
        self.ranks: int = self.lib.hold.hk_comm_ranks(at)
        self.spins = self.ranks <= len(os.sched_getaffinity(0))  # else a moment is a time slice of somebody's: not with the GIL
        self._run, self._wait_now, self._wait_free = self.lib.hold.hk_run, self.lib.hold.hk_wait_for, self.lib.free.hk_wait_for
        self._frames: list[Frame] = []  # free ones, of
        self._all_frames: list[Frame] = []  # those that no request has
        self._pending: deque[Request] = deque()
        self._lock = threading.Lock()

    def error(self, status: int, at: int | None = 0) -> _errors.Error:
        """The exception for a failed call on this communicator."""
        text = self.lib.last_error(self.at or None) if at == 0 else self.lib.last_error(at)
        return self.errors.get(status, _errors.Error)(text or self.lib.last_error())

    def gone(self) -> _errors.Error:
        """The exception for a call after destroy()."""
        return self.errors[_errors.Invalid.status](f"rank {self.rank}: this communicator has been destroyed")

    def call(self, function: Any, *arguments: object, options: int | None = None, keep: object = None) -> None:
        """Runs one operation to its end: ``function(*arguments, comm, options, request)`` of the ``hold`` face, by hk_run if that can.

        ``keep`` is held on to if the wait is interrupted, since the operation then goes on. Raises Error.
        """
        try:
            frame = self._frames.pop()
        except IndexError:
            frame = self._new_frame()
        try:
            if not self.open:
                raise self.gone()
            record = function.record
            if record is not None:
                pack, code = record
                pack(frame.bytes, Frame.ARGUMENTS, *arguments, code, self.spins, self.at, options or 0)
                status = self._run(frame.at)
            else:
                status = function(*arguments, self.at, options, frame.place)
                if not status:
                    status = self._wait_now(frame.place, 0) if self.spins else WAIT_EXPIRED
            if status == WAIT_EXPIRED:  # a request is what destroy() in another thread finds
                self.adopt(frame, (keep, arguments)).wait()
                return
        except struct.error as e:
            self._drop(frame)
            raise self.errors[_errors.Invalid.status](f"rank {self.rank}: {function.__name__.removeprefix('hk_')}: an argument: {e}") from None
        except BaseException:
            self._interrupted(frame, (keep, arguments))
            raise
        self._frames.append(frame)
        if status:
            raise self.error(status)

    def _new_frame(self) -> Frame:
        frame = Frame()
        self._all_frames.append(frame)
        return frame

    def _drop(self, frame: Frame) -> None:
        """A request has it, or nobody needs it."""
        try:
            self._all_frames.remove(frame)
        except ValueError:
            pass  # done already

    def _interrupted(self, frame: Frame, keep: object) -> None:
        """After Ctrl-C or a failure: what was issued goes on and owns its buffers."""
        if frame.slot.value and not any(request._frame is frame for request in list(self._pending)):
            self.adopt(frame, keep)
        self._drop(frame)

    def submit(self, function: Callable[..., int], *arguments: object, options: int | None = None, keep: object = None,
               post: Callable[[], None] | None = None) -> Request:
        """Issues one operation and returns at once. ``keep`` is held on to until it is finished; ``post`` runs once when it has
        succeeded, before any wait returns. Raises Error if it could not be issued.
        """
        frame = self._new_frame()
        try:
            if not self.open:
                raise self.gone()
            status = function(*arguments, self.at, options, frame.place)
            if status:
                raise self.error(status)
            return self.adopt(frame, keep, post, function is self.lib.hold.hk_send)
        except BaseException:
            self._interrupted(frame, keep)
            raise

    def submit_group(self, calls: list[tuple[Any, ...]], keep: object = None, post: Callable[[], None] | None = None) -> Request:
        """Issues several operations that start together, behind one request. Each is (function, *arguments, options).

        Raises Error; those before the wrong one are then under way, as calls that were made.
        """
        hold = self.lib.hold
        failed: BaseException | None = None
        frame = self._new_frame()
        if not self.open:
            self._drop(frame)
            raise self.gone()
        try:
            status = hold.hk_group_start(self.at)
            if status:
                raise self.error(status)
            for function, *arguments, options in calls:
                status = function(*arguments, self.at, options, None)
                if status:
                    raise self.error(status)
        except BaseException as e:  # Ctrl-C too: a group left open would take in all that comes later
            failed = e
        try:
            status = hold.hk_group_end(self.at, frame.place)
            if status:
                raise failed or self.error(status)
            request = self.adopt(frame, keep, post, any(call[0] is hold.hk_send for call in calls))
        except BaseException:
            self._interrupted(frame, keep)
            raise
        if failed:
            raise failed
        return request

    def adopt(self, frame: Frame, keep: object, post: Callable[[], None] | None = None, sends: bool = False) -> Request:
        """A request for what was issued into ``frame``; kept here as long as it is unfinished. ``sends``: a message to somebody."""
        request = Request(self, frame, keep, post, sends)
        pending = self._pending
        pending.append(request)
        self._drop(frame)
        if len(pending) > 1:
            self._sweep()
        return request

    def _sweep(self) -> None:
        """Drops finished requests: those at the front, or everywhere once there are many."""
        pending = self._pending
        try:
            while pending and pending[0].poll():
                pending.popleft()
            if len(pending) > 256:
                for request in [r for r in pending if r.poll()]:
                    pending.remove(request)
        except (IndexError, ValueError, RuntimeError):
            pass  # another thread swept meanwhile

    def abort(self) -> None:
        """Ends every pending and later operation on all ranks with Aborted. From any thread; never blocks."""
        if self.at:
            self.lib.hold.hk_comm_abort(self.at)

    def finish(self, seconds: float, sends: float = 0.0) -> bool:
        """Waits up to ``seconds`` for all unfinished requests, first up to ``sends`` for those that send; their failures are left to those
        who hold them. True: none is left.
        """
        begin, pending = time.monotonic(), list(self._pending)
        for request in [r for r in pending if r.sends] + pending:
            limit = max(seconds, sends) if request.sends else seconds
            if not request.outlast(max(0.0, begin + limit - time.monotonic())):
                return False
        self._sweep()
        return True

    def destroy(self, seconds: float, sends: float = 0.0, last: Callable[[], None] | None = None) -> None:
        """Waits like finish() for unfinished operations, aborts those that are left, runs ``last`` and frees. Idempotent.

        Any state is accepted. Other threads that wait for operations get their ends.
        """
        with self._lock:
            if not self.at or not self._finish_or_abort(seconds, sends):
                return
            self.open = False
            if not self._frames_back() or not self._finish_or_abort(seconds, sends):
                return
            if last is not None:
                last()
            at, self.at = self.at, 0
            _aside(lambda: self.lib.free.hk_comm_destroy(at))

    def _finish_or_abort(self, seconds: float, sends: float) -> bool:
        """False: not even then, as in a child of fork, or because something else waits on it: better leaked than freed under it."""
        if self.finish(seconds, sends):
            return True
        self.abort()
        return self.finish(5.0)

    def _frames_back(self) -> bool:
        """Waits for calls that have begun. Each needs nothing but its turn with the interpreter to end or to become a request."""
        end = time.monotonic() + 5.0
        while len(self._frames) < len(self._all_frames) and time.monotonic() < end:
            time.sleep(0)
        return len(self._frames) >= len(self._all_frames)


def _aside(call: Callable[[], object]) -> None:
    """Runs what may block for long, as long as a peer does not take what was sent, in a thread, so that Ctrl-C works meanwhile."""
    thread = threading.Thread(target=call, name="hocket-leave", daemon=True)
    try:
        thread.start()
    except RuntimeError:  # late in the end of an interpreter there are no more threads
        call()
        return
    while thread.is_alive():
        thread.join(0.2)


class Request:
    """An operation under way. Any thread may wait for it, any number of times; one waits in the library, the others for that one."""

    __slots__ = ("_handle", "_frame", "_keep", "_post", "_lock", "_failure", "_status", "sends", "done")

    def __init__(self, handle: Handle, frame: Frame, keep: object, post: Callable[[], None] | None = None, sends: bool = False) -> None:
        self._handle, self._frame, self._keep, self._post, self.sends = handle, frame, keep, post, sends
        self._lock = threading.Lock()
        self._failure: BaseException | None = None
        self._status = [0]  # of the latest call
        self.done = False  # finished, and post has run

    def _ask(self, call: Callable[..., int], argument: int) -> int:
        """Calls the library about it; the lock is held. The last status is told once, so the call and the keeping of its result are one
        step of the interpreter: Ctrl-C comes before or after.
        """
        self._status[:] = map(call, (self._frame.place,), (argument,))
        return self._status[0]

    def _settle(self) -> None:
        """The library has given the request back; the lock is held. After Ctrl-C in here it is done again."""
        if self._status[0]:
            self._failure = self._handle.error(self._status[0])
        elif self._post:
            try:
                self._post()
            except Exception as e:  # told to whoever waits
                self._failure = e
        self.done = True
        self._keep = self._post = None

    def poll(self) -> bool:
        """Is it finished? Moves things on, never waits, raises nothing of the operation's."""
        if self.done:
            return True
        held: list[bool] = [False]
        try:
            held[:] = map(self._lock.acquire, (False,))  # one step, as in _ask
            if held[0] and not self.done:
                if self._frame.slot.value is not None:
                    self._ask(self._handle.lib.hold.hk_test, _UNUSED_AT)
                if self._frame.slot.value is None:
                    self._settle()
        finally:
            if held[0]:
                self._lock.release()
        return self.done

    def outlast(self, seconds: float | None) -> bool:
        """Waits until it is finished, or for ``seconds``. True: finished."""
        if self.done:
            return True
        end = None if seconds is None else time.monotonic() + seconds
        held: list[bool] = [False]
        try:
            held[:] = map(self._lock.acquire, (True,), (-1 if seconds is None else max(0.0, seconds),))
            if held[0]:
                self._outlast(end)
        finally:
            if held[0]:
                self._lock.release()
        return self.done

    def _outlast(self, end: float | None) -> None:
        """The lock is held."""
        handle, status = self._handle, WAIT_EXPIRED
        if handle.spins and self._frame.slot.value is not None:
            status = self._ask(handle._wait_now, 0)
        while not self.done:
            if self._frame.slot.value is None:
                self._settle()
                break
            left = SLICE_US if end is None else min(SLICE_US, int((end - time.monotonic()) * 1e6))
            if left <= 0 or status not in (0, WAIT_EXPIRED):
                break
            status = self._ask(handle._wait_free, left)

    def failure(self) -> BaseException | None:
        """Why it failed; None if it succeeded or is unfinished."""
        return self._failure

    def wait(self, seconds: float | None = None) -> None:
        """Waits for the end. Raises its failure; WaitExpired after ``seconds``, which leaves the operation as it is."""
        if not self.done and not self.outlast(seconds):
            handle = self._handle
            if os.getpid() != handle.pid:
                raise handle.errors[_errors.Forked.status](f"rank {handle.rank}: a request of the parent was used in a child of fork")
            raise handle.errors[WAIT_EXPIRED](f"rank {handle.rank}: the operation was not finished after {seconds:g} s; it goes on")
        if self._failure is not None:
            raise self._failure

    def rest(self) -> None:
        """Waits like outlast(None), asleep without the GIL: what moves is moved by the library's own thread, or by who waits otherwise."""
        lib, event = self._handle.lib, ctypes.c_void_p()
        with self._lock:
            # For a moment, as in call(): mostly that is all it takes, and spares three wake-ups.
            if self._handle.spins and self._frame.slot.value is not None:
                self._ask(self._handle._wait_free, 0)
            if self._frame.slot.value is not None:
                lib.hold.hk_request_event(self._frame.slot.value, ctypes.addressof(event))
        if event.value:
            lib.free.hk_event_wait(event.value, (1 << 64) - 1)
            lib.hold.hk_event_destroy(event.value)
        self.outlast(None)
