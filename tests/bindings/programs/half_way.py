"""The other rank of a new group says hello, and nothing more after that: half_way.py KEY..."""

from __future__ import annotations

import sys
import tempfile
from datetime import timedelta

import torch.distributed as dist
from oneccl_bindings_for_pytorch import __version__
from start import say

SILENT, KEYS = int(sys.argv[1]), sys.argv[2:]

with tempfile.TemporaryDirectory() as folder:
    store = dist.FileStore(f"{folder}/store", 2)
    other = dist.PrefixStore("ccl/0", store)
    other.set(f"hello/{SILENT}", f"{__version__}|ofi|boot/pid:[1] node7 4711 1")
    for key in KEYS:
        other.set(f"{key}/{SILENT}", "none")
    try:
        dist.ProcessGroupCCL(store, 1 - SILENT, 2, timedelta(seconds=2))
    except dist.DistBackendError as error:
        say(error)
