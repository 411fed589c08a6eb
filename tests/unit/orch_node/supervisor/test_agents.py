"""Check that what a node prints cannot fill the disk of the supervisor."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from orch_node import reach
from orch_node.line_pipes import Pipes
from orch_node.protocol import files
from orch_node.protocol.agent import WRITE, Request
from orch_node.supervisor import agents as supervisor_agents

from tests.support.waiting import wait_until

FLOOD = "import sys; [print('flood', i, file=sys.stderr) for i in range(10000)]; print('the reason', file=sys.stderr)"


def test_standard_error_of_a_node_fills_no_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor_agents, "LOG_BYTES", 1000)
    command = [sys.executable, "-c", FLOOD + "; sys.stdin.read(1); print('gone', file=sys.stderr)"]
    channel = supervisor_agents.Channel("n1", command, tmp_path / "n1.log")
    channel.open(Pipes())
    wait_until(lambda: channel.problem() == "the reason", "the program has written all")
    channel.shorten_log()
    assert channel.log.stat().st_size == 1000
    channel.input.send(b" ")
    wait_until(lambda: channel.problem() == "gone", "the log continues")
    assert channel.log.stat().st_size == 1005
    channel.end()


def test_agent_is_gone_once_its_output_ends_although_its_ssh_still_serves_launchers(tmp_path: Path) -> None:
    ssh = [sys.executable, "-c", "import os; os.close(1); os.read(0, 1)"]
    pipes, channel = Pipes(), supervisor_agents.Channel("n1", ssh, tmp_path / "n1.log")
    channel.open(pipes)
    try:
        wait_until(lambda: pipes.pump(0.1) and not channel.connected, "the end of the output", seconds=10)
        assert channel.process.poll() is None
    finally:
        channel.end()


@contextlib.contextmanager
def agents_on(folder: Path, *nodes: str) -> Iterator[supervisor_agents.Agents]:
    agents = supervisor_agents.Agents(folder, nodes, str(folder / "claims"))
    try:
        yield agents
    finally:
        for channel in agents.channels.values():
            channel.end()
        reach.end_sharing()


def test_processes_are_ended_although_logs_cannot_be_read_or_handed_over(tmp_path: Path) -> None:
    (tmp_path / files.HANDED_LOGS).mkdir()  # which unlink() rejects like a read-only disk
    (tmp_path / files.RANKS).mkdir()
    (tmp_path / files.RANKS / "rank-0.log").symlink_to("missing")
    with agents_on(tmp_path, "n0") as agents:
        assert [(node, end.logs) for node, end in agents.end_all().items()] == [("n0", None)]


def test_nodes_that_read_nothing_delay_a_large_request_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deaf = [sys.executable, "-c", "import time; time.sleep(60)"]
    monkeypatch.setattr(supervisor_agents, "agent_command", lambda *arguments, **options: deaf)
    with agents_on(tmp_path, *(f"n{index}" for index in range(8))) as agents:
        begin = time.monotonic()
        assert agents.request(Request(WRITE, content="x" * 200_000), seconds=0.1) == {}
        assert time.monotonic() - begin < 1.0


def test_node_that_has_responded_is_not_lost_during_a_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command_of = supervisor_agents.agent_command
    busy = [sys.executable, "-c", "import time; time.sleep(60)"]

    def start(run: Path, node: str, *arguments: Any, **options: Any) -> list[str]:
        return busy if node == "n1" else command_of(run, node, *arguments, **options)

    monkeypatch.setattr(supervisor_agents, "agent_command", start)
    for name, seconds in {"LOST_SECONDS": 1.5, "SUSPENSION_SECONDS": 1.5, "PING_SECONDS": 0.2}.items():
        monkeypatch.setattr(supervisor_agents, name, seconds)
    with agents_on(tmp_path, "n0", "n1") as agents:
        assert list(agents.request(Request(WRITE), seconds=4.0)) == ["n0"]
        assert (agents.watch(), agents.lost) == (0.0, {})


def test_responses_are_in_the_order_of_the_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command_of = supervisor_agents.agent_command

    def start(run: Path, node: str, claims: str, *, is_local: bool) -> list[str]:
        delay = ["sh", "-c", 'sleep 0.5; exec "$@"', "sh"] if is_local else []
        return [*delay, *command_of(run, node, claims, is_local=True)]

    monkeypatch.setattr(supervisor_agents, "agent_command", start)
    with agents_on(tmp_path, "n0", "n1") as agents:
        assert list(agents.request(Request(WRITE), seconds=20.0)) == ["n0", "n1"]
