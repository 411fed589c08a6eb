"""Check that the copy of a remote run folder is complete, and that no node can misuse it."""

from __future__ import annotations

import json
from base64 import b64encode
from dataclasses import replace
from pathlib import Path

import pytest
from orch_node import machine
from orch_node.machine import Machine, ProcessIdentity
from orch_node.protocol import outcome
from orch_node.protocol.outcome import SupervisorProcess, render_supervisor

from orchestrator.errors import ExecuteError
from orchestrator.targets.connections import mirror
from orchestrator.targets.connections.mirror import MISSED_PROBES, Mirror
from tests.support.hostile import UNSAFE_NAMES

INSTALLATION = "installation"


class Folder:
    """A remote run folder on this machine whose `alive` returns these responses."""

    def __init__(self, base: Path, responses: list[bool]) -> None:
        self.base = base
        self.responses = responses

    def read(self, path: str, offset: int = 0, most: int | None = None) -> bytes | None:
        if path == "/etc/machine-id":  # containers have none
            return INSTALLATION.encode()
        file = Path(path)
        return file.read_bytes()[offset:][:most] if file.exists() else None

    def size(self, path: str) -> int:
        return Path(path).stat().st_size if Path(path).exists() else 0

    def list(self, folder: str) -> list[str]:
        return sorted(path.name for path in Path(folder).glob("*"))

    def alive(self, pid: int, marker: str) -> bool:
        return self.responses.pop(0)

    def terminate(self, pid: int) -> None:
        raise AssertionError("no test stops the supervisor")


@pytest.fixture(autouse=True)
def no_pause_between_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirror, "PROBE_SECONDS", 0.0)


def test_only_new_bytes_are_copied(tmp_path: Path) -> None:
    remote_folder, local_folder = tmp_path / "far", tmp_path / "here"
    remote_folder.mkdir()
    (remote_folder / "events.jsonl").write_text("one\n")
    copy = Mirror(Folder(remote_folder, []), str(remote_folder), local_folder, ranks=1)
    copy.refresh()
    (remote_folder / "events.jsonl").write_text("one\ntwo\n")
    (remote_folder / "outcome.json").write_text("{}")
    copy.refresh()
    assert (local_folder / "events.jsonl").read_text() == "one\ntwo\n"
    assert (local_folder / "outcome.json").read_text() == "{}"


def test_two_concurrent_mirrors_copy_each_byte_once(tmp_path: Path) -> None:
    remote_folder, local_folder = tmp_path / "far", tmp_path / "here"
    remote_folder.mkdir()
    events = remote_folder / "events.jsonl"
    events.write_text("one\n")
    second_mirror = Mirror(Folder(remote_folder, []), str(remote_folder), local_folder, ranks=1)

    class Slow(Folder):
        """A folder that the second mirror copies while a read of the first is in progress."""

        def read(self, path: str, offset: int = 0, most: int | None = None) -> bytes | None:
            content = super().read(path, offset, most)
            with events.open("a") as file:
                file.write("more\n")
            second_mirror.refresh()
            return content

    slow = Mirror(Slow(remote_folder, []), str(remote_folder), local_folder, ranks=1)
    for _ in range(3):
        slow.append("events.jsonl")
    second_mirror.refresh()
    assert (local_folder / "events.jsonl").read_text() == events.read_text()


def test_one_missed_response_does_not_count_as_lost(tmp_path: Path) -> None:
    responses = [True, False, True, *[False] * MISSED_PROBES]
    copy = Mirror(Folder(tmp_path, responses), str(tmp_path), tmp_path, ranks=1)
    results = [copy.lost(7) for _ in range(3 + MISSED_PROBES)]
    assert results == [False] * (2 + MISSED_PROBES) + [True]


@pytest.mark.parametrize(
    ("host", "lost"),
    [
        pytest.param(machine.this_machine(), True, id="same-host"),
        pytest.param(replace(machine.this_machine(), boot="before", machine_id=INSTALLATION), True, id="rebooted"),
        pytest.param(replace(machine.this_machine(), boot="b", host="login2"), False, id="another"),
        pytest.param(Machine(), False, id="unrecorded"),
    ],
)
def test_supervisor_is_lost_only_if_the_connection_leads_to_its_host(tmp_path: Path, host: Machine, lost: bool) -> None:
    identity = ProcessIdentity(machine=host, pid=7, start=1)
    text = render_supervisor(SupervisorProcess(pid=7, identity=identity))
    (tmp_path / "supervisor.json").write_text(text)
    copy = Mirror(Folder(tmp_path, [False] * MISSED_PROBES), str(tmp_path), tmp_path, ranks=1)
    assert [copy.lost(7) for _ in range(MISSED_PROBES)][-1] is lost
    copy = Mirror(Folder(tmp_path, [False]), str(tmp_path), tmp_path, ranks=1)
    copy.record_supervisor_end()
    assert (tmp_path / "gone").exists() is lost


CONTENT = b"ssh-ed25519 AAAA evil\n"


class HostileFolder(Folder):
    """A folder whose listings contain arbitrary names."""

    def __init__(self, base: Path, names: list[str]) -> None:
        super().__init__(base, [])
        self.names = names

    def read(self, path: str, offset: int = 0, most: int | None = None) -> bytes | None:
        if path.endswith((".json", "events.jsonl")):
            return None
        return CONTENT[offset:][:most]

    def size(self, path: str) -> int:
        return len(CONTENT)

    def list(self, folder: str) -> list[str]:
        return self.names


@pytest.mark.parametrize("name", [*UNSAFE_NAMES, "rank-99.log", "rank-0.sh", "plan.json"])
def test_listing_names_no_other_file(tmp_path: Path, name: str) -> None:
    home, folder = tmp_path / "home", tmp_path / "home/runs/r"
    folder.mkdir(parents=True)
    (home / "authorized_keys").write_text("mine\n")
    (folder / "plan.json").write_text("{}")
    copy = Mirror(HostileFolder(tmp_path, [name, "rank-0.log"]), "/opt/orch/runs/r", folder, ranks=2)
    copy.copy_logs()
    copy.finish("/opt/orch/runs/r/output")
    written_files = {str(path.relative_to(home)) for path in home.rglob("*") if path.is_file()}
    assert written_files == {
        "authorized_keys",
        "runs/r/plan.json",
        "runs/r/ranks/rank-0.log",
        "runs/r/output/metrics.jsonl",
        "runs/r/launcher.log",
        "runs/r/supervisor.log",
    }
    assert (home / "authorized_keys").read_text() == "mine\n"
    assert (folder / "plan.json").read_text() == "{}"


def test_handed_logs_are_copied_and_name_no_other_file(tmp_path: Path) -> None:
    remote_folder, folder = tmp_path / "far", tmp_path / "runs/r"
    (folder / "ranks").mkdir(parents=True)
    (folder / "ranks/rank-1.log").write_text("one\n")
    remote_folder.mkdir()
    log = b64encode(b"one\ntwo\n").decode()
    names = [*UNSAFE_NAMES, "rank-99.log", "rank-0.sh", "rank-1.log"]
    lines = [
        json.dumps({"node": "node1", "files": dict.fromkeys(names, log)}),
        json.dumps({"node": "node2", "files": {"rank-1.log": "no base64"}}),
        json.dumps({"node": "../node3", "files": {"rank-1.log": log}}),
        '{"node": "node4", "files": {"ra',
    ]
    (remote_folder / "handed-logs.jsonl").write_text("\n".join(lines))
    copy = Mirror(Folder(remote_folder, []), str(remote_folder), folder, ranks=2)
    folders = {"node1": "ranks", "node2": "ranks"}
    assert copy.copy_handed_logs(lambda rank, node: folders.get(node, "")) == set(), "the run may not have ended"
    (folder / "outcome.json").write_text(outcome.render(outcome.Outcome(state="done")))
    assert copy.copy_handed_logs(lambda rank, node: folders.get(node, "")) == {"node1"}
    written_files = {str(path.relative_to(tmp_path / "runs")) for path in (tmp_path / "runs").rglob("*")}
    assert written_files == {"r", "r/outcome.json", "r/ranks", "r/ranks/rank-1.log"}
    assert (folder / "ranks/rank-1.log").read_text() == "one\ntwo\n"


@pytest.mark.parametrize("link", ["ranks", "ranks/rank-0.log"])
def test_link_in_the_copy_is_not_followed(tmp_path: Path, link: str) -> None:
    folder, link_target = tmp_path / "r", tmp_path / "other"
    (folder / link).parent.mkdir(parents=True)
    if link == "ranks":
        link_target.mkdir()
    else:
        link_target.write_text("mine\n")
    (folder / link).symlink_to(link_target)
    copy = Mirror(HostileFolder(tmp_path, ["rank-0.log"]), "/opt/orch/runs/r", folder, ranks=1)
    with pytest.raises(ExecuteError, match=link):
        copy.copy_logs()
    assert not (link_target.is_dir() and list(link_target.iterdir()))
    assert link_target.is_dir() or link_target.read_text() == "mine\n"
