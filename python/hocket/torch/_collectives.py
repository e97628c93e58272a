# SPDX-License-Identifier: Apache-2.0
"""What torch.distributed asks of a group, operation by operation, on a hocket communicator.

Each method checks its tensors, finds the memory, issues one operation of the library and returns a Work. ``opts.asyncOp`` False (torch
2.6 or later, when the caller does not want a Work) runs it to its end at once. Ranks are ranks of the group; T is a tensor, LT a list of
them, LLT a list of lists. Errors in the arguments are raised here and break nothing; failures come out of the Work, or of the call that
runs to its end.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from datetime import timedelta
from types import GeneratorType
from typing import Any

import torch
from torch import Tensor
from torch._C import _distributed_c10d as _c10d

from .._handle import Handle
from .._library import Options
from ._errors import Invalid
from ._tensors import MAX, NUMBERS, OPS, SUM, Post, alike, check, joined, movable, reduction, sizes, source, spread, target, writable
from ._work import DONE, HocketWork, event, work

LT = list[Tensor]
LLT = list[list[Tensor]]
ANY_SOURCE = -1
_U8 = 1
_AllreduceOptions = _c10d.AllreduceOptions
_SUM = _c10d.ReduceOp.SUM
_STRIDED = torch.strided
_profiled: Callable[[], bool] = torch.autograd._profiler_enabled  # type: ignore[attr-defined]
_PLAIN = {torchs: ours for torchs, ours in OPS.items() if torchs <= MAX}  # for all NUMBERS


def _us(limit: timedelta) -> int:
    return max(int(limit.total_seconds() * 1e6), 1)


def _block(caller: Any) -> Any:
    """The generator that torch's _coalescing_manager is, if it is the caller."""
    enter = caller.f_back if caller is not None else None
    generator = getattr(enter.f_locals.get("self"), "gen", None) if enter is not None else None
    return generator if isinstance(generator, GeneratorType) else None


class Collectives:
    """The operations. ``_begin`` must have been called. May be used from several threads."""

    _handle: Handle
    _title = "hocket"  # of events under a profiler

    def _begin(self, handle: Handle, timeout: timedelta | None) -> None:
        """``timeout``: limit of each operation where it is not the communicator's own."""
        self._handle = handle
        self._rank, self._size = handle.rank, handle.ranks
        self._count = 0
        self._limits: dict[int, Options] = {}
        self._tags: dict[tuple[int, int], Options] = {}
        self._standing_us = 0
        self._standing: int | None = None
        self._local = threading.local()
        self._buckets: Any = None  # _memory.Buckets where DDP's are to be registered
        self._collecting = 0  # threads between start_coalescing and end_coalescing
        hold = handle.lib.hold
        self._all_reduce = hold.hk_all_reduce
        if timeout is not None:
            self._set_limit(timeout)

    def _set_limit(self, timeout: timedelta) -> None:
        self._standing_us = _us(timeout)
        self._standing = self._limited(self._standing_us)

    def _limited(self, us: int) -> int:
        """The address of hk_options with that time limit and nothing else."""
        o = self._limits.get(us)
        if o is None:
            if len(self._limits) > 1000:
                self._limits = {self._standing_us: self._limits[self._standing_us]} if self._standing else {}
            o = self._limits[us] = Options(ctypes.sizeof(Options), us)
        return ctypes.addressof(o)

    def _options(self, opts: Any) -> int | None:
        """hk_options for a call, or None: those of the communicator."""
        limit = getattr(opts, "timeout", None)
        return self._standing if limit is None or limit.days < 0 else self._limited(_us(limit))

    def _go(self, opts: Any, function: Callable[..., int], call: tuple[Any, ...], result: LT, keep: Any = None, post: Post | None = None,
            options: int | None = -1, source: Any = None, inputs: LT | None = None, name: str = "") -> HocketWork:
        """Issues, or with asyncOp False runs, one operation. Under a profiler it is seen as hocket:all_reduce and so on, with the shapes of
        ``inputs`` (None: of ``result``).
        """
        if options == -1:
            options = self._options(opts)
        if not _profiled():
            return self._issue(opts, function, call, result, keep, post, options, source)
        name = name or function.__name__.removeprefix("hk_").removesuffix("_v")
        with event(f"{self._title}:{name}", result if inputs is None else inputs):
            return self._issue(opts, function, call, result, keep, post, options, source)

    def _issue(self, opts: Any, function: Callable[..., int], call: tuple[Any, ...], result: LT, keep: Any, post: Post | None,
               options: int | None, source: Any) -> HocketWork:
        self._count += 1
        collected = self._collected() if self._collecting else None
        if collected is not None:
            collected.append(((function, *call, options), (keep, result), post, result))
            return work(None, result, source)
        if getattr(opts, "asyncOp", True):
            return work(self._handle.submit(function, *call, options=options, keep=(keep, result), post=post), result, source)
        self._handle.call(function, *call, options=options, keep=(keep, result))
        if post is not None:
            post()
        return work(None, result, source)

    def _call(self, name: str) -> Callable[..., int]:
        return getattr(self._handle.lib.hold, name)

    # ---- Reductions

    def allreduce(self, tensors: LT | Tensor, opts: Any = None) -> HocketWork:
        """In place."""
        if type(tensors) is not list:
            tensors = [tensors] if isinstance(tensors, Tensor) else list(tensors)
        if opts is None:
            opts = _AllreduceOptions()
        t = tensors[0]
        code = NUMBERS.get(t.dtype)
        op = OPS[SUM] if opts.reduceOp == _SUM else _PLAIN.get(opts.reduceOp.op.value)
        if code is None or op is None or len(tensors) != 1 or not t.is_cpu or t.layout is not _STRIDED or not t.is_contiguous():
            return self._allreduce_any(tensors, opts)
        at = t.data_ptr()
        if self._collecting or getattr(opts, "asyncOp", True) or _profiled():
            if self._buckets is not None:
                self._buckets.see(t)
            return self._go(opts, self._all_reduce, (at, at, t.numel(), code, op), tensors)
        # The commonest call, as short as it can be: a small all_reduce is mostly interpreter.
        limit = opts.timeout
        self._count += 1
        self._handle.call(self._all_reduce, at, at, t.numel(), code, op, options=self._standing if limit.days < 0 else self._limited(_us(limit)),
                          keep=t)
        return DONE

    def _allreduce_any(self, tensors: LT, opts: Any) -> HocketWork:
        if len(tensors) != 1:
            return self.allreduce_coalesced(tensors, opts)
        t = tensors[0]
        if t.is_sparse:
            from ._sparse import all_reduce

            all_reduce(self, t, opts)
            return work(None, tensors)
        call, keep, post = self._reduced(t, opts, "all_reduce")
        return self._go(opts, self._all_reduce, call, tensors, keep, post)

    def _reduced(self, t: Tensor, opts: Any, what: str) -> tuple[tuple[Any, ...], Any, Post | None]:
        check(t, what)
        code, parts, op = reduction(opts.reduceOp, t, what)
        x, post = target(t, True, what)
        return (x.data_ptr(), x.data_ptr(), x.numel() * parts, code, op), x, post

    def allreduce_coalesced(self, tensors: LT, opts: Any = None) -> HocketWork:
        """Each in place, all at once."""
        opts = opts if opts is not None else _c10d.AllreduceCoalescedOptions()
        options = self._options(opts)
        calls, keep, posts = [], [], []
        for t in tensors:
            call, x, post = self._reduced(t, opts, "all_reduce")
            calls.append((self._all_reduce, *call, options))
            keep.append(x)
            posts.append(post)
        return self._together(opts, calls, keep, posts, tensors, tensors, "hk_all_reduce")

    def _together(self, opts: Any, calls: list[tuple[Any, ...]], keep: Any, posts: Sequence[Post | None], result: LT, inputs: LT,
                  name: str = "") -> HocketWork:
        """Several operations behind one Work. Without a ``name`` a profiler has seen each of them already."""
        some = [p for p in posts if p is not None]

        def after() -> None:
            for p in some:
                p()

        self._count += len(calls)
        collected = self._collected() if self._collecting else None
        if collected is not None:
            collected.extend((call, None, None, []) for call in calls[1:])
            collected.append((calls[0], (keep, result), after if some else None, result))
            return work(None, result)
        with event(f"{self._title}:{name.removeprefix('hk_')}", inputs) if name and _profiled() else nullcontext():
            request = self._handle.submit_group(calls, keep=(keep, result), post=after if some else None)
            if not getattr(opts, "asyncOp", True):
                request.wait()
        return work(request, result)

    def reduce(self, tensors: LT | Tensor, opts: Any = None) -> HocketWork:
        """In place on the root; the others' tensors stay as they are."""
        t = tensors if isinstance(tensors, Tensor) else tensors[0]
        opts = opts if opts is not None else _c10d.ReduceOptions()
        check(t, "reduce")
        writable(t, "reduce")  # on every rank alike: else the others would be left in it
        code, parts, op = reduction(opts.reduceOp, t, "reduce")
        root = opts.rootRank
        x, post = target(t, True, "reduce") if root == self._rank else (source(t), None)
        call = (x.data_ptr(), x.data_ptr() if root == self._rank else 0, x.numel() * parts, code, op, root)
        return self._go(opts, self._call("hk_reduce"), call, [t], x, post)

    def reduce_scatter(self, outs: LT, ins: LLT, opts: Any = None) -> HocketWork:
        """outs[0] becomes the reduction of ins[0][this rank]; the parts may differ in size."""
        opts = opts if opts is not None else _c10d.ReduceScatterOptions()
        parts, out = ins[0], outs[0]
        self._parts(parts, "reduce_scatter")
        alike([out, *parts], "reduce_scatter")
        counts = [t.numel() for t in parts]
        if out.numel() != counts[self._rank]:
            raise Invalid(f"rank {self._rank}: reduce_scatter: the output has {out.numel()} elements, this rank's part {counts[self._rank]}")
        code, of, op = reduction(opts.reduceOp, out, "reduce_scatter")
        at, held = joined(parts)
        y, post = target(out, False, "reduce_scatter")
        if len(set(counts)) == 1:
            return self._go(opts, self._call("hk_reduce_scatter"), (at, y.data_ptr(), counts[0] * of, code, op), outs, (held, y), post,
                            inputs=parts)
        array, place = sizes(counts, of)
        return self._go(opts, self._call("hk_reduce_scatter_v"), (at, y.data_ptr(), place, None, code, op), outs, (held, y, array), post,
                        inputs=parts)

    def reduce_scatter_single(self, out: Tensor, in_: Tensor, opts: Any = None) -> HocketWork:
        """out becomes chunk ``rank`` of the reduction of in_, both taken as flat."""
        opts = opts if opts is not None else _c10d.ReduceScatterOptions()
        call, keep, post = self._reduce_scattered(out, in_, opts)
        return self._go(opts, self._call("hk_reduce_scatter"), call, [out], keep, post, inputs=[in_])

    def _reduce_scattered(self, out: Tensor, in_: Tensor, opts: Any) -> tuple[tuple[Any, ...], Any, Post | None]:
        alike([out, in_], "reduce_scatter_tensor")
        self._whole(in_, out, "reduce_scatter_tensor", "input", "output")
        code, of, op = reduction(opts.reduceOp, out, "reduce_scatter_tensor")
        x = source(in_)
        y, post = target(out, False, "reduce_scatter_tensor")
        return (x.data_ptr(), y.data_ptr(), y.numel() * of, code, op), (x, y), post

    def reduce_scatter_single_coalesced(self, outs: LT, ins: LT, opts: Any = None) -> HocketWork:
        """Pairwise."""
        opts = opts if opts is not None else _c10d.ReduceScatterOptions()
        return self._pairs("hk_reduce_scatter", [self._reduce_scattered(o, i, opts) for o, i in zip(outs, ins)], outs, ins, opts)

    def _pairs(self, name: str, issued: list[tuple[tuple[Any, ...], Any, Post | None]], outs: LT, ins: LT, opts: Any) -> HocketWork:
        options, function = self._options(opts), self._call(name)
        if len(issued) == 1:
            call, keep, post = issued[0]
            return self._go(opts, function, call, outs, keep, post, inputs=ins)
        return self._together(opts, [(function, *call, options) for call, _, _ in issued], [k for _, k, _ in issued], [p for _, _, p in issued],
                              outs, ins, name)

    # ---- Movement

    def _parts(self, tensors: Sequence[Tensor], what: str) -> None:
        if len(tensors) != self._size:
            raise Invalid(f"rank {self._rank}: {what}: a list of {len(tensors)} tensors for {self._size} ranks")

    def _whole(self, whole: Tensor, part: Tensor, what: str, of_whole: str, of_part: str) -> None:
        if whole.numel() != part.numel() * self._size:
            raise Invalid(f"rank {self._rank}: {what}: the {of_whole} has {whole.numel()} elements, it needs {self._size} times the "
                          f"{part.numel()} of the {of_part}")

    def broadcast(self, tensors: LT | Tensor, opts: Any = None) -> HocketWork:
        """In place."""
        t = tensors if isinstance(tensors, Tensor) else tensors[0]
        root = 0
        if isinstance(opts, int):
            root, opts = opts, None
        elif opts is not None:
            root = opts.rootRank
        check(t, "broadcast")
        writable(t, "broadcast")
        code, parts = movable(t)
        x, post = (source(t), None) if root == self._rank else target(t, False, "broadcast")
        at = x.data_ptr()
        return self._go(opts, self._call("hk_broadcast"), (at, at, x.numel() * parts, code, root), [t], x, post)

    def allgather(self, outs: LLT, ins: LT, opts: Any = None) -> HocketWork:
        """outs[0][r] becomes rank r's ins[0]; sizes may differ between ranks."""
        into, t = outs[0], ins[0]
        self._parts(into, "all_gather")
        alike([t, *into], "all_gather")
        counts = [o.numel() for o in into]
        if t.numel() != counts[self._rank]:
            raise Invalid(f"rank {self._rank}: all_gather: the input has {t.numel()} elements, this rank's output {counts[self._rank]}")
        code, parts = movable(t)
        x = source(t)
        at, held, post = spread(into, "all_gather")
        if len(set(counts)) == 1:
            call = (x.data_ptr(), at, counts[0] * parts, code)
            return self._go(opts, self._call("hk_all_gather"), call, into, (x, held), post, inputs=ins)
        array, place = sizes(counts, parts)
        return self._go(opts, self._call("hk_all_gather_v"), (x.data_ptr(), at, place, None, code), into, (x, held, array), post,
                        inputs=ins)

    def allgather_coalesced(self, outs: LLT, ins: LT, opts: Any = None) -> HocketWork:
        """outs[r][i] becomes rank r's ins[i]."""
        flat = [t for of_rank in outs for t in of_rank]
        calls, keep, posts = [], [], []
        options, function = self._options(opts), self._call("hk_all_gather")
        for i, t in enumerate(ins):
            into = [of_rank[i] for of_rank in outs]
            self._parts(into, "all_gather_coalesced")
            alike([t, *into], "all_gather_coalesced")
            if any(o.numel() != t.numel() for o in into):
                raise Invalid(f"rank {self._rank}: all_gather_coalesced: outputs of another size than input {i}")
            code, parts = movable(t)
            x = source(t)
            at, held, post = spread(into, "all_gather_coalesced")
            calls.append((function, x.data_ptr(), at, t.numel() * parts, code, options))
            keep.append((x, held))
            posts.append(post)
        return self._together(opts, calls, keep, posts, flat, ins, "hk_all_gather")

    def all_gather_single(self, out: Tensor, in_: Tensor, opts: Any = None) -> HocketWork:
        """out becomes every rank's in_ in rank order, both taken as flat."""
        call, keep, post = self._gathered(out, in_)
        return self._go(opts, self._call("hk_all_gather"), call, [out], keep, post, inputs=[in_])

    def _gathered(self, out: Tensor, in_: Tensor) -> tuple[tuple[Any, ...], Any, Post | None]:
        alike([out, in_], "all_gather_into_tensor")
        self._whole(out, in_, "all_gather_into_tensor", "output", "input")
        code, parts = movable(in_)
        x = source(in_)
        y, post = target(out, False, "all_gather_into_tensor")
        return (x.data_ptr(), y.data_ptr(), x.numel() * parts, code), (x, y), post

    def all_gather_single_coalesced(self, outs: LT, ins: LT, opts: Any = None) -> HocketWork:
        """Pairwise."""
        return self._pairs("hk_all_gather", [self._gathered(o, i) for o, i in zip(outs, ins)], outs, ins, opts)

    def gather(self, outs: LLT, ins: LT, opts: Any = None) -> HocketWork:
        """On the root outs[0][r] becomes rank r's ins[0]; outs is empty elsewhere."""
        opts = opts if opts is not None else _c10d.GatherOptions()
        t, root = ins[0], opts.rootRank
        check(t, "gather")
        code, parts = movable(t)
        x, at, held, post, into = source(t), 0, None, None, []
        if root == self._rank:
            into = outs[0]
            self._parts(into, "gather")
            alike([t, *into], "gather")
            if any(o.numel() != t.numel() for o in into):
                raise Invalid(f"rank {self._rank}: gather: outputs of another size than the input's {t.numel()} elements")
            at, held, post = spread(into, "gather")
        return self._go(opts, self._call("hk_gather"), (x.data_ptr(), at, t.numel() * parts, code, root), into, (x, held), post, inputs=ins)

    def scatter(self, outs: LT, ins: LLT, opts: Any = None) -> HocketWork:
        """outs[0] becomes the root's ins[0][this rank]; ins is empty elsewhere."""
        opts = opts if opts is not None else _c10d.ScatterOptions()
        out, root, at, held = outs[0], opts.rootRank, 0, None
        check(out, "scatter")
        if root == self._rank:
            self._parts(ins[0], "scatter")
            alike([out, *ins[0]], "scatter")
            if any(i.numel() != out.numel() for i in ins[0]):
                raise Invalid(f"rank {self._rank}: scatter: inputs of another size than the output's {out.numel()} elements")
            at, held = joined(ins[0])
        code, parts = movable(out)
        y, post = target(out, False, "scatter")
        return self._go(opts, self._call("hk_scatter"), (at, y.data_ptr(), y.numel() * parts, code, root), outs, (held, y), post,
                        inputs=[t for of_root in ins for t in of_root])

    def all_to_all_single(self, out: Tensor, in_: Tensor, out_splits: list[int], in_splits: list[int], opts: Any = None) -> HocketWork:
        """Rows of dimension 0, split evenly or as given: part q of in_ goes to rank q, part q of out is from it."""
        alike([out, in_], "all_to_all_single")
        code, parts = movable(in_)
        x = source(in_)
        y, post = target(out, False, "all_to_all_single")
        if not out_splits and not in_splits and x.numel() == y.numel():
            self._rows(x, [], "input")
            call = (x.data_ptr(), y.data_ptr(), x.numel() // self._size * parts, code)
            return self._go(opts, self._call("hk_all_to_all"), call, [out], (x, y), post, inputs=[in_])
        sent, sent_at = sizes(self._rows(x, in_splits, "input"), parts)
        got, got_at = sizes(self._rows(y, out_splits, "output"), parts)
        call = (x.data_ptr(), sent_at, None, y.data_ptr(), got_at, None, code)
        return self._go(opts, self._call("hk_all_to_all_v"), call, [out], (x, y, sent, got), post, inputs=[in_])

    def _rows(self, t: Tensor, splits: list[int], side: str) -> list[int]:
        """Elements for each rank."""
        rows = t.size(0) if t.dim() else 1
        if not splits:
            if rows % self._size:
                raise Invalid(f"rank {self._rank}: all_to_all_single: {rows} rows of the {side} are not split evenly by {self._size} ranks")
            return [t.numel() // self._size] * self._size
        if len(splits) != self._size or sum(splits) != rows:
            raise Invalid(f"rank {self._rank}: all_to_all_single: the {side}'s splits {splits} are to be {self._size} numbers with sum {rows}")
        return [s * (t.numel() // rows if rows else 0) for s in splits]

    def alltoall(self, outs: LT, ins: LT, opts: Any = None) -> HocketWork:
        """ins[q] goes to rank q, outs[q] is from it; sizes may differ."""
        self._parts(outs, "all_to_all")
        self._parts(ins, "all_to_all")
        alike([*outs, *ins], "all_to_all")
        code, parts = movable(outs[0])
        from_, held = joined(ins)
        to, room, post = spread(outs, "all_to_all")
        sent, sent_at = sizes([t.numel() for t in ins], parts)
        got, got_at = sizes([t.numel() for t in outs], parts)
        call = (from_, sent_at, None, to, got_at, None, code)
        return self._go(opts, self._call("hk_all_to_all_v"), call, outs, (held, room, sent, got), post, inputs=ins)

    def barrier(self, opts: Any = None) -> HocketWork:
        """Finished when every rank has entered."""
        return self._go(opts, self._call("hk_barrier"), (), [])

    # ---- Point to point: bytes, so that the two ends need only agree on how many

    def send(self, tensors: LT | Tensor, dst: int, tag: int = 0) -> HocketWork:
        """Matched in order by (source, tag)."""
        t = tensors if isinstance(tensors, Tensor) else tensors[0]
        check(t, "send")
        x = source(t)
        call = (x.data_ptr(), x.numel() * x.element_size(), _U8, dst)
        return self._go(None, self._call("hk_send"), call, [t], x, options=self._tagged(tag))

    def recv(self, tensors: LT | Tensor, src: int, tag: int = 0) -> HocketWork:
        """Fills the tensor."""
        t = tensors if isinstance(tensors, Tensor) else tensors[0]
        check(t, "recv")
        y, post = target(t, False, "recv")
        call = (y.data_ptr(), y.numel() * y.element_size(), _U8, src)
        return self._go(None, self._call("hk_recv"), call, [t], y, post, options=self._tagged(tag), source=src)

    def recv_anysource(self, tensors: LT | Tensor, tag: int = 0) -> HocketWork:
        """From whoever is first; the Work's source_rank() tells."""
        t = tensors if isinstance(tensors, Tensor) else tensors[0]
        check(t, "recv")
        y, post = target(t, False, "recv")
        found = ctypes.c_int(-1)
        self._tagged(tag)  # is it one?
        options = Options(ctypes.sizeof(Options), self._standing_us)
        options.tag, options.source = tag, ctypes.addressof(found)
        call = (y.data_ptr(), y.numel() * y.element_size(), _U8, ANY_SOURCE)
        return self._go(None, self._call("hk_recv"), call, [t], (y, found, options), post, options=ctypes.addressof(options), source=found,
                        name="recvAnySource")

    def _tagged(self, tag: int) -> int | None:
        """hk_options with a tag, the standing limit beside."""
        if not tag:
            return self._standing
        o = self._tags.get((tag, self._standing_us))
        if o is None:
            if len(self._tags) > 4096:
                self._tags = {}
            if not -1 << 31 <= tag < 1 << 31:  # ctypes would cut it off
                raise Invalid(f"rank {self._rank}: tag {tag} does not fit into 32 bits")
            o = Options(ctypes.sizeof(Options), self._standing_us)
            o.tag = tag
            self._tags[tag, self._standing_us] = o
        return ctypes.addressof(o)

    # ---- Several operations as one

    def _collected(self) -> list[Any] | None:
        """What this thread collects. None: nothing, also when an error ended torch's with block, which then does not call end_coalescing."""
        collected = getattr(self._local, "collected", None)
        if collected is not None and self._local.block is not None and self._local.block.gi_frame is None:
            self._collect_no_more()
            return None
        return collected

    def _collect_no_more(self) -> None:
        self._local.collected = self._local.block = None
        self._collecting -= 1

    def start_coalescing(self, device: Any = None) -> None:
        """Operations of this thread are collected from here on."""
        if self._collected() is None:
            self._collecting += 1
        self._local.collected, self._local.block = [], _block(sys._getframe().f_back)

    def end_coalescing(self, device: Any = None) -> HocketWork:
        """Issues what was collected, together; the Work stands for all."""
        collected = self._collected()
        if collected is None:
            raise Invalid(f"rank {self._rank}: end_coalescing without start_coalescing")
        self._collect_no_more()
        result = [t for *_, tensors in collected for t in tensors]
        return self._together(None, [call for call, *_ in collected], [keep for _, keep, *_ in collected],
                              [post for _, _, post, _ in collected], result, [])

    # Names of other versions of torch.
    _allgather_base = all_gather_single
    _reduce_scatter_base = reduce_scatter_single
    alltoall_base = all_to_all_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    recvAnysource = recv_anysource
    _start_coalescing = start_coalescing
    _end_coalescing = end_coalescing


