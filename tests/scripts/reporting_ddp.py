"""Run a script whose DDP prints to stderr whether gradients are views of its buckets: reporting_ddp.py SCRIPT ARGS."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

from torch.nn.parallel import DistributedDataParallel

original_init = DistributedDataParallel.__init__


def reporting_init(self, *args, **kwargs) -> None:
    original_init(self, *args, **kwargs)
    print(f"views of buckets: {self.gradient_as_bucket_view}", file=sys.stderr, flush=True)


DistributedDataParallel.__init__ = reporting_init
sys.argv = sys.argv[1:]
sys.path.insert(0, str(Path(sys.argv[0]).parent))
runpy.run_path(sys.argv[0], run_name="__main__")
