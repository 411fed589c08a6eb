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
from orch_node.protocol.outcome import SupervisorProcess

from orchestrator.errors import ExecuteError
from orchestrator.targets.connections import mirror
from orchestrator.targets.connections.mirror import MISSED_PROBES, Mirror
from tests.support.files import write_files
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

    def sizes(self, folder: str) -> dict[str, int]:
        return {path.name: path.stat().st_size for path in sorted(Path(folder).glob("*"))}

    def alive(self, pid: int, marker: str) -> bool:
        return self.responses.pop(0)

    def terminate(self, pid: int) -> None:
        raise AssertionError("no test stops the supervisor")


@pytest.fixture(autouse=True)
def no_pause_between_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirror, "PROBE_SECONDS", 0.0)


def test_two_concurrent_mirrors_copy_each_byte_once(tmp_path: Path) -> None:
    remote_folder, local_folder = write_files(tmp_path / "far", {"events.jsonl": "one\n"}), tmp_path / "here"
    events = remote_folder / "events.jsonl"
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
    assert [copy.lost(7) for _ in range(3 + MISSED_PROBES)] == [False] * (2 + MISSED_PROBES) + [True]


def test_supervisor_is_lost_only_if_the_connection_leads_to_its_host(tmp_path: Path) -> None:
    this_machine = machine.this_machine()
    for number, (host, lost) in enumerate(
        (
            (this_machine, True),
            (replace(this_machine, boot="before", machine_id=INSTALLATION), True),  # rebooted
            (replace(this_machine, boot="b", host="login2"), False),
            (Machine(), False),  # unrecorded
        )
    ):
        folder = tmp_path / str(number)
        folder.mkdir()
        identity = ProcessIdentity(machine=host, pid=7, start=1)
        (folder / "supervisor.json").write_text(outcome.render(SupervisorProcess(pid=7, identity=identity)))
        copy = Mirror(Folder(folder, [False] * MISSED_PROBES), str(folder), folder, ranks=1)
        assert [copy.lost(7) for _ in range(MISSED_PROBES)][-1] is lost
        Mirror(Folder(folder, [False]), str(folder), folder, ranks=1).record_supervisor_end()
        assert (folder / "gone").exists() is lost


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

    def sizes(self, folder: str) -> dict[str, int]:
        return dict.fromkeys(self.names, len(CONTENT))


def test_listing_names_no_other_file(tmp_path: Path) -> None:
    home = write_files(tmp_path / "home", {"authorized_keys": "mine\n", "runs/r/plan.json": "{}"})
    folder = home / "runs/r"
    names = [*UNSAFE_NAMES, "rank-99.log", "rank-0.sh", "plan.json", "rank-0.log"]
    copy = Mirror(HostileFolder(tmp_path, names), "/opt/orch/runs/r", folder, ranks=2)
    copy.copy_logs()
    copy.finish("/opt/orch/runs/r/output")
    written_files = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert written_files == {"plan.json", "ranks/rank-0.log", "output/metrics.jsonl", "launcher.log", "supervisor.log"}
    assert sorted(path.name for path in home.iterdir()) == ["authorized_keys", "runs"]
    assert [path.name for path in (home / "runs").iterdir()] == ["r"]
    assert ((home / "authorized_keys").read_text(), (folder / "plan.json").read_text()) == ("mine\n", "{}")


def test_handed_logs_are_copied_and_name_no_other_file(tmp_path: Path) -> None:
    folder = write_files(tmp_path / "runs/r", {"ranks/rank-1.log": "one\n"})
    log = b64encode(b"one\ntwo\n").decode()
    names = [*UNSAFE_NAMES, "rank-99.log", "rank-0.sh", "rank-1.log"]
    lines = [
        json.dumps({"node": "node1", "files": dict.fromkeys(names, log)}),
        json.dumps({"node": "node2", "files": {"rank-1.log": "no base64"}}),
        json.dumps({"node": "../node3", "files": {"rank-1.log": log}}),
        '{"node": "node4", "files": {"ra',
    ]
    remote_folder = write_files(tmp_path / "far", {"handed-logs.jsonl": "\n".join(lines)})
    copy = Mirror(Folder(remote_folder, []), str(remote_folder), folder, ranks=2)
    folders = {"node1": "ranks", "node2": "ranks"}
    assert copy.copy_handed_logs(lambda rank, node: folders.get(node, "")) == set(), "the run may not have ended"
    (folder / "outcome.json").write_text(outcome.render(outcome.Outcome(state="done")))
    assert copy.copy_handed_logs(lambda rank, node: folders.get(node, "")) == {"node1"}
    written_files = {str(path.relative_to(tmp_path / "runs")) for path in (tmp_path / "runs").rglob("*")}
    assert written_files == {"r", "r/outcome.json", "r/ranks", "r/ranks/rank-1.log"}
    assert (folder / "ranks/rank-1.log").read_text() == "one\ntwo\n"


def test_link_in_the_copy_is_not_followed(tmp_path: Path) -> None:
    for number, link in enumerate(("ranks", "ranks/rank-0.log")):
        folder, link_target = tmp_path / f"r{number}", tmp_path / f"other{number}"
        (folder / link).parent.mkdir(parents=True)
        if link == "ranks":
            link_target.mkdir()
        (folder / link).symlink_to(link_target)
        copy = Mirror(HostileFolder(tmp_path, ["rank-0.log"]), "/opt/orch/runs/r", folder, ranks=1)
        with pytest.raises(ExecuteError, match=link):
            copy.copy_logs()
        assert list(link_target.iterdir() if link_target.is_dir() else []) == []
        assert not link_target.is_file()
