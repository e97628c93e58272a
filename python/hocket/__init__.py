# SPDX-License-Identifier: Apache-2.0
"""hocket: collective communication between processes on CPUs.

    import hocket, numpy
    with hocket.init() as comm:                  # started by: hocket run -n 4 -- python program.py
        x = numpy.full(1000, comm.rank + 1.0)
        comm.all_reduce(x, out=x)                # the sum over ranks, on every rank

``import hocket.torch`` makes it a backend of torch.distributed. docs/python.md has the whole.
"""

from ._comm import ANY_SOURCE, Comm, Op, Work, create_id, init
from ._errors import (Aborted, BootFailed, Broken, Corrupt, Error, Forked, Invalid, Mismatch, OutOfMemory, PeerLeft, PeerLost, SystemFailure,
                      Timeout, Unsupported, WaitExpired)

__version__ = "0.1.0"
SUM, PROD, MIN, MAX, AVG, BAND, BOR, BXOR = Op

__all__ = ["ANY_SOURCE", "AVG", "Aborted", "BAND", "BOR", "BXOR", "BootFailed", "Broken", "Comm", "Corrupt", "Error", "Forked", "Invalid",
           "MAX", "MIN", "Mismatch", "Op", "OutOfMemory", "PROD", "PeerLeft", "PeerLost", "SUM", "SystemFailure", "Timeout", "Unsupported",
           "WaitExpired", "Work", "create_id", "init"]
