# SPDX-License-Identifier: Apache-2.0
"""What torch calls at import (entry point torch.backends) or when it is asked for a backend named hocket (torch.distributed.backends)."""

from __future__ import annotations


def register() -> None:
    """Makes hocket known to torch.distributed."""
    from . import torch as _  # noqa: F401  registers


def autoload() -> None:
    """The same, at the end of ``import torch``: must not raise, whatever torch is like, and loads no library."""
    try:
        import torch.distributed as dist

        if dist.is_available() and not hasattr(dist.Backend, "_ensure_backend_registered"):
            register()
    except Exception as e:  # a torch without distributed, or a later one that differs
        import warnings

        warnings.warn(f"hocket is not registered as a backend of torch.distributed: {e}", stacklevel=2)
