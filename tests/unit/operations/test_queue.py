"""Check which nodes a waiting run gets, in which order queues start their runs, and the copy of their project."""

from __future__ import annotations

import fcntl
import shutil
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import pytest
from orch_node import content_store
from orch_node.protocol.agent import Claim
from orch_node.protocol.node_reports import NodeUsage
from orch_node.protocol.outcome import REFUSED

from orchestrator.errors import ExecuteError
from orchestrator.files import make_user_folder
from orchestrator.model.project import Project
from orchestrator.operations.queue import SNAPSHOT, copy_project, submit
from orchestrator.operations.queue_process import LOST_SECONDS, ActiveRun, Queue, choose_nodes, is_first
from orchestrator.operations.resume import limit_of
from orchestrator.operations.runs import handle_of
from orchestrator.runs import queued, store
from orchestrator.targets.fetch import has_project
from orchestrator.targets.interface import LiveNode
from tests.support.files import write_files, write_program
from tests.support.recorded import make_run


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


def make_node(name: str, *runs: str, responds: bool = True, queried: bool = True) -> LiveNode:
    reserved = tuple(Claim(run=run, run_dir="", cpus=(0,)) for run in runs)
    usage = NodeUsage(load=0.0, memory_available=1, reserved=reserved) if responds else None
    return LiveNode(name=name, cores=1, usage=usage, problem="" if responds else "timed out", queried=queried)


NODES = (make_node("a1", "other"), make_node("a2"), make_node("a3", responds=False), make_node("a4"))


def test_run_gets_the_first_free_nodes_or_names_who_has_the_others() -> None:
    assert choose_nodes(NODES, 2) == (("a2", "a4"), "")
    assert choose_nodes(NODES, 3) == ((), "waits for 3 free nodes (a1: taken by run other; a3: no response)")
    assert choose_nodes([make_node("a5", responds=False, queried=False)], 1)[1].endswith("(a5: not provisioned)")


@pytest.mark.parametrize("holder_lives", [True, False])
def test_queue_is_the_first_if_no_living_queue_is_earlier(tmp_path: Path, holder_lives: bool) -> None:
    earlier, later = tmp_path / "1-100", tmp_path / "2-200"
    with earlier.open("wb") as holder, later.open("wb"):
        if holder_lives:
            fcntl.flock(holder, fcntl.LOCK_EX)
        assert is_first(later) is not holder_lives
        assert earlier.exists() is holder_lives
    assert is_first(later)


def test_queue_forgets_an_active_run_whose_folder_was_deleted(tmp_path: Path) -> None:
    names = ("array-0", "array-1")
    handles = {name: handle_of(store.load(make_run(tmp_path, name, ranks=1, nodes=1))) for name in names}
    (tmp_path / "array-1/outcome.json").unlink()
    active = {name: ActiveRun(handle=handle, nodes=frozenset({name})) for name, handle in handles.items()}
    queue = Queue(tmp_path, make_user_folder(tmp_path / "array"), waiting=[], limit=2, unmasked={}, active=active)
    queue.write_state("")
    assert limit_of([store.load(tmp_path / "array-0")]) == 2
    shutil.rmtree(tmp_path / "array-1")
    queue.end_finished()
    assert queue.active == {}


def test_run_is_lost_only_if_two_polls_get_no_response(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Starting another run may take longer than the nodes of a run may be silent."""
    run = store.load(make_run(tmp_path, "run", ranks=1, nodes=1, ended=False))
    active = {"run": ActiveRun(handle=handle_of(run), nodes=frozenset({"node1"}))}
    folder = make_user_folder(tmp_path / "queue")
    queue = Queue(tmp_path, folder, waiting=[], limit=None, unmasked={}, active=active)
    silent = {"run": "no response"}
    for seconds, problems, waiting in (
        (0, {}, []),
        (2 * LOST_SECONDS, silent, []),
        (2.5 * LOST_SECONDS, {}, []),
        (5 * LOST_SECONDS, silent, []),
        (6.5 * LOST_SECONDS, silent, ["run"]),
    ):
        monkeypatch.setattr("time.monotonic", lambda seconds=seconds: seconds)
        monkeypatch.setattr("orchestrator.operations.runs.refresh", lambda *_, problems=problems: problems)
        queue.end_finished()
        assert queue.waiting == waiting, seconds


def test_run_that_is_put_back_is_always_refused_or_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_run(tmp_path, "run", ranks=1, nodes=1)
    store.record_end(folder, REFUSED)
    queue = Queue(tmp_path, make_user_folder(tmp_path / "queue"), waiting=[], limit=None, unmasked={})
    states = []

    def watched(change: Callable[..., None]) -> Callable[..., None]:
        def change_and_look(*arguments: str | Path) -> None:
            change(*arguments)
            states.append(store.load(folder).state)

        return change_and_look

    monkeypatch.setattr(store, "forget_end", watched(store.forget_end))
    monkeypatch.setattr(queued, "mark", watched(queued.mark))
    with queued.lock(queue.folder):
        queue.put_back(store.load(folder), "")
        with pytest.raises(ExecuteError) as exc_info:
            submit(Mock(array=(), run=Mock(run_id="queue")), tmp_path)
    assert f"`orch stop queue --runs-dir {tmp_path}`" in exc_info.value.hint
    assert states == [queued.QUEUED, queued.QUEUED]
    assert queue.waiting == ["run"]
