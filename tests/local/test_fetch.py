"""`orch fetch`, from this machine and over a real sshd."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from orchestrator.errors import ConnectionLost, ExecuteError
from orchestrator.model.command import CommandResult
from orchestrator.runs import fetch as collect
from orchestrator.runs.fetch import FetchListener
from orchestrator.targets.connections import answers, connection
from orchestrator.targets.connections.connection import Ssh
from orchestrator.targets.connections.local import Local
from tests.support.ports import free_port
from tests.support.recorded import make_run

Orch = Callable[..., subprocess.CompletedProcess[str]]
NAMES = ("model/two words.bin", "checkpoint-10/it's $(x).pt", "checkpoint-20/ünï\ncode", "log.txt")
BIG = os.urandom(5 * 2**20 + 17)


@dataclass
class Counted:
    """Counts what is really read; `cut`: the connection drops after so many bytes."""

    remote: Local | Ssh
    cut: int | None = None
    read: list[int] = field(default_factory=list)

    def capture(self, argv: tuple[str, ...], *, seconds: float) -> CommandResult:
        return self.remote.capture(argv, seconds=seconds)

    def chunks(self, path: str, offset: int) -> Iterator[bytes]:
        for chunk in self.remote.chunks(path, offset):
            if self.cut is not None and sum(self.read) + len(chunk) > self.cut:
                raise ExecuteError("the connection is gone")
            self.read.append(len(chunk))
            yield chunk


@pytest.fixture
def far(tmp_path: Path) -> Path:
    folder = tmp_path / "far away" / "output"
    for name in NAMES:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(BIG if name.startswith("model") else name.encode())
    (folder / ".checkpoint-staging").mkdir()
    (folder / ".checkpoint-staging" / "half").write_text("half")
    (folder / "link").symlink_to("/etc/passwd")
    return folder


@pytest.fixture(params=["local", "ssh"])
def remote(request: pytest.FixtureRequest) -> Iterator[Counted]:
    if request.param == "local":
        yield Counted(Local())
        return
    far = Ssh("far", request.getfixturevalue("sshd"))
    yield Counted(far)
    far.close()


def test_a_node_that_nobody_serves_is_an_error_with_its_name(tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text(f"Host far\n  HostName 127.0.0.1\n  Port {free_port()}\n")
    with pytest.raises(ConnectionLost, match="far does not answer"):
        list(Ssh("far", str(config)).chunks("/etc/hostname", 0))


def bring(remote: Counted, far: Path, target: Path, *only: str) -> collect.Collected:
    return collect.collect(remote, str(far), target, patterns=only, listener=FetchListener())


def test_every_file_arrives_with_its_hash(remote: Counted, far: Path, tmp_path: Path) -> None:
    here = tmp_path / "here"
    found = bring(remote, far, here)
    assert {entry.path for entry in found.files} == set(NAMES)
    assert set(found.brought) == set(NAMES)
    for entry in found.files:
        content = (here / entry.path).read_bytes()
        assert content == (far / entry.path).read_bytes()
        assert (len(content), hashlib.sha256(content).hexdigest()) == (entry.size, entry.sha256)
    assert not list(here.rglob("*.part"))


def test_a_fetch_that_was_cut_goes_on(remote: Counted, far: Path, tmp_path: Path) -> None:
    here = tmp_path / "here"
    remote.cut = 3 * 2**20
    with pytest.raises(ExecuteError, match="the connection is gone"):
        bring(remote, far, here, "model")
    had = (here / "model/.two words.bin.part").stat().st_size
    assert had > 0
    remote.cut, remote.read = None, []
    bring(remote, far, here, "model")
    assert (here / "model/two words.bin").read_bytes() == BIG
    assert sum(remote.read) == len(BIG) - had, "only what was missing"


def test_what_is_here_is_not_brought_again(remote: Counted, far: Path, tmp_path: Path) -> None:
    here = tmp_path / "here"
    bring(remote, far, here)
    remote.read = []
    assert bring(remote, far, here).brought == ()
    assert remote.read == []
    (far / "log.txt").write_text("changed")
    assert bring(remote, far, here).brought == ("log.txt",)
    assert (here / "log.txt").read_text() == "changed"


def test_a_part_of_another_file_is_thrown_away(far: Path, tmp_path: Path) -> None:
    here = tmp_path / "here"
    (here / "model").mkdir(parents=True)
    (here / "model/.two words.bin.part").write_bytes(b"of an earlier version")
    bring(Counted(Local()), far, here, "model")
    assert (here / "model/two words.bin").read_bytes() == BIG


def test_an_answer_without_an_end_is_cut_off(sshd: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "LARGEST_ANSWER", 1 << 22)
    monkeypatch.setattr(connection, "LARGEST_LINE", 1 << 20)
    node = Ssh("far", sshd)
    with pytest.raises(ExecuteError, match="far: its answer has no end"):
        node.capture(("cat", "/dev/zero"), seconds=60.0)
    with pytest.raises(ExecuteError, match="lines without an end"):
        list(node.stream(("cat", "/dev/zero")))
    with pytest.raises(ConnectionLost, match="no answer for 1 s"):
        node.capture(("sleep", "60"), seconds=0.6)
    late = node.capture(("sh", "-c", "echo out; echo err >&2; sleep 60 & exit 3"), seconds=30.0)
    assert (late.code, late.out, late.err) == (3, "out\n", "err\n")
    with pytest.raises(ExecuteError, match="/dev/zero has more than the 0 bytes"):
        collect.collect(Endless(node), "/dev", tmp_path, patterns=(), listener=FetchListener())
    node.close()


class Endless:
    """A node that lists an endless file as an empty one."""

    def __init__(self, node: Ssh) -> None:
        self.node = node
        self.chunks = node.chunks

    def capture(self, argv: tuple[str, ...], *, seconds: float) -> CommandResult:
        entry = {"path": "zero", "size": 0, "sha256": hashlib.sha256().hexdigest()}
        return CommandResult(code=0, out=json.dumps(entry) + "\n", err="")


def test_only_what_is_asked_for(far: Path, tmp_path: Path) -> None:
    found = bring(Counted(Local()), far, tmp_path / "here", "checkpoint-2*", "*.txt")
    assert set(found.brought) == {NAMES[2], NAMES[3]}


def test_a_folder_that_is_not_there(remote: Counted, tmp_path: Path) -> None:
    with pytest.raises(ExecuteError, match="there is no folder"):
        bring(remote, tmp_path / "nowhere", tmp_path / "here")


def test_the_command(orch: Orch, far: Path, tmp_path: Path, sshd: str) -> None:
    away = {"node": "far", "via": ["ssh", "-F", sshd, "far"]}
    layout = [{"rank": 0, "node": "far", "local_rank": 0, "local_world_size": 1, "cpus": [0], "threads": 1}]
    run = make_run(tmp_path / "runs", "x", ranks=1, nodes=1, node0=away, layout=layout, output_dir=str(far))
    done = orch("fetch", "x", "--json")
    assert done.returncode == 0, done.stderr
    value = json.loads(done.stdout)
    assert (value["schema"], value["kind"]) == (1, "fetch")
    assert value.keys() >= {"folder", "files", "bytes", "brought"}
    assert (value["files"], value["folder"]) == (4, str(run / "output"))
    assert (run / "output/model/two words.bin").read_bytes() == BIG
    assert "log.txt" in done.stderr.splitlines()
    assert len(json.loads((run / "fetched.json").read_text())["files"]) == 4
    again = orch("fetch", "x")
    assert "4 files (5.0 MiB, 0 new)" in again.stdout
    nothing = orch("fetch", "x", "--only", "nothing*")
    assert nothing.returncode == 2
    assert orch("fetch", "x", "--node", "other").returncode == 2


@pytest.mark.parametrize("arguments", [["--output_dir", "{}"], ["--output-dir={}", "--seed", "1"]])
def test_the_folder_of_the_script_arguments_is_fetched(
    orch: Orch, far: Path, tmp_path: Path, sshd: str, arguments: list[str]
) -> None:
    away = {"node": "far", "via": ["ssh", "-F", sshd, "far"]}
    layout = [{"rank": 0, "node": "far", "local_rank": 0, "local_world_size": 1, "cpus": [0], "threads": 1}]
    script_args = [word.format(far) for word in arguments]
    run = make_run(tmp_path / "runs", "x", ranks=1, nodes=1, node0=away, layout=layout, script_args=script_args)
    done = orch("fetch", "x", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["files"] == 4
    assert json.loads((run / "fetched.json").read_text())["from"] == str(far)
