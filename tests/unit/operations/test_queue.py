"""Check the copy of the project that a queue keeps until its runs start."""

from __future__ import annotations

from pathlib import Path

from orch_node import content_store

from orchestrator.model.project import Project
from orchestrator.operations.queue import SNAPSHOT, copy_project
from orchestrator.targets.fetch import has_project
from tests.support.files import write_files, write_program


def read_project(folder: Path) -> Project:
    entries = [content_store.describe(folder, path) for path in content_store.all_files(folder)]
    kinds = {entry.name: entry.kind for entry in entries if entry.kind}
    return Project(folder=str(folder), files={entry.name: entry.sha256 for entry in entries}, kinds=kinds, size=0)


def test_copy_is_the_project_as_it_was_submitted(tmp_path: Path) -> None:
    """Keep the copy when the runs are resumed, and replace it only by a whole other project."""
    folder = write_files(tmp_path / "home", {"train.py": "1"})
    (folder / "train.py").chmod(0o444)
    (folder / "link").symlink_to("train.py")
    write_program(folder / "sub/run.sh", "")
    submitted = read_project(folder)
    copy_project(submitted, tmp_path)
    (folder / "train.py").unlink()
    copy_project(submitted, tmp_path)
    assert has_project(tmp_path / SNAPSHOT, submitted)
    (folder / "other.py").write_text("2")
    changed = read_project(folder)
    copy_project(changed, tmp_path)
    assert has_project(tmp_path / SNAPSHOT, changed)
    copy_project(submitted, tmp_path)
    assert not has_project(tmp_path / SNAPSHOT, submitted), "train.py is missing"
