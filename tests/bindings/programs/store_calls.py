"""Count the requests of oneCCL to the store while one rank is late at its barriers."""

from __future__ import annotations

import os
import time
from collections import Counter
from datetime import timedelta

import torch
import torch.distributed as dist
from start import RANK, SIZE, print_line

LATE = 0.3  # seconds, enough for hundreds of requests


class CountingStore(dist.Store):
    """A TCPStore that counts reads of barrier keys, and writes them slowly on rank 1."""

    def __init__(self, store: dist.TCPStore) -> None:
        super().__init__()
        self.store = store
        self.reads: Counter[str] = Counter()
        self.written: Counter[str] = Counter()

    def set(self, key: str, value: str) -> None:
        if "CCL_BARRIER" in key and "@" not in key:
            self.written[key] += 1
            time.sleep(LATE * (RANK == 1))
        self.store.set(key, value)

    def get(self, key: str) -> bytes:
        if "CCL_BARRIER" in key:
            self.reads[key] += 1
        return self.store.get(key)

    def check(self, keys: list[str]) -> bool:
        return self.store.check(keys)

    def wait(self, keys: list[str], timeout: timedelta) -> None:
        self.store.wait(keys, timeout)

    def clone(self) -> dist.Store:
        return self


port = int(os.environ["MASTER_PORT"])
store = CountingStore(dist.TCPStore("127.0.0.1", port, SIZE, is_master=RANK == 0))
dist.init_process_group("ccl", store=store, rank=RANK, world_size=SIZE, timeout=timedelta(seconds=30))
dist.all_reduce(torch.ones(1))
max_writes = max(store.written.values())
assert store.written
assert store.reads
assert all(reads <= max_writes for reads in store.reads.values()), (max_writes, store.reads)
print_line("fine")
dist.destroy_process_group()
