from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from orch_node import machine
from orch_node.machine import Machine, ProcessIdentity
from orch_node.protocol.outcome import SupervisorProcess, render_supervisor

from orchestrator.targets.connections import mirror
from orchestrator.targets.connections.mirror import ABSENCES, Mirror


class Folder:
    """A run on another node, as a folder here; `alive` answers what it is told to."""

    def __init__(self, base: Path, answers: list[bool]) -> None:
        self.base = base
        self.answers = answers

    def read(self, path: str, offset: int = 0, most: int | None = None) -> bytes | None:
        file = Path(path)
        return file.read_bytes()[offset:][:most] if file.exists() else None

    def size(self, path: str) -> int:
        return Path(path).stat().st_size if Path(path).exists() else 0

    def list(self, folder: str) -> list[str]:
        return sorted(path.name for path in Path(folder).glob("*"))

    def alive(self, pid: int, marker: str) -> bool:
        return self.answers.pop(0)

    def terminate(self, pid: int) -> None:
        raise AssertionError("nobody asked for this")


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirror, "PROBE_SECONDS", 0.0)


def test_only_new_bytes_are_copied(tmp_path: Path) -> None:
    far, here = tmp_path / "far", tmp_path / "here"
    far.mkdir()
    (far / "events.jsonl").write_text("one\n")
    copy = Mirror(Folder(far, []), str(far), here, ranks=1)
    copy.refresh()
    (far / "events.jsonl").write_text("one\ntwo\n")
    (far / "outcome.json").write_text("{}")
    copy.refresh()
    assert (here / "events.jsonl").read_text() == "one\ntwo\n"
    assert (here / "outcome.json").read_text() == "{}"


def test_two_that_watch_a_run_at_once_bring_each_byte_once(tmp_path: Path) -> None:
    far, here = tmp_path / "far", tmp_path / "here"
    far.mkdir()
    events = far / "events.jsonl"
    events.write_text("one\n")
    other = Mirror(Folder(far, []), str(far), here, ranks=1)

    class Slow(Folder):
        """Between its answer and what is done with it, the other one is quicker."""

        def read(self, path: str, offset: int = 0, most: int | None = None) -> bytes | None:
            found = super().read(path, offset, most)
            with events.open("a") as file:
                file.write("more\n")
            other.refresh()
            return found

    slow = Mirror(Slow(far, []), str(far), here, ranks=1)
    for _ in range(3):
        slow.append("events.jsonl")
    other.refresh()
    assert (here / "events.jsonl").read_text() == events.read_text()


def test_one_missed_answer_is_not_a_death(tmp_path: Path) -> None:
    answers = [True, False, True, *[False] * ABSENCES]
    copy = Mirror(Folder(tmp_path, answers), str(tmp_path), tmp_path, ranks=1)
    seen = [copy.lost(7) for _ in range(3 + ABSENCES)]
    assert seen == [False] * (2 + ABSENCES) + [True]


@pytest.mark.parametrize(
    ("host", "lost"),
    [
        pytest.param(machine.this_machine(), True, id="same-host"),
        pytest.param(replace(machine.this_machine(), boot="b", host="login2"), False, id="another"),
        pytest.param(Machine(), False, id="unrecorded"),
    ],
)
def test_supervisor_is_lost_only_if_the_connection_leads_to_its_host(tmp_path: Path, host: Machine, lost: bool) -> None:
    identity = ProcessIdentity(machine=host, pid=7, start=1)
    text = render_supervisor(SupervisorProcess(pid=7, identity=identity))
    (tmp_path / "supervisor.json").write_text(text)
    copy = Mirror(Folder(tmp_path, [False] * ABSENCES), str(tmp_path), tmp_path, ranks=1)
    assert [copy.lost(7) for _ in range(ABSENCES)][-1] is lost
    copy = Mirror(Folder(tmp_path, [False]), str(tmp_path), tmp_path, ranks=1)
    copy.look_for_supervisor()
    assert (tmp_path / "gone").exists() is lost
