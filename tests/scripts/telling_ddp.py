"""Runs the script argv[1] with the rest as its arguments; each DistributedDataParallel that it
makes tells on stderr whether its gradients are where they travel from."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

from torch.nn.parallel import DistributedDataParallel

initialise = DistributedDataParallel.__init__


def telling(self, *args, **kwargs) -> None:
    initialise(self, *args, **kwargs)
    print(f"views of buckets: {self.gradient_as_bucket_view}", file=sys.stderr, flush=True)


DistributedDataParallel.__init__ = telling
sys.argv = sys.argv[1:]
sys.path.insert(0, str(Path(sys.argv[0]).parent))
runpy.run_path(sys.argv[0], run_name="__main__")
