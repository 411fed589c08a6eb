"""Find, load and resume recorded runs."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from orch_node.protocol.events import Launched, Progress, ScriptEnded, Warned
from orch_node.protocol.node_reports import RunReport
from orch_node.protocol.record import RunRecord

from orchestrator.errors import ExecuteError, RequestError
from orchestrator.operations import runs
from orchestrator.operations.runs import find_live, list_recorded_runs
from orchestrator.runs import store
from orchestrator.runs.outcome import nan_notes, untrained_notes
from orchestrator.runs.rows import row_of
from orchestrator.targets import registry
from orchestrator.targets.interface import Notify, RunList, ignore
from tests.support.recorded import RUN_RECORD, make_outcome, make_run, write_json

OLDEST, FIRST, SECOND, THIRD, FOURTH = (f"2026010{day}-120000-qa-0000" for day in (1, 2, 3, 4, 5))
REMOTE_NODE = {"node": "far", "via": ["ssh", "far"]}


def test_new_folder_of_runs_is_ignored_by_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    subprocess.run(["git", "init", "--quiet", tmp_path], check=True)
    store.write_record(RUN_RECORD, tmp_path / "runs" / FIRST)
    status = ["git", "-C", str(tmp_path), "status", "--porcelain"]
    assert subprocess.run(status, capture_output=True, check=True).stdout == b""
    (tmp_path / "runs/.gitignore").unlink()
    store.write_record(RUN_RECORD, tmp_path / "runs" / SECOND)
    assert not (tmp_path / "runs/.gitignore").exists(), "the folder belongs to the user"
    monkeypatch.setattr(os, "access", lambda path, mode: mode == os.F_OK)  # as for another user
    with pytest.raises(RequestError, match="runs cannot be read"):
        store.recorded(tmp_path / "runs")


def test_run_without_a_training_step_or_with_a_loss_of_nan_is_noted() -> None:
    for events, is_noted in (
        ([ScriptEnded(rank=0, trained=False)], True),  # untrained
        ([ScriptEnded(rank=0, trained=False), ScriptEnded(rank=1)], False),  # one rank trained
        ([ScriptEnded(rank=0), Launched(), ScriptEnded(trained=False)], True),  # restarted
        ([Progress(step=3.0), ScriptEnded(trained=False)], False),
        ([], False),  # older ranks
    ):
        assert bool(untrained_notes("done", events)) == is_noted
        assert untrained_notes("failed", events) == []
    warnings = [Warned(rank=rank, text="warning: the loss has been NaN in 10 backward passes.") for rank in (0, 1)]
    (note,) = nan_notes(None, [*warnings, Warned(rank=2, text="the weights have not changed")])
    assert note.startswith("warning: the loss has been NaN on ranks 0-1;")


def test_run_is_found_by_a_unique_prefix(tmp_path: Path) -> None:
    for run in (FIRST, SECOND):
        make_run(tmp_path, run)
    (tmp_path / "latest").symlink_to(FIRST)  # the user's, for a run that is listed anyway
    assert store.find(tmp_path, "20260103").id == SECOND
    assert store.find(tmp_path, "last", pytest.fail).id == SECOND
    shutil.copytree(tmp_path / FIRST, tmp_path / "best")  # a copy, no newer run
    assert store.find(tmp_path, "last").id == SECOND
    with pytest.raises(RequestError, match=r"2 runs .* begin with '2026'") as exc_info:
        store.find(tmp_path, "2026")
    assert SECOND in exc_info.value.hint


def test_name_finds_the_newest_run_that_has_it_or_its_array(tmp_path: Path) -> None:
    member = {"topic": "array", "value": "lr=1 (1 of 1)", "reason": ""}
    for number, (run, name) in enumerate(((FIRST, "mine"), (SECOND, "mine"), (f"{THIRD}-0", "sweep"))):
        decisions = [member] if name == "sweep" else []
        make_run(tmp_path, run, created=float(number), name=name, decisions=decisions)
    lines: list[str] = []
    assert store.find(tmp_path, "mine", lines.append).id == SECOND
    assert lines == [f"2 runs have the name mine; this is the newest: {SECOND}"]
    assert [run.id for run in store.members(tmp_path, "sweep")] == [f"{THIRD}-0"]
    assert store.members(tmp_path, "mine") == ()
    with pytest.raises(RequestError, match="no run 'min'") as exc_info:
        store.find(tmp_path, "min")
    assert "mine" in exc_info.value.hint


def test_damaged_run_of_an_array_is_not_left_out_silently(tmp_path: Path) -> None:
    for run in (f"{FIRST}-0", f"{FIRST}-1", SECOND):
        make_run(tmp_path, run)
    for damaged in (f"{FIRST}-1", SECOND):
        (tmp_path / damaged / "plan.json").write_text("{")
    lines: list[str] = []
    assert [run.id for run in store.members(tmp_path, FIRST, lines.append)] == [f"{FIRST}-0"]
    assert [line.partition("/plan.json")[0] for line in lines] == [f"warning: {tmp_path}/{FIRST}-1"]


def test_last_is_never_a_refused_run(tmp_path: Path) -> None:
    make_run(tmp_path, FIRST, created=1.0)
    write_json(make_run(tmp_path, SECOND, created=2.0) / "outcome.json", make_outcome("refused"))
    assert store.find(tmp_path, "last").id == FIRST
    assert store.find(tmp_path, SECOND).id == SECOND
    records = [run.record for run in store.recorded(tmp_path).runs]
    assert store.match_id("last", records, "on other hosts", ignore, refused=[SECOND]) == FIRST
    assert store.match_id("last", records[1:], "on other hosts", ignore, refused=[SECOND]) == SECOND


class Handle:
    """A remote run that has ended; the node of the third reports an error, that of the fourth does not respond."""

    def __init__(self, record: RunRecord, folder: Path) -> None:
        self.record, self.folder, self.notify = record, folder, ignore

    def refresh(self) -> None:
        if self.record.run_id == FOURTH:
            threading.Event().wait()
        if self.record.run_id == THIRD:
            raise ExecuteError("far: Permission denied.")
        write_json(self.folder / "outcome.json", make_outcome())


class Target:
    """A target whose nodes know one run."""

    def handle(self, record: RunRecord, folder: Path) -> Handle:
        return Handle(record, folder)

    def list_runs(self, inventory: str, base: Path) -> RunList:
        states = {"running": RUN_RECORD, "unknown": replace(RUN_RECORD, run_id=FOURTH)}
        rows = [row_of(run, RunReport(), state=state, nodes=(), folder="") for state, run in states.items()]
        return RunList(rows=tuple(rows))

    def find(self, base: Path, name: str, inventory: str, notify: Notify) -> Handle:
        return Handle(replace(RUN_RECORD, run_id=name), base)


def test_newest_live_run_is_found_after_refreshing_remote_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for second, run in enumerate((OLDEST, FIRST, SECOND, THIRD)):
        changes = {"node0": REMOTE_NODE} if run == SECOND else {}
        make_run(tmp_path, run, created=float(second), ended=run == THIRD, **changes)
    monkeypatch.setattr(registry, "target_of", lambda record: Target())
    handle, other_runs = find_live(tmp_path, "last", None, ignore)
    assert (handle.record.run_id, other_runs) == (FIRST, (OLDEST,))
    assert store.load(tmp_path / SECOND).state == "done"
    monkeypatch.setattr(registry, "target_at", lambda inventory: Target())
    handle, other_runs = find_live(tmp_path, "last", "lab", ignore)
    assert (handle.record.run_id, other_runs) == (RUN_RECORD.run_id, (FOURTH,))


def test_list_of_runs_has_the_states_that_nodes_report_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for second, run in enumerate((FIRST, SECOND, THIRD, FOURTH)):
        make_run(tmp_path, run, created=float(second), node0=REMOTE_NODE, ended=run == FIRST)
    monkeypatch.setattr(registry, "target_of", lambda record: Target())
    monkeypatch.setattr(runs, "QUERY_SECONDS", 1.0)
    result = list_recorded_runs(tmp_path, None)
    assert [row.state for row in result.rows] == ["done", "done", "unknown", "unknown"]
    assert result.warnings == (
        f"{THIRD}: far: Permission denied; last seen planned",
        f"{FOURTH}: no response within 1 s; last seen planned",
    )
    assert result.unreachable == ()
