"""Check how the agents of a job connect to its supervisor, and that strangers cannot interfere."""

from __future__ import annotations

import contextlib
import itertools
import signal
import socket
import subprocess
import threading
import time
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from orch_node.batch import agent_connections
from orch_node.batch.agent_connections import AgentConnectionError, AgentConnections, listening_address
from orch_node.batch.slurm import SYSTEM

from tests.support.files import write_program
from tests.support.waiting import wait_until


@pytest.mark.parametrize("sent", [b"", b"x" * (2 << 20)], ids=["nothing", "no end"])
def test_stranger_does_not_keep_the_nodes_out(connections: AgentConnections, sent: bytes) -> None:
    with socket.create_connection(connections.server.getsockname()) as stranger:
        stranger.setblocking(False)
        with contextlib.suppress(OSError):
            stranger.send(sent)
        connections.accept_all(60.0)
    assert set(connections.hellos) == {"n1", "n2"}


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
        with pytest.raises(AgentConnectionError, match="no agent has connected from n1, n2"):
            silent_connections.accept_all(1.0)
    finally:
        ended.set()
        thread.join()
    assert time.monotonic() - began < agent_connections.HELLO_SECONDS, "that one connection may take"


@example(data='{"key": "é", "node": "n1"}\n'.encode(), sizes=[300])
@example(data=b'nonce {"node": "n1"}\n', sizes=[300])
@example(data=b"\xff\xfe\n", sizes=[300])
@given(data=st.binary(max_size=300), sizes=st.lists(st.integers(1, 40), min_size=1))
def test_bytes_without_the_key_never_introduce_a_node(
    silent_connections: AgentConnections, data: bytes, sizes: list[int]
) -> None:
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
    assert not silent_connections.hellos


def test_address_in_slurm_is_used_for_a_node_name_that_is_no_host(run_dir: Path) -> None:
    text = '#!/bin/sh\necho "NodeName=$5 NodeAddr=127.0.0.1 NodeHostName=x"\n'
    write_program(run_dir.parent / "bin" / "scontrol", text)
    assert listening_address(SYSTEM, ["no-such-host.invalid"]) == "127.0.0.1"


def test_end_of_the_connections_sends_no_signal_that_cancels_a_step(
    silent_connections: AgentConnections, run_dir: Path
) -> None:
    """Send no SIGTERM, at which srun cancels the step of this number, also in a later start of the job."""
    script = f"trap 'touch {run_dir}/terminated' TERM; touch {run_dir}/ready; while :; do sleep 0.1; done"
    silent_connections.step.kill()
    silent_connections.step.wait()
    silent_connections.step = subprocess.Popen(["sh", "-c", script])
    wait_until((run_dir / "ready").exists, "that the step runs")
    silent_connections.end()
    assert silent_connections.step.wait(60.0) == -signal.SIGKILL
    assert not (run_dir / "terminated").exists()
