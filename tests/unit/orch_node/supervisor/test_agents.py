"""Check that what a node prints cannot fill the disk of the supervisor."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from orch_node.line_pipes import Pipes
from orch_node.supervisor import agents as supervisor_agents

from tests.support.waiting import wait_until


def test_log_of_a_channel_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor_agents, "LOG_BYTES", 100)
    channel = supervisor_agents.Channel("n1", [], tmp_path / "n1.log")
    for _ in range(50):
        channel.handle_line(b"a login shell that greets\n")
    assert channel.log.stat().st_size == 100


FLOOD = "import sys; [print('flood', i, file=sys.stderr) for i in range(10000)]; print('the reason', file=sys.stderr)"


def test_standard_error_of_a_node_fills_no_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor_agents, "LOG_BYTES", 1000)
    command = [sys.executable, "-c", FLOOD + "; sys.stdin.read(1); print('gone', file=sys.stderr)"]
    channel = supervisor_agents.Channel("n1", command, tmp_path / "n1.log")
    channel.open(Pipes())
    wait_until(lambda: channel.problem() == "the reason", "the program has written all")
    channel.shorten_log()
    assert channel.log.stat().st_size == 1000
    os.write(channel.stdin, b" ")
    wait_until(lambda: channel.problem() == "gone", "the log continues")
    assert channel.log.stat().st_size == 1005
    channel.kill()
