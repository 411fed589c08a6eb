"""Damaged files of a run do not hide the other runs or cause internal errors."""

from __future__ import annotations

import io
import json
import os
import subprocess
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from orch_node.agent import run_folders
from orch_node.agent.processes import run_processes
from orch_node.protocol import files
from orch_node.protocol.events import Progress
from orch_node.protocol.node_reports import Cleaned, DamagedRun

from orchestrator.errors import OrchError, RequestError
from orchestrator.operations import runs as operation
from orchestrator.operations.runs import list_recorded_runs
from orchestrator.report import comparison, listing, live, page, training
from orchestrator.runs import store
from orchestrator.runs.follow import LocalRun, follow
from orchestrator.runs.measures import measures
from orchestrator.runs.outcome import outcome_of
from orchestrator.targets.kubernetes.local_copy import ReadLine, RunCopy
from orchestrator.targets.kubernetes.status import JobState
from orchestrator.targets.kubernetes.status import outcome as kubernetes_outcome
from orchestrator.targets.ssh import find
from tests.support.hostile import DEEP_EVENT, FILES, HUGE_NUMBER_EVENT, JSON, LINES, TEXTS
from tests.support.recorded import STARTED, make_run
from tests.support.waiting import wait_until

GOOD, BAD = "20260101-120000-qa-0000", "20260102-120000-qa-0001"
DAMAGES: dict[str, Callable[[bytes], bytes | None]] = {
    "pipe": lambda content: None,
    "empty": lambda content: b"",
    "half": lambda content: content[: len(content) // 2],
    "zeros": lambda content: bytes(len(content)),
    "list": lambda content: b"[]",
    "object": lambda content: b"{}",
    "deep": lambda content: b"[" * 100_000,
    "binary": lambda content: b"\xff\xfe\0" * 9,
}


def apply(damage: Callable[[bytes], bytes | None], path: Path) -> None:
    """Damage a file, or replace it by a named pipe."""
    content = damage(path.read_bytes())
    path.unlink()
    os.mkfifo(path) if content is None else path.write_bytes(content)


each_damage = pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """Return a folder with two runs; tests damage the newer one."""
    make_run(tmp_path, GOOD, ranks=2, seconds=20)
    make_run(tmp_path, BAD, ranks=2, seconds=20, created=1_767_355_200.0)
    (tmp_path / BAD / "supervisor.json").write_text('{"pid": 4194303, "started": 1.0}')
    return tmp_path


def list_ids(base: Path) -> tuple[set[str], str]:
    """Return the ids and the warnings of `orch runs`."""
    listing = operation.list_recorded_runs(base, None)
    return {row.id for row in listing.rows}, "\n".join(listing.warnings)


@pytest.mark.parametrize(
    "damage", [*DAMAGES.values(), lambda content: content.replace(BAD.encode(), b"x")], ids=[*DAMAGES, "another run"]
)
def test_damaged_plan_hides_no_other_run(base: Path, damage: Callable[[bytes], bytes | None]) -> None:
    path = base / BAD / "plan.json"
    apply(damage, path)
    ids, warnings = list_ids(base)
    assert ids == {GOOD}
    assert str(path) in warnings
    assert "orch clean" in warnings
    messages: list[str] = []
    assert store.find(base, GOOD, messages.append).id == GOOD
    assert str(path) in messages[0]
    with pytest.raises(RequestError, match=BAD):  # Do not silently fall back to the previous run.
        store.find(base, "last")
    with pytest.raises(OrchError, match="is damaged"):
        store.find(base, BAD)


def test_damaged_run_is_set_aside_with_all_files(base: Path) -> None:
    for target in (base / "damaged" / BAD, base / "damaged" / f"{BAD}.1"):
        (base / BAD / "plan.json").unlink()
        (base / BAD / "plan.json").mkdir()
        (damaged_run,) = store.recorded(base).damaged
        assert store.quarantine(damaged_run) == str(target)
        assert (target / "events.jsonl").exists()
        assert (list_ids(base), store.find(base, "last").id) == (({GOOD}, ""), GOOD)
        make_run(base, BAD)


def test_damaged_run_that_is_active_is_not_set_aside(base: Path) -> None:
    folder = base / BAD
    (folder / "plan.json").write_text("")
    (damaged_run,) = store.recorded(base).damaged
    variables = {**os.environ, "ORCH_RUN_DIR": str(folder)}
    with subprocess.Popen(["sleep", "60"], env=variables) as process:
        (folder / "supervisor.json").write_text(json.dumps({"pid": process.pid, "started": 1.0}))
        wait_until(lambda: run_processes(str(folder)) != [], "the process has its variables")
        moved = store.quarantine(damaged_run)
        report = find.add_local_results(Cleaned(), base, dry_run=False)
        process.kill()
    assert moved is None
    assert report.damaged == (DamagedRun(str(folder), "a process of this run may still be alive"),)


@each_damage
@pytest.mark.parametrize("name", ["outcome.json", "supervisor.json", "events.jsonl"])
def test_other_damaged_files_count_as_missing(base: Path, name: str, damage: Callable[[bytes], bytes | None]) -> None:
    path = base / BAD / name
    apply(damage, path)
    ids, warnings = list_ids(base)
    assert ids == {GOOD, BAD}
    assert (str(path) in warnings) == (name == "outcome.json")
    assert store.find(base, BAD).state == ("killed" if name == "outcome.json" else "done")


def test_run_whose_supervisor_ended_before_its_start_can_be_resumed(base: Path) -> None:
    folder = make_run(base, "20260102-120000-qa-0003", nodes=1, ended=False)
    for output, state in (("", "planned"), ("error: full", "killed")):
        (folder / "supervisor.log").write_text(output)
        assert store.load(folder).state == state


@given(position=st.floats(0, 1), removed=st.integers(0, 200), inserted=st.binary(max_size=40))
def test_any_damage_of_a_plan_hides_no_other_run(base: Path, position: float, removed: int, inserted: bytes) -> None:
    path = base / BAD / "plan.json"
    content = path.read_bytes()
    begin = int(len(content) * position)
    path.write_bytes(content[:begin] + inserted + content[begin + removed :])
    try:
        ids, warnings = list_ids(base)
        assert GOOD in ids
        assert BAD in ids or BAD in warnings
    finally:
        path.write_bytes(content)


# A node's list of its runs.


@each_damage
def test_damaged_record_hides_no_run_of_its_node(tmp_path: Path, damage: Callable[[bytes], bytes | None]) -> None:
    for run in (GOOD, BAD):
        folder = make_run(tmp_path, run)
        (folder / "plan.json").rename(folder / "run.json")
    path = tmp_path / BAD / "run.json"
    apply(damage, path)
    (tmp_path / "moved").mkdir()
    (tmp_path / "moved/run.json").write_text((tmp_path / GOOD / "run.json").read_text())
    listing = run_folders.list_runs(tmp_path)
    assert [run.record["run_id"] for run in listing.runs] == [GOOD]
    assert {run.folder for run in listing.damaged} == {BAD, "moved"}, "a record of another run is damaged"
    assert run_folders.set_aside(tmp_path / BAD) == str(tmp_path / "damaged" / BAD)
    assert [run.folder for run in run_folders.list_runs(tmp_path).damaged] == ["moved"]


DAMAGED_LINES = (
    '{"event": "progress", "rank": 1, "time": 1767268801.0, "step": "three"}',
    '{"event": "progress", "rank": 1, "time": 1767268801.0, "phase": "train", "loss": "low"}',
    '{"event": "progress", "rank": 0, "time": 1767268801.0, "step": 3}',
    '{"event": "exit", "rank": 0, "time": 1767268801.0}',
    "torn {",
    DEEP_EVENT,
    HUGE_NUMBER_EVENT,
)


def add_lines(folder: Path, *lines: str | bytes) -> store.Run:
    """Add lines to the event log of a run, and return the run."""
    with (folder / "events.jsonl").open("ab") as log:
        for line in lines:
            log.write((line.encode("utf-8", "surrogatepass") if isinstance(line, str) else line) + b"\n")
    return store.load(folder)


def make_page(base: Path) -> str:
    """Return the report page of the newest run."""
    return page.write(store.find(base, "last")).read_text()


def test_run_with_damaged_events_is_listed_shown_compared_and_reported(tmp_path: Path) -> None:
    folder = make_run(tmp_path, "run", ranks=2, nodes=1, seconds=12)
    assert outcome_of(store.load(folder)).notes == ()
    run = add_lines(folder, *DAMAGED_LINES, '{"event": "progress", "rank": 0, "time": 5.0, "step": "x"}')
    assert measures(run).began > STARTED, "a chart that begins in 1970 shows nothing"
    (row,) = list_recorded_runs(folder.parent, None).rows
    assert row.progress == "step 3"
    outcome = outcome_of(run)
    text = training.full_report(outcome)
    assert text.count("note: 2 events of rank 1 could not be read: progress: step is ") == 1
    assert "note: 3 events without a rank could not be read" in text
    assert outcome.notes[0] in json.loads(training.as_json(outcome))["notes"]
    assert "2 events of rank 1 could not be read" in make_page(folder.parent)
    assert comparison.text(comparison.compare(store.load(folder), store.load(folder)))


def test_run_with_logs_that_cannot_be_read_is_shown(tmp_path: Path) -> None:
    folder = make_run(tmp_path, "run", ranks=2, nodes=1, seconds=12, fails=1)
    for name in ("ranks/rank-1.log", files.LAUNCHER_LOG):
        os.mkfifo(folder / name)
    outcome = outcome_of(store.load(folder))
    assert "note: rank-1.log cannot be read: not a plain file" in training.full_report(outcome)
    (folder / "outcome.json").unlink()
    os.mkfifo(folder / files.SUPERVISOR_LOG)
    assert list_ids(tmp_path) == ({"run"}, "")


def make_small_run(factory: pytest.TempPathFactory, **files: bytes) -> Path:
    """Return the folder of a run in which these files have other contents."""
    folder = make_run(factory.mktemp("runs"), "run", ranks=2, nodes=1, seconds=5)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


@given(log=FILES, outcome=st.binary(max_size=200) | JSON.map(lambda value: json.dumps(value).encode()), figure=JSON)
def test_any_run_can_be_shown(log: bytes, outcome: bytes, figure: Any, tmp_path_factory: Any) -> None:
    sample = {"time": STARTED, "seconds": 0, "step": 1, "steps": 1}
    samples = [figure, sample, {**sample, "seconds": 1.0, "loss": figure}]
    figures = "".join(json.dumps(entry) + "\n" for entry in samples).encode()
    files = {"outcome.json": outcome, "supervisor.json": outcome, "ranks/rank-0.metrics.jsonl": figures}
    folder = make_small_run(tmp_path_factory, **files)
    run = add_lines(folder, log)
    rows = list_recorded_runs(folder.parent, None).rows
    assert listing.table([{"progress": row.progress} for row in rows], ["progress"])
    training.full_report(outcome_of(run))
    json.loads(training.as_json(outcome_of(run)))
    assert all(sample.seconds > 0 for rank in measures(run).ranks for sample in rank.samples)
    make_page(folder.parent)
    comparison.text(comparison.compare(store.load(folder), store.load(folder)))
    screen = live.Screen()
    for event in chain.from_iterable(follow(run.folder, LocalRun(run.folder), ranks=2)):
        screen.show(event)


def test_extreme_numbers_can_be_shown_in_a_progress_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = io.StringIO()
    terminal.isatty = lambda: True  # type: ignore[method-assign]
    monkeypatch.setattr("sys.stderr", terminal)
    for step, steps in ((1e308, 1e308), (1e308, 1e-300), (-1e308, 0), (None, 2**63)):
        screen = live.Screen()
        assert not screen.progress.disable
        for values in ({"step": step, "steps": steps}, {"step": steps, "steps": step}):
            screen.show(Progress(rank=0, phase="train", loss=float("nan"), **values))
        screen.progress.refresh()
        screen.end()


@given(lines=st.lists(LINES | TEXTS.map(lambda text: f"[1] {text}") | TEXTS, max_size=6))
def test_any_pod_log_can_be_copied(lines: list[str], tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = make_small_run(tmp_path_factory)
    copy = RunCopy(folder, ranks=2)
    for line in lines:
        copy.write(ReadLine("uid", line.replace("\n", " ")))
    assert kubernetes_outcome(store.load(folder).events(), [], JobState(state="failed"), began=0.0, now=1.0).state
    training.full_report(outcome_of(store.load(folder)))
