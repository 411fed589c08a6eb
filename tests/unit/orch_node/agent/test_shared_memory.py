"""Remove segments in /dev/shm after a run, but never data of users."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from orch_node.agent import processes, shared_memory

from tests.support.processes import running_python

# Opens the files of its arguments until standard input ends.
OPEN_FILES = """
import sys
files = [open(path, "ab") for path in sys.argv[1:]]
print(1, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def memory() -> Iterator[Path]:
    """Yield a path in /dev/shm; it and paths with similar names are removed after the test."""
    mark = f"{os.getpid()}_7"
    shm = Path(shared_memory.SHM)
    yield shm / f"torch_{mark}"
    for path in shm.glob(f"*{mark}*"):
        path.unlink()


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    """Return the file of a run in which the segments before the run are noted."""
    notes = tmp_path / "shm.json"
    shared_memory.begin(notes)
    return notes


def use_and_end(notes: Path, *paths: Path) -> None:
    """Open files in a process of the run, and end it."""
    with running_python(OPEN_FILES, *paths) as process:
        shared_memory.note_usage(notes, [processes.read_process(process.pid, [])])
        assert shared_memory.remove(notes).removed == (), "segments in use stay"


def test_segment_from_before_the_run_stays(tmp_path: Path, memory: Path) -> None:
    """Ranks may read data that users keep in /dev/shm, under any name."""
    notes = tmp_path / "shm.json"
    data = memory.with_name(f"data-{memory.name}.npy")
    for path in (memory, data):
        path.write_bytes(b"data of a user")
    shared_memory.begin(notes)
    use_and_end(notes, memory, data)
    assert shared_memory.remove(notes) == shared_memory.Removal()
    assert memory.exists()
    assert data.exists()


def test_segment_stays_while_another_process_uses_it(notes: Path, memory: Path) -> None:
    with running_python(OPEN_FILES, memory):
        shared_memory.begin(notes)  # A second agent of the run keeps the notes of the first.
        use_and_end(notes, memory)
        assert shared_memory.remove(notes) == shared_memory.Removal(remaining=(str(memory),))
    assert shared_memory.remove(notes).removed == (str(memory),)


@pytest.mark.skipif(os.getuid() != 0, reason="only root may give files away")
def test_segment_of_another_user_stays(notes: Path, memory: Path) -> None:
    memory.touch()
    os.chown(memory, 65534, 65534)
    use_and_end(notes, memory)
    assert shared_memory.remove(notes) == shared_memory.Removal(remaining=(str(memory),))


def test_new_file_with_the_name_of_a_segment_stays(notes: Path, memory: Path) -> None:
    use_and_end(notes, memory)
    memory.rename(f"{memory}-renamed")
    memory.write_bytes(b"of somebody else")
    assert shared_memory.remove(notes) == shared_memory.Removal()
    assert memory.exists()


def test_notes_cannot_remove_files_outside_of_shared_memory(tmp_path: Path, memory: Path) -> None:
    """Distrust the notes: somebody else may have access to the run's folder."""
    outside = tmp_path / "torch_1_2"
    outside.write_bytes(b"data")
    inode = outside.stat().st_ino
    for name in (str(outside), f"../..{outside}", "..", "torch_1_2/../x"):
        notes = tmp_path / "shm.json"
        notes.write_text(json.dumps({"before": {}, "used": {name: inode}}))
        assert shared_memory.remove(notes) == shared_memory.Removal()
    assert outside.exists()
    os.mkfifo(tmp_path / "pipe.json")
    assert shared_memory.remove(tmp_path / "pipe.json") == shared_memory.Removal(), "nothing waits for a writer"


def test_registrations_of_dead_processes_are_removed_before_the_next_run(tmp_path: Path) -> None:
    """Keep the registrations of other users and of living processes."""
    dead = subprocess.Popen(["true"])
    dead.wait()
    leftover, foreign, living = (
        Path(shared_memory.SHM, f"__KMP_REGISTERED_LIB_{pid}_{number}")
        for pid, number in ((dead.pid, 7), (dead.pid, 8), (os.getpid(), 7))
    )
    linked = leftover.with_name("orch-test-linked")
    try:
        for path in (leftover, foreign, living):
            path.write_bytes(b"x")
        if os.getuid() == 0:
            os.chown(foreign, 12345, 12345)
        else:  # only files with the name of a registration are removed
            os.link(foreign, linked)
        shared_memory.begin(tmp_path / "shm.json")
        assert [path.exists() for path in (leftover, foreign, living)] == [False, True, True]
    finally:
        for path in (leftover, foreign, living, linked):
            path.unlink(missing_ok=True)


LIBRARY_SEGMENTS = """
    Intel_MPI_qHw4lB mpich_shar_tmpAb3dE9 vader_segment.host.0.5f3a0001.1 sm_segment.host.0.ccd70001.0
    psm3_shm.1000.6f4e-22.0 torch_15407_1234_0 ccl-rank2proc-eps-shm-0 __KMP_REGISTERED_LIB_15407_0
"""
# psm_1a2b3c4d: shared memory of Python's multiprocessing, which users create.
USER_FILES = "torch_data torch_weights.pt train.npy sem.mine psm_1a2b3c4d ccl_dataset.bin"


def test_segments_are_recognized_by_the_names_that_libraries_give_them() -> None:
    names = [*LIBRARY_SEGMENTS.split(), *USER_FILES.split()]
    assert [name for name in names if shared_memory.LIBRARIES.fullmatch(name)] == LIBRARY_SEGMENTS.split()
