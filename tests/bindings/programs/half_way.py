"""Set up a group with a rank that stops after its first messages: half_way.py RANK [KEY]..."""

from __future__ import annotations

import sys
import tempfile
from datetime import timedelta

import torch.distributed as dist
from oneccl_bindings_for_pytorch import __version__
from start import print_line

SILENT, KEYS = int(sys.argv[1]), sys.argv[2:]

with tempfile.TemporaryDirectory() as folder:
    store = dist.FileStore(f"{folder}/store", 2)
    group_store = dist.PrefixStore("ccl/0", store)
    group_store.set(f"hello/{SILENT}", f"{__version__}|ofi|boot/pid:[1] node7 4711 1")
    for key in KEYS:
        group_store.set(f"{key}/{SILENT}", "none")
    try:
        dist.ProcessGroupCCL(store, 1 - SILENT, 2, timedelta(seconds=2))
    except dist.DistBackendError as error:
        print_line(error)
