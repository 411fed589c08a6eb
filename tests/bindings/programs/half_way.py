"""Set up groups with a rank that does not start, or stops after its first messages."""

from __future__ import annotations

import tempfile
from datetime import timedelta

import torch.distributed as dist
from oneccl_bindings_for_pytorch import __version__
from start import print_line

# The rank, and what it writes before it stops.
HELLO = f"{__version__}|ofi|boot/pid:[1] node7 4711 1"
CASES = ((1, {}), (1, {"hello": HELLO}), (0, {"hello": HELLO, "kept": "none"}))

with tempfile.TemporaryDirectory() as folder:
    for number, (silent, values) in enumerate(CASES):
        store = dist.FileStore(f"{folder}/{number}", 2)
        for key, value in values.items():
            dist.PrefixStore(f"ccl/{number}", store).set(f"{key}/{silent}", value)
        try:
            dist.ProcessGroupCCL(store, 1 - silent, 2, timedelta(seconds=2))
        except dist.DistBackendError as error:
            print_line(error)
