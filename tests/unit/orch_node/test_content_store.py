"""Remove what no run has used for a long time from the store of a node."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from orch_node import content_store

from orchestrator.errors import ExecuteError
from orchestrator.files import state_home
from orchestrator.operations import runs
from orchestrator.planning.plan import StoreFolder
from orchestrator.runs.outcome import NodeCleanup
from orchestrator.targets.connections.local import Local
from orchestrator.targets.execute import store
from tests.support.files import set_age, write_files
from tests.support.plans import make_store_step
from tests.support.waiting import wait_until

DAYS = 24 * 3600.0


@pytest.fixture
def step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StoreFolder:
    """Return a step that has put a folder into the store of this machine 31 days ago."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    source = write_files(tmp_path / "source", {"train.py": "1"})
    run_dir = tmp_path / "runs" / "20260101-120000-own-1a2b"
    step = make_store_step(source, ["train.py"], state_home() / "store", run_dir)
    store(step, {"node0": Local()})
    set_age(lock_of(step), 31 * DAYS)
    return step


def clean(step: StoreFolder, *, dry_run: bool = False) -> NodeCleanup:
    """Clean this machine up as if the user had called `orch clean`, and return the result."""
    (node,) = runs.clean(Path(step.run_dir).parent, None, dry_run=dry_run).nodes
    return node


def lock_of(step: StoreFolder) -> Path:
    return Path(step.path).with_name(f".{Path(step.path).name}.lock")


def test_unused_folder_is_removed_and_can_be_sent_again(step: StoreFolder) -> None:
    preview = clean(step, dry_run=True)
    assert (preview.state, preview.left) == ("left", (f"{step.path}: no run uses it",))
    assert content_store.hash_of(Path(step.path)) == Path(step.path).name
    assert clean(step).unused == (step.path,)
    assert list(Path(step.path).parent.iterdir()) == [lock_of(step)]
    assert content_store.hash_of(Path(step.copy)) == Path(step.path).name, "the run's copy stays"
    assert clean(step, dry_run=True).state == "clean"
    store(step, {"node0": Local()})
    assert content_store.hash_of(Path(step.path)) == Path(step.path).name
    set_age(lock_of(step), 31 * DAYS)
    store(replace(step, run_dir=f"{step.run_dir}2", copy=""), {"node0": Local()})
    assert clean(step).unused == (), "it was used again"
    assert Path(step.path).is_dir()


def test_a_folder_that_an_unfinished_run_has_used_stays(step: StoreFolder) -> None:
    variables = os.environ | {"ORCH_RUN_DIR": step.run_dir}
    command = [sys.executable, "-c", "import sys; sys.stdin.read()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, env=variables) as process:
        environment = Path(f"/proc/{process.pid}/environ")
        wait_until(lambda: step.run_dir.encode() in environment.read_bytes(), "a process of the run")
        (process_left,) = clean(step, dry_run=True).left
        assert f"other {process.pid} (" in process_left
    assert clean(step).unused == (step.path,)


def test_incomplete_folders_are_removed_after_a_day(step: StoreFolder) -> None:
    old, new = (Path(step.path).with_name(f".{Path(step.path).name}.part-{name}") for name in ("old", "new"))
    for part in (old, new):
        (part / "sub").mkdir(parents=True)
        (part / "sub").chmod(0o500)
    set_age(old, 2 * DAYS)
    assert set(clean(step).unused) == {str(old), step.path}
    assert (old.exists(), new.exists()) == (False, True)


# The copy of a resumed run.


@pytest.fixture
def copy(step: StoreFolder) -> Path:
    """Return the run's copy, to which the run has added a file; the user has changed the project since then."""
    source, copy = Path(step.source), Path(step.copy)
    (source / "train.py").write_text("2")
    (copy / "checkpoint.pt").write_text("weights")
    return copy


def changed(step: StoreFolder, **fields: Any) -> StoreFolder:
    """Return the step for the files as they are now."""
    source = Path(step.source)
    names = tuple(path.name for path in source.iterdir())
    path = Path(step.path).with_name(content_store.hash_of(source))
    return replace(step, files=names, path=str(path), **fields)


def test_changed_code_reaches_the_copy_and_what_the_run_wrote_stays(step: StoreFolder, copy: Path) -> None:
    source = Path(step.source)
    write_files(source, dict.fromkeys(("log.txt", "old.py", "removed.py"), ""))
    store(changed(step), {"node0": Local()})
    written = dict.fromkeys(("log.txt", "removed.py"), "of the run")
    write_files(copy, written)
    for name in ("old.py", "removed.py"):
        (source / name).unlink()
    write_files(source, {"train.py": "3", "new.py": "new"})
    store(changed(step), {"node0": Local()})
    texts = {path.name: path.read_text() for path in copy.iterdir()}
    assert texts == {"train.py": "3", "new.py": "new", **written, "checkpoint.pt": "weights"}
    assert os.access(copy / "new.py", os.W_OK)


def test_copy_can_be_put_into_a_zip_archive(step: StoreFolder, tmp_path: Path) -> None:
    """ZIP archives have no times before 1980."""
    assert shutil.make_archive(str(tmp_path / "code"), "zip", step.copy)


def test_copy_is_kept_although_its_folder_is_gone_and_cannot_be_sent(step: StoreFolder, copy: Path) -> None:
    content_store.remove(Path(step.path))
    store(replace(step, keeps_copies=True), {"node0": Local()})
    assert (copy / "train.py").read_text() == "1"
    with pytest.raises(ExecuteError, match="have changed"):
        store(replace(step, keeps_copies=True, copy=f"{step.copy}2"), {"node0": Local()})
