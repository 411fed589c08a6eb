"""Packing of stacks in shared folders, and unpacking on the nodes' disks."""

from __future__ import annotations

import json
import os
import tarfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from orch_node.batch import local_stack
from orch_node.batch.local_stack import FillError, fill
from orch_node.protocol.batch import LocalStack

from tests.roles.modules import load_module

archive = load_module("orch_archive")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return a shared folder with a small stack."""
    folder = tmp_path / "shared" / "stacks" / "current"
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "python").symlink_to("/usr/bin/python3")
    (folder / "lib").mkdir()
    (folder / "lib64").symlink_to("lib")
    (folder / "lib" / "a.py").write_text("a = 1\n")
    (folder / "lib" / "run").write_text("#!/bin/sh\n")
    (folder / "lib" / "run").chmod(0o755)
    return tmp_path / "shared"


def pack_stack(root: Path, local: Path) -> LocalStack:
    archive.pack(str(root), "current", 2)
    record = json.loads((root / "archives" / "current.json").read_text())
    return LocalStack(
        folder=str(local / "stacks" / f"current-{record['sha256'][:16]}"),
        archive=str(root / "archives" / record["file"]),
        sha256=record["sha256"],
    )


def test_node_gets_the_complete_stack(root: Path, tmp_path: Path) -> None:
    local = pack_stack(root, tmp_path / "scratch")
    assert fill(local)
    folder = Path(local.folder)
    assert os.readlink(folder / "bin" / "python") == "/usr/bin/python3"
    assert (folder / "lib64" / "a.py").read_text() == "a = 1\n"
    assert os.access(folder / "lib" / "run", os.X_OK)
    assert not fill(local), "only once for each content"


def test_stack_is_packed_again_only_after_changes(root: Path) -> None:
    difference = {"what": "archives/current.tar", "should": "packed"}
    assert archive.compare(str(root), "current") == [{**difference, "is": "missing"}]
    archive.pack(str(root), "current", 2)
    (root / "stacks" / "current" / "lib" / "a.pyc").write_text("written by a run")
    assert archive.compare(str(root), "current") == []
    (root / "stacks" / "current" / "lib" / "b.py").write_text("")
    assert archive.compare(str(root), "current") == [{**difference, "is": "outdated"}]


def test_previous_archive_is_retained_for_queued_jobs(root: Path, tmp_path: Path) -> None:
    archives = []
    for number in range(3):
        (root / "stacks" / "current" / "lib" / "a.py").write_text(f"a = {number}\n")
        archives.append(Path(pack_stack(root, tmp_path).archive))
        os.utime(archives[-1], (number, number))
    assert [path.exists() for path in archives] == [False, True, True]
    (root / "stacks" / "current" / "lib" / "a.py").write_text("a = 1\n")
    os.utime(root / "stacks" / "current" / "lib" / "a.py", (9, 9))
    assert Path(pack_stack(root, tmp_path).archive).exists()


def test_concurrent_jobs_unpack_once(root: Path, tmp_path: Path) -> None:
    local = pack_stack(root, tmp_path / "scratch")
    with ThreadPoolExecutor(8) as pool:
        assert sorted(pool.map(fill, [local] * 8)) == [False] * 7 + [True]
    remaining = {path.name for path in Path(local.folder).parent.iterdir()}
    assert remaining == {Path(local.folder).name, f".{Path(local.folder).name}.lock"}


def test_leftovers_of_a_killed_job_are_ignored(root: Path, tmp_path: Path) -> None:
    local = pack_stack(root, tmp_path / "scratch")
    part = Path(local.folder).with_name(f".{Path(local.folder).name}.part-x")
    part.mkdir(parents=True)
    (part / "half").touch()
    assert fill(local)
    assert not (Path(local.folder) / "half").exists()
    assert not part.exists()


@pytest.mark.parametrize(
    ("damage", "message"),
    [(lambda data: data.replace(b"a = 1", b"a = 2"), "the planned content"), (lambda data: b"no archive", "tar")],
)
def test_damaged_archive_is_not_unpacked(root: Path, tmp_path: Path, damage: object, message: str) -> None:
    local = pack_stack(root, tmp_path / "scratch")
    path = Path(local.archive)
    path.write_bytes(damage(path.read_bytes()))  # type: ignore[operator]
    with pytest.raises(FillError, match=message):
        fill(local)
    assert not Path(local.folder).exists()
    assert not list(Path(local.folder).parent.glob("*.part*"))


def test_folder_that_cannot_be_written_is_reported(root: Path, tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.write_text("a file")
    with pytest.raises(OSError, match="Not a directory"):
        fill(pack_stack(root, scratch))
    assert local_stack.main([]) == 2


def test_many_errors_of_tar_do_not_block(tmp_path: Path) -> None:
    """tar prints one error per file."""
    path = tmp_path / "stack.tar"
    with tarfile.open(path, "w") as tar:
        for name in ("x", *(f"x/{number:0200}" for number in range(2000))):
            tar.addfile(tarfile.TarInfo(name))
    local = LocalStack(folder=str(tmp_path / "stacks" / "current"), archive=str(path), sha256="")
    messages: list[str] = []

    def try_to_fill() -> None:
        with pytest.raises(FillError) as error:
            fill(local)
        messages.append(str(error.value))

    thread = threading.Thread(target=try_to_fill, daemon=True)
    thread.start()
    thread.join(15)
    assert messages, "fill() did not return"
    assert "x/" in messages[0]
    assert os.listdir(tmp_path / "stacks") == [".current.lock"]
