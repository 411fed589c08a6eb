"""Check how the agents of a job connect to its supervisor and talk to it, and that strangers cannot interfere."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from orch_node.batch import agents as job_agents
from orch_node.batch.agents import AgentConnections, JobAgents, JobChannel, is_superseded, listening_address
from orch_node.batch.slurm import SYSTEM
from orch_node.batch.system import JobError
from orch_node.line_pipes import Pipes
from orch_node.protocol import batch, files
from orch_node.protocol.agent import LEAVE, PING, Request, render_request
from orch_node.protocol.batch import Submitted
from orch_node.signed_lines import AGENT, SUPERVISOR, SignatureError, SignedLines, connection_key

from orchestrator.files import TRAIN
from tests.support.files import write_program
from tests.support.waiting import wait_until
from tests.unit.orch_node.batch.test_layout import make_hello


@pytest.fixture
def connections(run_dir: Path) -> Iterator[AgentConnections]:
    pending = AgentConnections(SYSTEM, run_dir, ["n1", "n2"])
    yield pending
    pending.close()


@pytest.fixture
def silent_connections(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[AgentConnections]:
    """Yield connections whose step starts no agents, so that a test can act as them."""
    monkeypatch.setattr(AgentConnections, "start", lambda self: subprocess.Popen(["sleep", "60"]))
    connections = AgentConnections(SYSTEM, run_dir, ["n1", "n2"])
    yield connections
    connections.close()


@pytest.fixture
def agents(run_dir: Path, connections: AgentConnections) -> JobAgents:
    """Return the agents of a job, which have connected."""
    connections.accept_all(60.0)
    return JobAgents(run_dir, ["n1", "n2"], "claims", connections=connections)


@pytest.mark.parametrize("sent", [b"", b"x" * (2 << 20)], ids=["nothing", "no end"])
def test_stranger_does_not_keep_the_nodes_out(connections: AgentConnections, sent: bytes) -> None:
    with socket.create_connection(connections.server.getsockname()) as stranger:
        stranger.setblocking(False)
        with contextlib.suppress(OSError):
            stranger.send(sent)
        connections.accept_all(60.0)
    assert set(connections.channels) == {"n1", "n2"}


def test_stranger_that_sends_a_byte_at_a_time_does_not_extend_the_limit(silent_connections: AgentConnections) -> None:
    ended = threading.Event()

    def drip() -> None:
        with socket.create_connection(silent_connections.server.getsockname()) as stranger:
            while not ended.wait(0.05):
                stranger.send(b"x")

    thread = threading.Thread(target=drip)
    thread.start()
    began = time.monotonic()
    try:
        with pytest.raises(JobError, match="no agent has connected from n1, n2"):
            silent_connections.accept_all(1.0)
    finally:
        ended.set()
        thread.join()
    assert time.monotonic() - began < job_agents.HELLO_SECONDS, "that one connection may take"


@example(data='{"key": "é", "node": "n1"}\n'.encode(), sizes=[300])
@example(data=b'nonce {"node": "n1"}\n', sizes=[300])
@example(data=b"\xff\xfe\n", sizes=[300])
@given(data=st.binary(max_size=300), sizes=st.lists(st.integers(1, 40), min_size=1))
def test_bytes_without_a_key_admit_no_node(silent_connections: AgentConnections, data: bytes, sizes: list[int]) -> None:
    """Close the connection and accept no node, whatever bytes arrive in pieces of whatever sizes."""
    supervisor_end, stranger = socket.socketpair()
    slots = threading.Semaphore(0)
    with stranger:
        thread = threading.Thread(target=silent_connections.admit, args=(supervisor_end, slots))
        thread.start()
        pieces = itertools.cycle(sizes)
        while data:
            size = next(pieces)
            with contextlib.suppress(OSError):
                stranger.send(data[:size])
            data = data[size:]
        with contextlib.suppress(OSError):
            stranger.shutdown(socket.SHUT_WR)
        thread.join(30.0)
    assert slots.acquire(blocking=False)
    assert supervisor_end.fileno() == -1
    assert not silent_connections.channels


def test_address_in_slurm_is_used_for_a_node_name_that_is_no_host(run_dir: Path) -> None:
    text = '#!/bin/sh\necho "NodeName=$5 NodeAddr=127.0.0.1 NodeHostName=x"\n'
    write_program(run_dir.parent / "bin" / "scontrol", text)
    assert listening_address(SYSTEM, ["no-such-host.invalid"]) == "127.0.0.1"


def test_end_of_the_connections_does_not_cancel_the_step(silent_connections: AgentConnections, run_dir: Path) -> None:
    """Send no SIGTERM, at which srun cancels the step of this number, also in a later start of the job."""
    script = f"trap 'touch {run_dir}/terminated' TERM; touch {run_dir}/ready; while :; do sleep 0.1; done"
    silent_connections.step.kill()
    silent_connections.step.wait()
    silent_connections.step = subprocess.Popen(["sh", "-c", script])
    wait_until((run_dir / "ready").exists, "that the step runs")
    silent_connections.close()
    assert silent_connections.step.wait(60.0) == -signal.SIGKILL
    assert not (run_dir / "terminated").exists()


def test_node_that_sends_unsigned_lines_is_lost_and_fills_no_disk(tmp_path: Path) -> None:
    supervisor_end, node_end = socket.socketpair()
    lines, pipes = SignedLines(b"key", sender=SUPERVISOR, receiver=AGENT), Pipes()
    channel = JobChannel(make_hello(1), tmp_path / "n1.log", supervisor_end, lines)
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
    for channel in connections.channels.values():
        channel.connection.sendall(b'{"kind": "leave"}\n')
    assert rank.wait(60.0) == -signal.SIGTERM
    connections.step.wait(60.0)


def test_agent_survives_sigterm_and_reports_it(agents: JobAgents, connections: AgentConnections) -> None:
    """Keep the agents running at SIGTERM, which Slurm sends to all steps before it ends them."""
    assert set(agents.request(Request(PING), seconds=60.0)) == {"n1", "n2"}
    assert not agents.preempted
    for pid in Path(f"/proc/{connections.step.pid}/task/{connections.step.pid}/children").read_text().split():
        os.kill(int(pid), signal.SIGTERM)

    def reported() -> bool:
        agents.request(Request(PING), seconds=10.0)
        return agents.preempted

    wait_until(reported, "that the agent reports it", 60.0)
    assert set(agents.request(Request(PING), seconds=60.0)) == {"n1", "n2"}
    agents.leave()
    assert connections.step.wait(60.0) == 0


def test_older_start_of_a_job_is_superseded(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    for latest, superseded in (
        (Submitted("12", 1), False),  # this
        (Submitted("12", 2), True),  # restart
        (Submitted("12", 0), False),  # older-restart
        (Submitted("13", 0), True),  # later-job
        (Submitted("9", 5), False),  # earlier-job
    ):
        text = json.dumps({"job": latest.job, "restarts": latest.restarts, "notes": []})
        (run_dir / batch.job_file("slurm")).write_text(text)
        assert is_superseded(SYSTEM, run_dir) is superseded


def test_supervisor_obeys_the_stop_file_and_loses_no_node_after_a_pause(agents: JobAgents, run_dir: Path) -> None:
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
    command = [sys.executable, "-c", QUICK_AGENT, str(TRAIN / "lib"), str(run_dir), "n1", str(run_dir / "claims")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as agent:
        for pause in (0.0, 4.0):
            if pause:
                agent.send_signal(signal.SIGSTOP)
                time.sleep(pause)
                agent.send_signal(signal.SIGCONT)
                time.sleep(1.0)
            agent.stdin.write(render_request(Request(PING)))
            agent.stdin.flush()
            assert b"ping" in agent.stdout.readline()
        agent.stdin.write(render_request(Request(LEAVE)))
        agent.stdin.flush()
        assert agent.wait(60.0) == 0


def make_ends() -> tuple[SignedLines, SignedLines]:
    """Return both ends of a connection: the supervisor's and the agent's."""
    return (
        SignedLines(b"key", sender=SUPERVISOR, receiver=AGENT),
        SignedLines(b"key", sender=AGENT, receiver=SUPERVISOR),
    )


def test_line_that_is_changed_repeated_left_out_or_returned_is_refused() -> None:
    supervisor, agent = make_ends()
    first, second = supervisor.sign(b"one\n"), supervisor.sign(b"two\n")
    for line in (first.replace(b"one", b"own"), second, b"one\n"):
        with pytest.raises(SignatureError):
            agent.verify(line)
    assert agent.verify(first) == b"one\n"
    with pytest.raises(SignatureError):
        agent.verify(first)
    with pytest.raises(SignatureError):
        supervisor.verify(first)


def test_keys_of_connections_differ() -> None:
    assert len({connection_key(*parts) for parts in (("k", "a", "b"), ("k", "b", "a"), ("l", "a", "b"))}) == 3
