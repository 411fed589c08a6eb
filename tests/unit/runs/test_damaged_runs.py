"""Damaged files of a run do not hide the other runs or cause internal errors."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from orch_node.agent import damaged_runs, list_runs
from orch_node.protocol.events import UnreadableEvent

from orchestrator.errors import OrchError, RequestError
from orchestrator.files import ConfinedFolder, write_whole
from orchestrator.load.inventory import read_cached_listing
from orchestrator.operations import runs as operation
from orchestrator.operations.train import unreadable_runs
from orchestrator.planning.request import TrainRequest
from orchestrator.runs import damaged, resume, store
from orchestrator.runs.state_files import supervises
from orchestrator.state import State, describe_holder
from tests.support.recorded import make_run

GOOD, BAD = "20260101-120000-qa-0000", "20260102-120000-qa-0001"
HARM: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda old: b"",
    "half": lambda old: old[: len(old) // 2],
    "zeros": lambda old: bytes(len(old)),
    "list": lambda old: b"[]",
    "object": lambda old: b"{}",
    "deep": lambda old: b"[" * 100_000,
    "binary": lambda old: b"\xff\xfe\0" * 9,
}


@pytest.fixture
def base(tmp_path: Path) -> Path:
    make_run(tmp_path, GOOD, ranks=2, seconds=20)
    make_run(tmp_path, BAD, ranks=2, seconds=20, created=1_767_355_200.0)
    (tmp_path / BAD / "supervisor.json").write_text('{"pid": 4194303, "started": 1.0}')
    return tmp_path


def shown(base: Path) -> tuple[set[str], str]:
    listing = operation.list_recorded_runs(base, None)
    return {row.id for row in listing.rows}, "\n".join(listing.warnings)


@pytest.mark.parametrize("harm", HARM)
def test_a_damaged_plan_hides_no_other_run(base: Path, harm: str) -> None:
    path = base / BAD / "plan.json"
    path.write_bytes(HARM[harm](path.read_bytes()))
    rows, warnings = shown(base)
    assert rows == {GOOD}
    assert str(path) in warnings
    assert "orch clean" in warnings
    messages: list[str] = []
    assert store.find(base, GOOD, messages.append).id == GOOD
    assert str(path) in messages[0]
    with pytest.raises(RequestError, match=BAD):  # Do not silently fall back to the previous run.
        store.find(base, "last")
    with pytest.raises(OrchError, match="is damaged"):
        store.find(base, BAD)
    assert store.unfinished(base, "k") is None


def test_a_run_that_may_not_be_carried_on_for_its_damage_is_named(base: Path) -> None:
    (base / BAD / "plan.json").write_text("")
    request = TrainRequest(recipe="qa", runs_dir=base)
    assert [BAD in line for line in unreadable_runs(request)] == [True]
    assert list(unreadable_runs(replace(request, fresh=True))) == []


@pytest.mark.parametrize("kind", ["folder", "link to nothing", "unreadable"])
def test_a_plan_that_is_no_file_hides_no_other_run(base: Path, kind: str) -> None:
    path = base / BAD / "plan.json"
    path.unlink()
    if kind == "folder":
        path.mkdir()
    elif kind == "link to nothing":
        path.symlink_to(path)
    else:
        path.touch(mode=0)
    assert shown(base)[0] == {GOOD}


def test_a_damaged_run_is_moved_away_and_nothing_of_it_is_lost(base: Path) -> None:
    (base / BAD / "plan.json").write_text("")
    (damaged_run,) = store.recorded(base).damaged
    target = damaged.set_aside(damaged_run)
    assert target == base / "damaged" / BAD
    assert (target / "events.jsonl").exists()
    assert (shown(base), store.find(base, "last").id) == (({GOOD}, ""), GOOD)
    make_run(base, BAD)
    (base / BAD / "plan.json").write_text("")
    (recreated_run,) = store.recorded(base).damaged
    assert damaged.set_aside(recreated_run) == base / "damaged" / f"{BAD}.1"


def test_a_damaged_run_that_lives_stays_where_it_is(base: Path) -> None:
    """Find its supervisor by the folder's name among the arguments of its process."""
    (base / BAD / "plan.json").write_text("")
    (damaged_run,) = store.recorded(base).damaged
    program = ("-c", "import time; time.sleep(60)", "supervise", str(base / BAD))
    with subprocess.Popen([sys.executable, *program]) as process:
        text = json.dumps({"pid": process.pid, "started": 1.0})
        (base / BAD / "supervisor.json").write_text(text)
        while not supervises(process.pid, base / BAD) and process.poll() is None:
            time.sleep(0.01)  # A process that has just started has no arguments yet.
        moved = damaged.set_aside(damaged_run)
        process.kill()
    assert moved is None


@pytest.mark.parametrize("harm", HARM)
@pytest.mark.parametrize("name", ["outcome.json", "supervisor.json", "events.jsonl"])
def test_other_damaged_files_of_a_run_count_as_not_there(base: Path, name: str, harm: str) -> None:
    path = base / BAD / name
    path.write_bytes(HARM[harm](path.read_bytes()))
    rows, warnings = shown(base)
    assert rows == {GOOD, BAD}
    assert (str(path) in warnings) == (name == "outcome.json")
    run = store.find(base, BAD)
    assert run.state == ("killed" if name == "outcome.json" else "done")


def test_a_torn_line_among_events_is_left_out(base: Path) -> None:
    path = base / BAD / "events.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:3], b'{"event": "prog\n', b"\n", b"\xff\n", *lines[3:]]))
    events = store.find(base, BAD).events()
    assert len([event for event in events if not isinstance(event, UnreadableEvent)]) == len(lines)
    assert shown(base)[0] == {GOOD, BAD}


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    name=st.sampled_from(["plan.json", "outcome.json", "supervisor.json", "events.jsonl"]),
    at=st.floats(0, 1),
    cut=st.integers(0, 200),
    put=st.binary(max_size=40),
)
def test_any_damage_of_one_run_leaves_the_other(base: Path, name: str, at: float, cut: int, put: bytes) -> None:
    path = base / BAD / name
    content = path.read_bytes()
    begin = int(len(content) * at)
    path.write_bytes(content[:begin] + put + content[begin + cut :])
    try:
        rows, warnings = shown(base)
        assert GOOD in rows
        assert BAD in rows or BAD in warnings
        resume.store.unfinished(base, "k")
    finally:
        path.write_bytes(content)


# A node's list of its runs.


@pytest.mark.parametrize("harm", HARM)
def test_a_damaged_record_hides_no_run_of_its_node(tmp_path: Path, harm: str) -> None:
    for run in (GOOD, BAD):
        folder = make_run(tmp_path, run)
        (folder / "plan.json").rename(folder / "run.json")
    path = tmp_path / BAD / "run.json"
    path.write_bytes(HARM[harm](path.read_bytes()))
    listing = list_runs.list_runs(tmp_path)
    assert [listed.record["run_id"] for listed in listing.runs] == [GOOD]
    assert [damaged.folder for damaged in listing.damaged] == [BAD]
    assert [damaged.folder for damaged in damaged_runs.find_damaged(tmp_path)] == [BAD]
    assert damaged_runs.set_aside(tmp_path / BAD) == str(tmp_path / "damaged" / BAD)
    assert list_runs.list_runs(tmp_path).damaged == ()


def test_a_record_of_another_run_is_damage(tmp_path: Path) -> None:
    folder = make_run(tmp_path, GOOD)
    (folder / "plan.json").rename(folder / "run.json")
    folder.rename(tmp_path / BAD)
    assert [run.folder for run in list_runs.list_runs(tmp_path).damaged] == [BAD]


# The files that this machine stores.


@pytest.mark.parametrize("text", ["", "{", "[]", "7", '{"hosts": {}}', "[" * 100_000])
def test_what_was_remembered_and_is_damaged_is_asked_anew(tmp_path: Path, text: str) -> None:
    path = tmp_path / "remembered.json"
    path.write_text(text)
    assert read_cached_listing(path) is None
    assert describe_holder(text) == "unknown process"


def test_a_token_that_was_torn_is_made_anew(tmp_path: Path) -> None:
    state = State(folder=tmp_path)
    first = state.owner("x")["token"]
    assert state.owner("x")["token"] == first
    (tmp_path / "token").write_text("")
    assert len(state.owner("x")["token"]) == 32


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_whole(path, "old")
    with pytest.raises(UnicodeEncodeError):
        write_whole(path, "new\ud800")
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match="folder"):
        write_whole(tmp_path / "folder", "new")
    assert (path.read_text(), sorted(os.listdir(tmp_path))) == ("old", ["file", "folder"])


@pytest.mark.parametrize("kind", ["pipe", "hard link", "folder"])
def test_only_plain_files_of_its_own_are_written_below_a_folder(tmp_path: Path, kind: str) -> None:
    folder, outside_file = tmp_path / "r", tmp_path / "mine"
    folder.mkdir()
    outside_file.write_text("mine")
    if kind == "pipe":
        os.mkfifo(folder / "x")
    elif kind == "hard link":
        os.link(outside_file, folder / "x")
    else:
        (folder / "x").mkdir()
    with pytest.raises(OSError, match="x"):
        ConfinedFolder(folder).add("x", b"evil", 0)
    assert outside_file.read_text() == "mine"
