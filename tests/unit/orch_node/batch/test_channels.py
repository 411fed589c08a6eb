"""Check how the supervisor of a job talks to its agents."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from orch_node.batch.agent_connections import AgentConnections
from orch_node.batch.channels import JobAgents, JobChannel, is_superseded
from orch_node.batch.slurm import SYSTEM
from orch_node.line_pipes import Pipes
from orch_node.protocol import batch, files
from orch_node.protocol.agent import Alive, Leave, Ping, render_request
from orch_node.protocol.batch import AGENT, SUPERVISOR, SignedLines, Submitted

from orchestrator.files import TRAIN
from tests.support.waiting import wait_until


@pytest.fixture
def agents(run_dir: Path, connections: AgentConnections) -> JobAgents:
    """Return the agents of a job, which have connected."""
    connections.accept_all(60.0)
    return JobAgents(run_dir, ["n1", "n2"], "claims", Pipes(), system=SYSTEM, connections=connections.connections)


def test_node_that_sends_unsigned_lines_is_lost_and_fills_no_disk(tmp_path: Path) -> None:
    supervisor_end, node_end = socket.socketpair()
    lines, pipes = SignedLines(b"key", sender=SUPERVISOR, receiver=AGENT), Pipes()
    channel = JobChannel("n1", tmp_path / "n1.log", supervisor_end, lines)
    channel.open(pipes)
    with node_end:
        node_end.send(b"junk\n" * 1000)
        pipes.pump(1.0)
    assert not channel.connected
    assert "signature" in channel.problem()
    assert not channel.log.exists()


def test_agent_ends_its_ranks_at_an_unsigned_request(run_dir: Path, connections: AgentConnections) -> None:
    connections.accept_all(60.0)
    rank = subprocess.Popen(["sleep", "600"], env={"ORCH_RUN_DIR": str(run_dir)})
    for connection, _ in connections.connections.values():
        connection.sendall(b'{"ask": "leave"}\n')
    assert rank.wait(60.0) == -signal.SIGTERM
    connections.step.wait(60.0)


def test_agent_survives_sigterm_and_reports_it(agents: JobAgents, connections: AgentConnections) -> None:
    """Keep the agents running at SIGTERM, which Slurm sends to all steps before it ends them."""
    assert set(agents.request(Ping(), Alive, seconds=60.0)) == {"n1", "n2"}
    assert not agents.preempted
    for pid in Path(f"/proc/{connections.step.pid}/task/{connections.step.pid}/children").read_text().split():
        os.kill(int(pid), signal.SIGTERM)

    def reported() -> bool:
        agents.request(Ping(), Alive, seconds=10.0)
        return agents.preempted

    wait_until(reported, "that the agent reports it", 60.0)
    assert set(agents.request(Ping(), Alive, seconds=60.0)) == {"n1", "n2"}
    agents.leave()
    assert connections.step.wait(60.0) == 0


def test_older_start_of_a_job_is_superseded(run_dir: Path) -> None:
    for latest, superseded in (
        (Submitted("12", 1), False),  # this
        (Submitted("12", 2), True),  # restart
        (Submitted("12", 0), False),  # older-restart
        (Submitted("13", 0), True),  # later-job
        (Submitted("9", 5), False),  # earlier-job
    ):
        text = json.dumps({"job": latest.job, "restarts": latest.restarts, "notes": []})
        (run_dir / batch.job_file("slurm")).write_text(text)
        assert is_superseded(run_dir / batch.job_file("slurm"), Submitted("12", 1)) is superseded


def test_supervisor_obeys_the_stop_file_and_loses_no_node_because_it_stood_still(
    agents: JobAgents, run_dir: Path
) -> None:
    received: list[int] = []
    previous = signal.signal(signal.SIGINT, lambda number, frame: received.append(number))
    try:
        agents.obey_run_folder()
        assert received == []
        (run_dir / files.STOP).write_text("")
        agents.obey_run_folder()
        assert received == [signal.SIGINT]
    finally:
        signal.signal(signal.SIGINT, previous)
    agents.watch()
    for channel in agents.channels.values():
        channel.last_response -= 60.0
    agents.last_watch -= 60.0  # Pretend that the process was stopped for a minute.
    assert 60.0 <= agents.watch() < 70.0
    assert agents.lost == {}
    assert [node for node, text in agents.news if "did not run" in text] == ["n1"]
    agents.leave()


QUICK_AGENT = """
import sys
sys.path.append(sys.argv[1])
from orch_node.agent import agent
agent.SILENCE_SECONDS, agent.SUSPENSION_SECONDS = 2.0, 1.0
sys.exit(agent.main(sys.argv[2:]))
"""


def test_agent_that_was_stopped_continues(run_dir: Path) -> None:
    """Stop the agent as `scontrol suspend` does, so that no request arrives while it is stopped."""
    arguments = (str(TRAIN / "lib"), str(run_dir), "n1", str(run_dir / "claims"))
    with subprocess.Popen(
        [sys.executable, "-c", QUICK_AGENT, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as agent:
        for pause in (0.0, 4.0):
            if pause:
                agent.send_signal(signal.SIGSTOP)
                time.sleep(pause)
                agent.send_signal(signal.SIGCONT)
                time.sleep(1.0)
            agent.stdin.write(render_request(Ping()))
            agent.stdin.flush()
            assert b"ping" in agent.stdout.readline()
        agent.stdin.write(render_request(Leave()))
        agent.stdin.flush()
        assert agent.wait(60.0) == 0
