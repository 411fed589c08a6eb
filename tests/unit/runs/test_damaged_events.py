"""Damaged events are skipped, counted and reported."""

from __future__ import annotations

import io
import json
import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from orch_node.agent import list_runs
from orch_node.pod import relay
from orch_node.protocol import events, failures, outcome
from orch_node.protocol import listing as listings
from orch_node.protocol.events import (
    Event,
    Exited,
    Progress,
    Stalled,
    Started,
    UnreadableEvent,
    UnreadableEvents,
    parse,
)
from orch_node.protocol.listing import ListedRun
from orch_node.protocol.values import ProtocolError
from orch_node.supervisor.rank_tracker import RankTracker

from orchestrator.operations.report import comparison, report
from orchestrator.operations.runs import list_recorded_runs
from orchestrator.report import comparison as comparisons
from orchestrator.report import listing, live, training
from orchestrator.runs import explanations, store
from orchestrator.runs.events import events_in
from orchestrator.runs.follow import LocalRun, follow
from orchestrator.runs.measures import measures
from orchestrator.runs.outcome import outcome_of
from orchestrator.targets.kubernetes.follow import ReadLine
from orchestrator.targets.kubernetes.local_copy import RunCopy
from orchestrator.targets.kubernetes.log_lines import Position
from orchestrator.targets.kubernetes.log_lines import parse as parse_pod_line
from orchestrator.targets.kubernetes.outcome import outcome as kube_outcome
from orchestrator.targets.kubernetes.status import JobState
from tests.support.recorded import STARTED, make_run
from tests.unit.hostile import DEEP, FILES, HUGE, JSON, LINES, TEXTS
from tests.unit.orch_node.test_on_nodes import layout

FEW = settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.mark.parametrize(
    ("line", "rank", "words"),
    [
        ('{"event": "progress", "rank": 1, "step": "three"}', 1, "progress: step is 'three', not"),
        ('{"event": "progress", "rank": 1, "loss": "1.5"}', 1, "progress: loss is '1.5', not"),
        ('{"event": "progress", "rank": 1, "step": NaN}', 1, "progress: step is nan, not"),
        ('{"event": "progress", "rank": "1"}', -1, "progress: rank is '1', not a whole number"),
        ('{"event": "progress", "rank": -2}', -1, "progress: rank -2"),
        ('{"event": "exit", "rank": 0, "code": 1e400}', 0, "exit: code is inf, not"),
        ('{"event": "joined", "rank": 0, "time": -5}', 0, "joined: time -5"),
        ('{"event": "joined", "rank": 0, "time": 1e300}', 0, "joined: time 1e+300"),
        ('{"event": "joined", "rank"', -1, "not valid JSON"),
        ('{"event": 7, "rank": 0}', 0, "an event must have a name"),
        (DEEP, -1, "nested"),
        (HUGE, -1, "digits"),
        ('{"event": "x", "rank": 0, "text": "' + "x" * (1 << 25) + '"}', -1, "more than 16777216 bytes"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_damaged_event_says_what_is_wrong(line: str, rank: int, words: str) -> None:
    result = parse(line)
    assert isinstance(result, UnreadableEvent)
    assert result.rank == rank
    assert words in result.text
    assert len(result.text) < 300


def test_words_of_a_launcher_are_no_damage() -> None:
    for line in ("words", "{torn", "[]", "null", "{}", '{"a": "event"}', "\x00\xff", b"\xff\xfe"):
        assert parse(line) is None


def test_a_loss_that_is_no_number_any_more_is_told() -> None:
    """Keep the NaN, because it is what the user of the script must see."""
    result = parse('{"event": "progress", "rank": 0, "step": 3, "loss": NaN}')
    assert isinstance(result, Progress)
    assert result.loss is not None
    assert math.isnan(result.loss)


@settings(max_examples=300, deadline=None)
@given(line=LINES | st.binary(max_size=100))
def test_no_line_raises_and_what_is_read_can_be_written(line: str | bytes) -> None:
    event = parse(line)
    if event is not None:
        reread = parse(events.render(event))
        assert events.render(reread or UnreadableEvent()) == events.render(event)  # NaN differs from itself.


@settings(max_examples=200, deadline=None)
@given(lines=st.lists(LINES, max_size=8))
def test_no_line_harms_who_watches_the_ranks(lines: list[str]) -> None:
    tracker = RankTracker(layout("node0", "node1"), 0.0)
    for event in map(parse, lines):
        if event is not None and tracker.knows(event.rank):
            tracker.add_event(event, 1.0)
    assert isinstance(tracker.describe_missing_ranks(), str)
    assert tracker.first_failure() is None or tracker.failed
    assert tracker.undecided() in (True, False)


@settings(max_examples=100, deadline=None)
@given(text=TEXTS, signal=st.none() | TEXTS)
def test_last_words_never_harm_who_judges_them(text: str, signal: str | None) -> None:
    rank_events = [Exited(rank=0, text=text, code=1, signal=signal), Exited(rank=1, code=1)]
    assert failures.first_failure(failures.rank_ends(rank_events), {})
    explanations.explain(text)


def test_a_rank_of_many_digits_is_none() -> None:
    text = f"error: rank {'9' * 6000} on x"
    assert failures.rank_ends([Exited(rank=0, text=text, signal="SIGABRT")])[0].is_consequence in (True, False)


# How skipped events are counted and described.


def test_what_was_left_out_is_told_once_by_rank() -> None:
    tally = UnreadableEvents()
    for text in ("progress: step is 'x', not a number", "progress: step is 'x', not a number"):
        tally.add(UnreadableEvent(rank=1, text=text))
    tally.add(UnreadableEvent(rank=-1, count=2, text="not valid JSON"))
    assert tally.describe_all() == [
        "note: 2 events without a rank could not be read: not valid JSON",
        "note: 2 events of rank 1 could not be read: progress: step is 'x', not a number",
    ]
    assert [event.count for event in tally.events()] == [2, 2]


def test_of_many_reasons_a_few_are_told() -> None:
    tally = UnreadableEvents()
    for number in range(100):
        tally.add(UnreadableEvent(rank=0, text=f"reason {number}"))
    (message,) = tally.describe_all()
    assert message.startswith("note: 100 events of rank 0")
    assert message.endswith("reason 0; reason 1; reason 2; and others")
    assert len(tally.reasons[0]) < 5


def test_lines_of_an_event_log(tmp_path: Path) -> None:
    lines = [b'{"event": "exit", "rank": 1}', b"", b"[]", b"\xff", b'{"event": "exit", "rank": 7}']
    result = list(events_in(lines, ranks=2))
    assert result[0] == Exited(rank=1)
    assert [type(event) for event in result[1:]] == [UnreadableEvent] * 4
    assert "rank 7" in repr(result[-1])


def damaged(tmp_path: Path, *lines: str | bytes) -> store.Run:
    folder = make_run(tmp_path, "run", ranks=2, nodes=1, seconds=12)
    with (folder / "events.jsonl").open("ab") as log:
        for line in lines:
            log.write(line.encode("utf-8", "surrogatepass") if isinstance(line, str) else line)
            log.write(b"\n")
    return store.load(folder)


BAD = (
    '{"event": "progress", "rank": 1, "time": 1767268801.0, "step": "three"}',
    '{"event": "progress", "rank": 1, "time": 1767268801.0, "phase": "train", "loss": "low"}',
    '{"event": "progress", "rank": 0, "time": 1767268801.0, "step": 3}',
    '{"event": "exit", "rank": 0, "time": 1767268801.0}',
    "torn {",
    DEEP,
    HUGE,
)


def test_a_run_with_damaged_events_is_listed_shown_compared_and_reported(tmp_path: Path) -> None:
    """Handle lines that can end `orch runs` with an internal error."""
    run = damaged(tmp_path, *BAD)
    (row,) = list_recorded_runs(tmp_path, None).rows
    assert row.progress == "3/?"
    outcome = outcome_of(run)
    text = training.full_report(outcome)
    note = "note: 2 events of rank 1 could not be read: progress: step is "
    assert text.count(note) == 1
    assert "note: 3 events without a rank could not be read" in text
    assert outcome.notes[0] in json.loads(training.as_json(outcome))["notes"]
    page = report(tmp_path, ["last"], inventory=None, output=None, notify=print).read_text()
    assert "2 events of rank 1 could not be read" in page
    assert comparisons.text(comparison(tmp_path, "last", "last"))


def test_the_time_of_a_damaged_event_is_none_of_the_runs(tmp_path: Path) -> None:
    """Ignore such a time, because a chart that begins in 1970 shows nothing."""
    run = damaged(tmp_path, '{"event": "progress", "rank": 0, "time": 5.0, "step": "x"}')
    assert measures(run).began > STARTED
    assert all(event.time > STARTED for event in measures(run).events)


def test_a_run_without_damage_has_no_notes(tmp_path: Path) -> None:
    make_run(tmp_path, "run", ranks=2, nodes=1, seconds=12)
    assert outcome_of(store.find(tmp_path, "last")).notes == ()


def test_progress_without_a_phase_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    screen = live.Screen()
    screen.show(Progress(rank=0, step=3, loss=float("nan")))
    screen.show(Progress(rank=0, phase="[/x]", step=1e300, steps=0))
    screen.show(Stalled(text="x", stands={"zero": "a", "1": "b", "9" * 5000: "c"}))
    output = capsys.readouterr().err
    assert "progress: 3/? loss nan" in output
    assert "[/x]: " in output


@FEW
@given(content=FILES)
def test_no_event_log_ends_what_reads_runs(content: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    base = tmp_path_factory.mktemp("runs")
    run = damaged(base, content)
    assert listing.table([{"progress": row.progress} for row in list_recorded_runs(base, None).rows], ["progress"])
    outcome = outcome_of(run)
    training.full_report(outcome)
    json.loads(training.as_json(outcome))
    report(base, ["last"], inventory=None, output=None, notify=print)
    comparisons.text(comparison(base, "last", "last"))
    screen = live.Screen()
    for event in follow(run.folder, LocalRun(run.folder), ranks=2):
        screen.show(event)


@FEW
@given(lines=st.lists(LINES | TEXTS.map(lambda text: f"[1] {text}") | TEXTS, max_size=6))
def test_no_log_of_a_pod_ends_what_follows_it(lines: list[str], tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = make_run(tmp_path_factory.mktemp("runs"), "run", ranks=2, nodes=1, seconds=5)
    copy = RunCopy(folder, ranks=2)
    for line in lines:
        copy.write(ReadLine(pod="uid", position=Position(), text=line.replace("\n", " ")))
    pod_events = store.load(folder).events()
    assert kube_outcome(pod_events, [], JobState(state="failed"), began=0.0, now=1.0).state
    training.full_report(outcome_of(store.load(folder)))


def test_lines_of_a_pod_that_are_no_ranks() -> None:
    for line in (f"[{'9' * 5000}] x", "[7] x", '{"metrics": true, "line": ""}', '{"metrics": -1}'):
        assert parse_pod_line(line, ranks=2).file == "launcher.log"
    result = parse_pod_line('{"event": "progress", "rank": 1, "step": "x"}', ranks=2)
    assert isinstance(result.event, UnreadableEvent)
    assert (result.file, result.rank) == ("events.jsonl", None)


@FEW
@given(content=st.binary(max_size=200) | JSON.map(lambda value: json.dumps(value).encode()))
def test_no_outcome_ends_what_reads_runs(content: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = make_run(tmp_path_factory.mktemp("runs"), "run", ranks=2, nodes=1, seconds=5)
    (folder / "outcome.json").write_bytes(content)
    (folder / "supervisor.json").write_bytes(content)
    run = store.load(folder)
    assert run.state in ("killed", "running") or run.outcome
    training.text(outcome_of(run))
    json.loads(training.as_json(outcome_of(run)))


def test_a_damaged_outcome_is_told(tmp_path: Path) -> None:
    folder = make_run(tmp_path, "run", ranks=2, nodes=1, seconds=5)
    (folder / "outcome.json").write_text('{"state": 7}')
    outcome = outcome_of(store.load(folder))
    assert outcome.state == "killed"
    (note,) = outcome.notes
    assert note.endswith("outcome.json is damaged, and left out: outcome.json: state is 7, not text.")
    assert outcome.exit_code == 1


def test_files_that_may_not_be_read_are_told(tmp_path: Path) -> None:
    folder = make_run(tmp_path, "run", ranks=2, nodes=1, seconds=5)
    names = ("events.jsonl", "outcome.json", "supervisor.json", "ranks/rank-0.metrics.jsonl")
    for name in names:
        (folder / name).unlink(missing_ok=True)
        (folder / name).mkdir()
    outcome = outcome_of(store.load(folder))
    assert outcome.state == "killed"
    assert "events.jsonl: Is a directory" in outcome.notes[-1]
    assert list_recorded_runs(tmp_path, None).rows
    assert measures(store.load(folder)).ranks[0].samples == ()


@pytest.mark.parametrize("pid", [-1, 0, 1, 2**40])
def test_no_process_that_is_no_supervisors_is_ever_signalled(pid: int) -> None:
    """Reject these ids: kill(-1) signals all processes of a user and kill(0) those of a group."""
    with pytest.raises(ProtocolError, match="pid"):
        outcome.parse_supervisor(json.dumps({"pid": pid, "started": 1.0}))


@pytest.mark.parametrize("value", ["NaN", "1e999", "-1e999"])
def test_times_of_an_outcome_are_numbers(value: str) -> None:
    with pytest.raises(ProtocolError, match="ended"):
        outcome.parse('{"state": "done", "started": 1.0, "ended": VALUE}'.replace("VALUE", value))


def test_an_outcome_of_a_later_version_is_read() -> None:
    assert outcome.parse('{"state": "done", "colour": "green"}').state == "done"


@settings(max_examples=30, deadline=None)
@given(line=JSON)
def test_no_line_of_figures_harms_a_report(line: Any, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = make_run(tmp_path_factory.mktemp("runs"), "run", ranks=1, nodes=1, seconds=3)
    with (folder / "ranks" / "rank-0.metrics.jsonl").open("w", encoding="utf-8") as file:
        figures = {"time": STARTED, "seconds": 0, "step": 1, "steps": 1}
        more = [line, figures, {**figures, "seconds": 1.0, "loss": line}]
        file.write("".join(json.dumps(entry) + "\n" for entry in more))
    result = measures(store.find(folder.parent, "last"))
    assert all(sample.seconds > 0 for rank in result.ranks for sample in rank.samples)
    report(folder.parent, ["last"], inventory=None, output=None, notify=print)


def test_who_is_signalled_in_a_pod_has_a_process_id() -> None:
    for started in (Started(rank=0), Started(rank=0, pid=1, wrapper=-1), Started(pid=2**40)):
        assert not started.has_processes
    assert Started(rank=0, pid=12, wrapper=11).has_processes
    assert replace(Started(rank=0, pid=12, wrapper=11), rank=1).has_processes


def test_no_kind_is_without_a_reader() -> None:
    assert issubclass(UnreadableEvent, Event)
    assert parse(events.render(UnreadableEvent(rank=1, count=2, text="x"))) == UnreadableEvent(
        rank=1, count=2, text="x"
    )


@FEW
@given(content=FILES)
def test_what_a_node_knows_of_its_runs_can_be_read_here(
    content: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = make_run(tmp_path_factory.mktemp("runs"), "run", ranks=2, nodes=1, seconds=5)
    for name in ("events.jsonl", "outcome.json", "supervisor.json"):
        (folder / name).write_bytes(content)
    listed_run = ListedRun({}, list_runs.state_of(folder), list_runs.last_progress(folder / "events.jsonl"))
    assert len(listings.parse(listings.render(listings.Listing((listed_run,)))).runs) == 1


@FEW
@given(content=FILES)
def test_a_pod_tells_what_it_can_of_a_run(
    content: bytes, tmp_path_factory: pytest.TempPathFactory, capfdbinary: Any
) -> None:
    folder = make_run(tmp_path_factory.mktemp("runs"), "run", ranks=2, nodes=1, seconds=5)
    for name in ("events.jsonl", "outcome.json", "ranks/rank-0.log"):
        (folder / name).write_bytes(content)
    tail = relay.Relay(folder, ranks=None)
    tail.finish()
    sys.stdout.flush()
    for line in capfdbinary.readouterr().out.split(b"\n"):
        parse_pod_line(line.decode(errors="replace"), ranks=2)


NUMBERS = st.none() | st.floats(allow_nan=False, allow_infinity=False) | st.integers(-9, 2**63)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@example(step=1e308, steps=1e308, loss=1.0, phase="x")
@example(step=1e308, steps=1e-300, loss=1.0, phase="x")
@example(step=-1e308, steps=0, loss=1.0, phase="x")
@given(step=NUMBERS, steps=NUMBERS, loss=NUMBERS | st.just(float("nan")), phase=st.none() | TEXTS)
def test_no_number_breaks_the_bars_of_a_terminal(
    step: float | None, steps: float | None, loss: float | None, phase: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = io.StringIO()
    terminal.isatty = lambda: True  # type: ignore[method-assign]
    monkeypatch.setattr("sys.stderr", terminal)
    screen = live.Screen()
    assert not screen.progress.disable
    screen.begin([])
    try:
        screen.show(Progress(rank=0, phase=phase, step=step, steps=steps, loss=loss))
        screen.show(Progress(rank=0, phase=phase, step=steps, steps=step, loss=loss))
        screen.progress.refresh()
    finally:
        screen.end()
