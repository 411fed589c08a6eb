"""Check what orch removes from /dev/shm, where users have data too."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.local.runs import Orch, expect_exit, last_run, read_events, write_script

# Reads data, and leaves a file of a library and a file of unknown origin.
SCRIPT = """
import sys, time
import torch
name = sys.argv[1]
data = open(f"/dev/shm/data-{name}", "rb")
cache = open(f"/dev/shm/cache-{name}", "wb")
leftover = open(f"/dev/shm/torch_{name}_0", "wb")
time.sleep(2)
assert data.read() == b"precious"
"""


@pytest.fixture
def name() -> Iterator[str]:
    """Yield a name for files in shared memory, and delete them afterwards."""
    yield f"{os.getpid()}_77"
    for path in Path("/dev/shm").glob(f"*{os.getpid()}_77*"):
        path.unlink()


def test_only_segments_of_the_run_are_deleted_from_shared_memory(orch: Orch, tmp_path: Path, name: str) -> None:
    names = (f"data-{name}", f"cache-{name}", f"torch_{name}_0")
    data, cache, library_file = (Path("/dev/shm", file) for file in names)
    data.write_bytes(b"precious")
    script = write_script(tmp_path, SCRIPT)
    process = expect_exit(orch("train", script, "--ppn", "1", "--backend", "gloo", "--", name))
    assert data.read_bytes() == b"precious"
    assert cache.exists(), "its owner is unknown"
    report = f"node0: left in /dev/shm: {cache} ("
    assert report in process.stderr
    assert not library_file.exists()
    run = last_run(tmp_path)
    (pid,) = (event["pid"] for event in read_events(run, "joined"))
    assert not [path for path in os.listdir("/dev/shm") if f"LIB_{pid}_" in path], "OpenMP's registration is deleted"
    assert report in orch("clean").stdout
    assert cache.exists()
    cache.unlink()
    orch("clean")
    assert list(run.glob("shm-*")) == []
