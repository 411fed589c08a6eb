"""Check that orch deletes the folders of a refused run, but never another folder in its record."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from orch_node.protocol.record import RunNode

from orchestrator.targets.ssh.handle import SshHandle
from tests.support.recorded import RUN_RECORD as RECORD

ID = "20260101-120000-qa-0000"


def discard(runs: Path, run_dir: str, run_id: str = ID) -> list[str]:
    """Discard a run of this machine; return the messages."""
    node = RunNode(node="localhost")
    record = replace(RECORD, run_id=run_id, run_dir=run_dir, node0=node, nodes=(node,))
    messages: list[str] = []
    handle = SshHandle(record, runs / ID)
    handle.notify = messages.append
    handle.discard()
    return messages


def test_only_the_folder_of_the_run_is_deleted(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    for folder in (ID, f"other/{ID}", "x"):
        (runs / folder).mkdir(parents=True)
    for run_dir in (f"{runs}", f"{runs}/other", f"{runs}/other/{ID}", f"{runs}/x/../{ID}", ID, "/", ""):
        (message,) = discard(runs, run_dir)
        assert "was not deleted" in message
    (message,) = discard(runs, str(runs), run_id="runs")
    assert "was not deleted" in message, "the id of a run has a date"
    assert sorted(path.name for path in runs.iterdir()) == [ID, "other", "x"]
    assert (runs / "other" / ID).is_dir()
    assert discard(runs, str(runs / ID)) == []
    assert sorted(path.name for path in runs.iterdir()) == ["other", "x"]
