"""Damaged files of a run do not hide the other runs or cause internal errors."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from orch_node.agent import damaged_runs, list_runs
from orch_node.protocol.events import UnreadableEvent

from orchestrator.errors import OrchError, RequestError
from orchestrator.load.inventory import read_cached_listing
from orchestrator.operations import runs as operation
from orchestrator.runs import damaged, store
from orchestrator.runs.state_files import supervises
from orchestrator.state import describe_holder
from tests.support.recorded import make_run
from tests.support.waiting import wait_until

GOOD, BAD = "20260101-120000-qa-0000", "20260102-120000-qa-0001"
DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda content: b"",
    "half": lambda content: content[: len(content) // 2],
    "zeros": lambda content: bytes(len(content)),
    "list": lambda content: b"[]",
    "object": lambda content: b"{}",
    "deep": lambda content: b"[" * 100_000,
    "binary": lambda content: b"\xff\xfe\0" * 9,
}
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


@each_damage
def test_damaged_plan_hides_no_other_run(base: Path, damage: Callable[[bytes], bytes]) -> None:
    path = base / BAD / "plan.json"
    path.write_bytes(damage(path.read_bytes()))
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


@pytest.mark.parametrize("kind", ["folder", "link to nothing", "unreadable"])
def test_plan_that_is_no_readable_file_hides_no_other_run(base: Path, kind: str) -> None:
    path = base / BAD / "plan.json"
    path.unlink()
    if kind == "folder":
        path.mkdir()
    elif kind == "link to nothing":
        path.symlink_to(path)
    else:
        path.touch(mode=0)
    assert list_ids(base)[0] == {GOOD}


def test_damaged_run_is_set_aside_with_all_files(base: Path) -> None:
    for target in (base / "damaged" / BAD, base / "damaged" / f"{BAD}.1"):
        (base / BAD / "plan.json").write_text("")
        (damaged_run,) = store.recorded(base).damaged
        assert damaged.set_aside(damaged_run) == target
        assert (target / "events.jsonl").exists()
        assert (list_ids(base), store.find(base, "last").id) == (({GOOD}, ""), GOOD)
        make_run(base, BAD)


def test_damaged_run_that_is_active_is_not_set_aside(base: Path) -> None:
    """Use a folder name of this test only, because a supervisor is found by it among all processes."""
    folder = (base / BAD).rename(base / "20260102-120000-qa-0002")
    (folder / "plan.json").write_text("")
    (damaged_run,) = store.recorded(base).damaged
    program = ("-c", "import time; time.sleep(60)", "supervise", str(folder))
    with subprocess.Popen([sys.executable, *program]) as process:
        text = json.dumps({"pid": process.pid, "started": 1.0})
        (folder / "supervisor.json").write_text(text)
        wait_until(lambda: supervises(process.pid, folder), "the process has its arguments")
        moved = damaged.set_aside(damaged_run)
        process.kill()
    assert moved is None


@each_damage
@pytest.mark.parametrize("name", ["outcome.json", "supervisor.json", "events.jsonl"])
def test_other_damaged_files_count_as_missing(base: Path, name: str, damage: Callable[[bytes], bytes]) -> None:
    path = base / BAD / name
    path.write_bytes(damage(path.read_bytes()))
    ids, warnings = list_ids(base)
    assert ids == {GOOD, BAD}
    assert (str(path) in warnings) == (name == "outcome.json")
    assert store.find(base, BAD).state == ("killed" if name == "outcome.json" else "done")


def test_torn_line_among_events_is_skipped(base: Path) -> None:
    path = base / BAD / "events.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:3], b'{"event": "prog\n', b"\n", b"\xff\n", *lines[3:]]))
    events = store.find(base, BAD).events()
    assert len([event for event in events if not isinstance(event, UnreadableEvent)]) == len(lines)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    name=st.sampled_from(["plan.json", "outcome.json", "supervisor.json", "events.jsonl"]),
    position=st.floats(0, 1),
    removed=st.integers(0, 200),
    inserted=st.binary(max_size=40),
)
def test_any_damage_of_a_run_hides_no_other_run(
    base: Path, name: str, position: float, removed: int, inserted: bytes
) -> None:
    path = base / BAD / name
    content = path.read_bytes()
    begin = int(len(content) * position)
    path.write_bytes(content[:begin] + inserted + content[begin + removed :])
    try:
        ids, warnings = list_ids(base)
        assert GOOD in ids
        assert BAD in ids or BAD in warnings
        store.recorded(base)
    finally:
        path.write_bytes(content)


# A node's list of its runs.


@each_damage
def test_damaged_record_hides_no_run_of_its_node(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    for run in (GOOD, BAD):
        folder = make_run(tmp_path, run)
        (folder / "plan.json").rename(folder / "run.json")
    path = tmp_path / BAD / "run.json"
    path.write_bytes(damage(path.read_bytes()))
    listing = list_runs.list_runs(tmp_path)
    assert [run.record["run_id"] for run in listing.runs] == [GOOD]
    assert [run.folder for run in listing.damaged] == [BAD]
    assert [run.folder for run in damaged_runs.find_damaged(tmp_path)] == [BAD]
    assert damaged_runs.set_aside(tmp_path / BAD) == str(tmp_path / "damaged" / BAD)
    assert list_runs.list_runs(tmp_path).damaged == ()


def test_record_of_another_run_is_damaged(tmp_path: Path) -> None:
    folder = make_run(tmp_path, GOOD)
    (folder / "plan.json").rename(folder / "run.json")
    folder.rename(tmp_path / BAD)
    assert [run.folder for run in list_runs.list_runs(tmp_path).damaged] == [BAD]


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "7", '{"hosts": {}}', "[" * 100_000],
    ids=["empty", "torn", "list", "number", "no variables", "deep"],
)
def test_damaged_cache_is_ignored(tmp_path: Path, text: str) -> None:
    path = tmp_path / "cache.json"
    path.write_text(text)
    assert read_cached_listing(path) is None
    assert describe_holder(text) == "unknown process"
