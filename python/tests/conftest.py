# SPDX-License-Identifier: Apache-2.0
"""Makes ``ranks`` importable and torch, where there is one, imported before ranks are forked."""

import os
import sys
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).parent))
try:
    import torch._dynamo  # noqa: F401  which every optimizer imports, for a second or more
    import torch.distributed.fsdp  # noqa: F401  and which DDP does
except ImportError:
    pass
