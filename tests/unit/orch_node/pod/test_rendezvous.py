"""The key of the pods of a run, which nobody else can read, and what a pod writes to its output."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from orch_node.pod import main, rendezvous
from orch_node.protocol.events import Started
from orch_node.protocol.pod import parse

from orchestrator.files import LIB
from tests.local.test_pod import write_pod_config


def test_all_pods_have_one_key_that_nobody_else_can_read(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        keys = set(pool.map(rendezvous.key_of, [tmp_path] * 32))
    assert [len(key) for key in keys] == [rendezvous.SIZE]
    (path,) = tmp_path.iterdir()
    assert path.stat().st_mode & 0o077 == 0
    another_run = tmp_path / "another run"
    another_run.mkdir()
    assert rendezvous.key_of(another_run) not in keys


KILLED_POD = """
import os, signal, sys
from pathlib import Path
from orch_node.pod import rendezvous

def kill(*arguments, **options):
    os.kill(os.getpid(), signal.SIGKILL)

rendezvous.secrets.token_hex = kill if sys.argv[2] == "before" else rendezvous.secrets.token_hex
os.fsync = kill
rendezvous.key_of(Path(sys.argv[1]))
"""


@pytest.mark.parametrize("moment", ["before", "after"])
def test_pod_killed_while_it_writes_the_key_does_not_stop_later_pods(tmp_path: Path, moment: str) -> None:
    command = [sys.executable, "-c", KILLED_POD, str(tmp_path), moment]
    assert subprocess.run(command, env={"PYTHONPATH": str(LIB)}, timeout=60).returncode == -signal.SIGKILL
    assert rendezvous.key_of(tmp_path) == rendezvous.key_of(tmp_path)
    assert len(rendezvous.key_of(tmp_path)) == rendezvous.SIZE


def test_damaged_key_is_refused(tmp_path: Path) -> None:
    (tmp_path / rendezvous.FOLDER).mkdir()
    (tmp_path / rendezvous.FOLDER / rendezvous.NAME).touch()
    with pytest.raises(OSError, match="damaged"):
        rendezvous.key_of(tmp_path)


def test_key_is_not_read_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "target").write_bytes(b"0" * rendezvous.SIZE)
    (tmp_path / rendezvous.FOLDER).mkdir()
    (tmp_path / rendezvous.FOLDER / rendezvous.NAME).symlink_to(tmp_path / "target")
    with pytest.raises(OSError, match="symbolic links"):
        rendezvous.key_of(tmp_path)


def test_ranks_that_get_other_numbers_relay_no_line_of_a_lost_pod(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(main, "start", lambda *_, key: subprocess.Popen([sys.executable, "--version"]))
    monkeypatch.setattr("signal.signal", lambda number, handler: None)
    config = parse(write_pod_config(tmp_path, ppn=1).read_text())
    logs = [Path(config.run_dir, f"ranks/rank-{rank}.log") for rank in range(3)]
    logs[0].parent.mkdir(parents=True)
    torchrun = main.Torchrun(config, (), None)
    for rank, text in ((2, "two"), (1, "one")):
        for log in logs:
            with log.open("a") as file:
                file.write(f"{log.stem} with three pods\n")
        torchrun.add_event(Started(rank=rank, node="worker-2", pid=os.getpid(), wrapper=os.getpid()))
        with logs[rank].open("a") as file:
            file.write(f"{text}\n")
        torchrun.relay.pump()
    torchrun.process.wait()
    assert capsys.readouterr().out.splitlines() == ["[2] rank-2 with three pods", "[2] two", "[1] one"]
