"""What a run leaves of /dev/shm, where its users have data too."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.local.runs import Orch, expect_exit, last_run

# Reads its data from there, and leaves a file of a library's and one that nobody knows.
SCRIPT = """
import sys, time
import torch
name = sys.argv[1]
data = open(f"/dev/shm/data-{name}", "rb")
cache = open(f"/dev/shm/cache-{name}", "wb")
left = open(f"/dev/shm/torch_{name}_0", "wb")
time.sleep(2)
assert data.read() == b"precious"
"""


@pytest.fixture
def name() -> Iterator[str]:
    yield f"{os.getpid()}_77"
    for path in Path("/dev/shm").glob(f"*{os.getpid()}_77*"):
        path.unlink()


def test_data_of_a_user_in_shared_memory_outlive_the_run(orch: Orch, tmp_path: Path, name: str) -> None:
    (tmp_path / "reads.py").write_text(SCRIPT)
    data, cache, left = (Path("/dev/shm", one) for one in (f"data-{name}", f"cache-{name}", f"torch_{name}_0"))
    data.write_bytes(b"precious")
    process = expect_exit(orch("train", "reads.py", "--ppn", "1", "--backend", "gloo", "--", name))
    assert data.read_bytes() == b"precious"
    assert cache.exists(), "nobody knows whose it is"
    assert f"node0: left in /dev/shm: {cache} (" in process.stdout
    assert not left.exists()
    lines = map(json.loads, (last_run(tmp_path) / "events.jsonl").read_text().splitlines())
    pids = [event["pid"] for event in lines if event["event"] == "joined"]
    registered = [one for one in os.listdir("/dev/shm") if f"LIB_{pids[0]}_" in one]
    assert registered == [], "OpenMP's registration goes too"
    again = orch("clean")
    assert f"node0: left in /dev/shm: {cache} (" in again.stdout
    assert cache.exists()
    cache.unlink()
    orch("clean")
    assert list(last_run(tmp_path).glob("shm-*")) == []
