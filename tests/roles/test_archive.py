"""A stack is packed on a shared folder, and nodes fill folders of their own from it."""

from __future__ import annotations

import json
import os
import tarfile
import threading
from pathlib import Path

import pytest
from orch_node.protocol.slurm import LocalStack
from orch_node.slurm import local_stack
from orch_node.slurm.local_stack import FillError, fill

from tests.roles.modules import load_module

archive = load_module("orch_archive")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A shared folder with a small stack."""
    folder = tmp_path / "shared" / "stacks" / "current"
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "python").symlink_to("/usr/bin/python3")
    (folder / "lib").mkdir()
    (folder / "lib64").symlink_to("lib")
    (folder / "lib" / "a.py").write_text("a = 1\n")
    (folder / "lib" / "run").write_text("#!/bin/sh\n")
    (folder / "lib" / "run").chmod(0o755)
    return tmp_path / "shared"


def packed(root: Path, local: Path) -> LocalStack:
    archive.pack(str(root), "current", 2)
    found = json.loads((root / "archives" / "current.json").read_text())
    return LocalStack(
        folder=str(local / "stacks" / f"current-{found['sha256'][:16]}"),
        archive=str(root / "archives" / found["file"]),
        sha256=found["sha256"],
    )


def test_a_node_gets_the_stack_as_it_is(root: Path, tmp_path: Path) -> None:
    local = packed(root, tmp_path / "scratch")
    assert fill(local)
    folder = Path(local.folder)
    assert os.readlink(folder / "bin" / "python") == "/usr/bin/python3"
    assert (folder / "lib64" / "a.py").read_text() == "a = 1\n"
    assert os.access(folder / "lib" / "run", os.X_OK)
    assert not fill(local), "once for each content"


def test_it_is_packed_again_only_where_it_differs(root: Path) -> None:
    what = {"what": "archives/current.tar", "should": "packed"}
    assert archive.compare(str(root), "current") == [{**what, "is": "missing"}]
    archive.pack(str(root), "current", 2)
    (root / "stacks" / "current" / "lib" / "a.pyc").write_text("as it was used")
    assert archive.compare(str(root), "current") == []
    (root / "stacks" / "current" / "lib" / "b.py").write_text("")
    assert archive.compare(str(root), "current") == [{**what, "is": "of an earlier stack"}]


def test_the_archive_before_stays_for_jobs_that_wait(root: Path, tmp_path: Path) -> None:
    made = []
    for number in range(3):
        (root / "stacks" / "current" / "lib" / "a.py").write_text(f"a = {number}\n")
        made.append(Path(packed(root, tmp_path).archive))
        os.utime(made[-1], (number, number))
    assert [one.exists() for one in made] == [False, True, True]
    (root / "stacks" / "current" / "lib" / "a.py").write_text("a = 1\n")
    os.utime(root / "stacks" / "current" / "lib" / "a.py", (9, 9))
    assert Path(packed(root, tmp_path).archive).exists()


def test_two_jobs_fill_one_folder_once(root: Path, tmp_path: Path) -> None:
    local = packed(root, tmp_path / "scratch")
    new: list[bool] = []
    both = [threading.Thread(target=lambda: new.append(fill(local))) for _ in range(8)]
    for one in both:
        one.start()
    for one in both:
        one.join()
    assert sorted(new) == [False] * 7 + [True]
    left = {path.name for path in Path(local.folder).parent.iterdir()}
    assert left == {Path(local.folder).name, f".{Path(local.folder).name}.lock"}


def test_what_a_killed_job_left_is_not_taken_for_a_stack(root: Path, tmp_path: Path) -> None:
    local = packed(root, tmp_path / "scratch")
    part = Path(local.folder).with_name(f".{Path(local.folder).name}.part-x")
    part.mkdir(parents=True)
    (part / "half").touch()
    assert fill(local)
    assert not (Path(local.folder) / "half").exists()
    assert not part.exists()


@pytest.mark.parametrize(
    ("damage", "words"),
    [(lambda data: data.replace(b"a = 1", b"a = 2"), "is not what was packed"), (lambda data: b"no archive", "tar")],
)
def test_a_damaged_archive_fills_nothing(root: Path, tmp_path: Path, damage: object, words: str) -> None:
    local = packed(root, tmp_path / "scratch")
    path = Path(local.archive)
    path.write_bytes(damage(path.read_bytes()))  # type: ignore[operator]
    with pytest.raises(FillError, match=words):
        fill(local)
    assert not Path(local.folder).exists()
    assert not list(Path(local.folder).parent.glob("*.part*"))


def test_a_folder_that_cannot_be_filled_is_told(root: Path, tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.write_text("a file")
    with pytest.raises(OSError, match="Not a directory"):
        fill(packed(root, scratch))
    assert local_stack.main([]) == 2


def test_a_disk_that_takes_no_file_is_told_however_many_there_are(tmp_path: Path) -> None:
    """tar complains of each."""
    path = tmp_path / "stack.tar"
    with tarfile.open(path, "w") as made:
        for name in ("x", *(f"x/{number:0200}" for number in range(2000))):
            made.addfile(tarfile.TarInfo(name))
    local = LocalStack(folder=str(tmp_path / "stacks" / "current"), archive=str(path), sha256="")
    said: list[str] = []

    def fills() -> None:
        with pytest.raises(FillError) as refused:
            fill(local)
        said.append(str(refused.value))

    thread = threading.Thread(target=fills, daemon=True)
    thread.start()
    thread.join(15)
    assert said, "it waits for ever"
    assert "x/" in said[0]
    assert os.listdir(tmp_path / "stacks") == [".current.lock"]
