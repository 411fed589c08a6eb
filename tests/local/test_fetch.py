"""Run `orch fetch` from this machine and over a real sshd."""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import ConnectionLost, ExecuteError
from orchestrator.runs import fetch
from orchestrator.runs.fetch import FetchListener
from orchestrator.targets.connections import connection, program_output
from orchestrator.targets.connections.connection import Ssh
from orchestrator.targets.connections.local import Local
from tests.local.runs import Orch, expect_exit
from tests.support.recorded import make_placement, make_run

NAMES = ("model/two words.bin", "checkpoint-10/it's $(x).pt", "checkpoint-20/ünï\ncode", "log.txt", ".metadata")
BIG = os.urandom(5 * 2**20 + 17)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Return an output folder with files to fetch, and with some to leave out."""
    folder = tmp_path / "far away" / "output"
    for name in NAMES:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(BIG if name.startswith("model") else name.encode())
    (folder / ".checkpoint-staging").mkdir()
    (folder / ".checkpoint-staging" / "half").write_text("half")
    return folder


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "target"


@pytest.fixture
def remote(sshd: str) -> Iterator[Ssh]:
    node = Ssh("far", sshd)
    yield node
    node.close()


def collect(remote: Any, source: Path, target: Path, *patterns: str, **callbacks: Any) -> fetch.Collected:
    sources = [fetch.Source(name="far", remote=remote)]
    return fetch.collect(sources, [str(source)], target, patterns=patterns, listener=FetchListener(**callbacks))


def test_each_file_arrives_with_its_hash(remote: Ssh, source: Path, target: Path) -> None:
    with (source / (sparse := "sparse.bin")).open("wb") as file:
        file.truncate(3 * 2**20)
    result = collect(remote, source, target)
    assert {entry.path for entry in result.files} == {*NAMES, sparse}
    assert set(result.downloaded) == {*NAMES, sparse}
    for entry in result.files:
        content = (target / entry.path).read_bytes()
        assert content == (source / entry.path).read_bytes()
        assert (len(content), hashlib.sha256(content).hexdigest()) == (entry.size, entry.sha256)
    assert (target / sparse).stat().st_blocks == 0
    assert not list(target.rglob("*.part"))


def test_interrupted_fetch_continues_where_it_stopped(remote: Ssh, source: Path, target: Path) -> None:
    sizes: list[int] = []

    def interrupt(size: int) -> None:
        sizes.append(size)
        if sum(sizes) > 3 * 2**20:
            raise ExecuteError("the connection is gone")

    with pytest.raises(ExecuteError, match="the connection is gone"):
        collect(remote, source, target, "model", advance=interrupt)
    (part,) = (target / fetch.PARTS).iterdir()
    assert 3 * 2**20 < (fetched := part.stat().st_size) < len(BIG)
    sizes.clear()
    collect(remote, source, target, "model", advance=sizes.append)
    assert (target / "model/two words.bin").read_bytes() == BIG
    assert sizes[0] == fetched, "these bytes are not read again"
    assert sum(sizes) == len(BIG)
    assert not (target / fetch.PARTS).exists()


def test_unchanged_files_are_not_fetched_again(remote: Ssh, source: Path, target: Path) -> None:
    collect(remote, source, target)
    copied_sizes: dict[str, int] = {}
    assert collect(remote, source, target, file=copied_sizes.__setitem__).downloaded == []
    assert copied_sizes == {}
    (source / "log.txt").write_text("changed")
    assert collect(remote, source, target).downloaded == ["log.txt"]
    assert (target / "log.txt").read_text() == "changed"


def test_part_of_another_version_is_discarded(source: Path, target: Path) -> None:
    part = target / fetch.part_of(NAMES[0], "0" * 64)
    part.parent.mkdir(parents=True)
    part.write_bytes(b"of an earlier version")
    collect(Local(), source, target, "model")
    assert (target / "model/two words.bin").read_bytes() == BIG
    assert not part.exists()


def test_endless_output_of_a_node_is_cut_off(remote: Ssh, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program_output, "MAX_OUTPUT_BYTES", 1 << 22)
    with pytest.raises(ExecuteError, match="far: the output of the program has no end"):
        remote.capture(("cat", "/dev/zero"), seconds=60.0)
    with pytest.raises(ConnectionLost, match="no answer for 1 s"):
        remote.capture(("sleep", "60"), seconds=0.6)
    result = remote.capture(("sh", "-c", "echo out; echo err >&2; sleep 60 & exit 3"), seconds=30.0)
    assert (result.code, result.out, result.err) == (3, "out\n", "err\n")


def test_login_shell_that_starts_no_program_is_named(remote: Ssh, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program_output, "START_SECONDS", 0.5)
    monkeypatch.setattr(connection, "shell_command", lambda _: "sleep 60")  # as a start-up file might
    calls = (partial(remote.capture, seconds=30.0), partial(remote.relay, receive=print, stop=threading.Event()))
    for call in calls:
        with pytest.raises(ConnectionLost, match="far: its login shell has not started a program"):
            call(("true",))


def test_sent_files_and_their_new_folders_are_private(remote: Ssh, tmp_path: Path) -> None:
    folder = tmp_path / "new" / "run"
    for name in ("layout.json", "env.json", "env.json"):
        remote.put(str(folder / name), name)
    assert [path.read_text() for path in sorted(folder.iterdir())] == ["env.json", "layout.json"]
    assert {(path.stat().st_mode & 0o777) for path in folder.iterdir()} == {0o600}
    assert folder.stat().st_mode & 0o777 == 0o700
    with pytest.raises(ExecuteError, match=r"Not a directory|File exists"):
        remote.put(str(folder / "env.json" / "x"), "")


def make_remote_run(folder: Path, ssh_config: str, **changes: Any) -> Path:
    """Record a run of one rank on the node `far`."""
    node = {"node": "far", "via": ["ssh", "-F", ssh_config, "far"]}
    layout = [{**make_placement(0, 1), "node": "far"}]
    return make_run(folder / "runs", "x", ranks=1, nodes=1, node0=node, layout=layout, **changes)


def test_command_fetches_the_output_of_a_run(orch: Orch, source: Path, tmp_path: Path, sshd: str) -> None:
    run = make_remote_run(tmp_path, sshd, output_dir=str(source))
    process = expect_exit(orch("fetch", "x", "--json"))
    value = json.loads(process.stdout)
    assert value.keys() >= {"bytes", "brought"}
    assert (value["schema"], value["kind"], value["files"], value["folder"]) == (1, "fetch", 5, str(run / "output"))
    assert value["omitted"] == [{"path": ".checkpoint-staging", "problem": fetch.INCOMPLETE}]
    assert (run / "output/model/two words.bin").read_bytes() == BIG
    assert "log.txt" in process.stderr.splitlines()
    assert "5 files (5.0 MiB, 0 new)" in orch("fetch", "x").stdout
    (run / "output/log.txt").write_text("edited")
    assert "5 files (5.0 MiB, 1 new, 1 replaced)" in orch("fetch", "x").stdout
    for options in (("--only", "nothing*"), ("--node", "other")):
        expect_exit(orch("fetch", "x", *options), 2)
    expect_exit(orch("fetch", "x", "--from", "model", "--to", "weights"))
    assert (tmp_path / "weights/two words.bin").read_bytes() == BIG
    assert "There is no folder" in expect_exit(orch("fetch", "x", "--from", "nowhere"), 1).stderr
    (source / "passwords").symlink_to("/etc/passwd")
    assert "skipped: passwords: it is a link to /etc/passwd" in expect_exit(orch("fetch", "x"), 1).stderr


def test_output_folder_of_the_script_arguments_is_fetched(orch: Orch, source: Path, tmp_path: Path, sshd: str) -> None:
    make_remote_run(tmp_path, sshd, script_args=[f"--output-dir={source}", "--seed", "1"])
    process = expect_exit(orch("fetch", "x", "--only", "checkpoint-2*", "--only", "*.txt", "--json"))
    assert json.loads(process.stdout)["files"] == 2
