# SPDX-License-Identifier: Apache-2.0
"""The ``hocket`` command that came with the package: run, perf, plan, trace, info."""

from __future__ import annotations

import os
import sys

from ._library import find


def main() -> None:
    """Becomes the command; returns only if it is not there, with exit code 127."""
    path = find().parent.parent / "bin" / "hocket"
    try:
        os.execv(path, ["hocket", *sys.argv[1:]])
    except OSError as e:
        print(f"hocket: {path}: {e.strerror}", file=sys.stderr)
        sys.exit(127)
