"""Check what a pod writes to its output."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from orch_node.pod import main
from orch_node.protocol.events import Started
from orch_node.protocol.pod import parse

from tests.local.test_pod import write_pod_config


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
