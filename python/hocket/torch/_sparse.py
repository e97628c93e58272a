# SPDX-License-Identifier: Apache-2.0
"""all_reduce of sparse COO tensors, which DDP needs for embeddings with sparse gradients: everyone gathers all, padded, and adds up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ._errors import Unsupported

if TYPE_CHECKING:
    from ._collectives import Collectives


def all_reduce(group: Collectives, t: Tensor, opts: Any) -> None:
    """``t`` becomes the sum over ranks, in place. Dense dimensions are alike on all ranks. Runs to its end."""
    if int(opts.reduceOp.op) != 0:
        raise Unsupported("all_reduce: sparse tensors can be summed only")
    mine = t.coalesce()
    ranks, own = group._size, mine._nnz()
    counts = torch.empty(ranks, dtype=torch.int64)
    group.all_gather_single(counts, torch.tensor([own])).wait()
    most = int(counts.max())
    indices, values = mine.indices(), mine.values()
    # Both are contiguous by their entries: (entries, dimensions) and (entries, ...).
    here = torch.zeros((most, indices.shape[0]), dtype=torch.int64)
    here[:own] = indices.t()
    held = torch.zeros((most, *values.shape[1:]), dtype=values.dtype)
    held[:own] = values.detach()
    every_index = torch.empty((ranks, *here.shape), dtype=here.dtype)
    every_value = torch.empty((ranks, *held.shape), dtype=held.dtype)
    group.all_gather_single(every_index, here).wait()
    group.all_gather_single(every_value, held).wait()
    n = counts.tolist()
    with torch.no_grad():
        total = torch.sparse_coo_tensor(torch.cat([every_index[r, :n[r]] for r in range(ranks)]).t(),
                                        torch.cat([every_value[r, :n[r]] for r in range(ranks)]), t.shape).coalesce()
        t.copy_(total)  # not of t.detach(): that would be given the new indices, and t would keep its own
