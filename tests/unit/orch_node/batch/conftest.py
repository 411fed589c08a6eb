"""The folder of a run, and connections of the agents of its job."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from orch_node.batch import agent_connections
from orch_node.batch.agent_connections import AgentConnections
from orch_node.batch.slurm import SYSTEM
from orch_node.protocol import batch

from tests.support.files import write_program

# Start one agent per name in NODES on this machine, as srun does on the nodes of a job.
SRUN = """#!/bin/sh
while [ "$1" != "$PYTHON" ]; do shift; done
for node in $NODES; do SLURMD_NODENAME=$node "$@" & done
wait
"""


@pytest.fixture
def run_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of a run on a machine with an srun."""
    programs = tmp_path / "bin"
    write_program(programs / "srun", SRUN)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setenv("NODES", "n1 n2")
    monkeypatch.setenv("SLURM_JOB_ID", "12")
    monkeypatch.setenv("PYTHON", sys.executable)
    monkeypatch.setattr(agent_connections, "listening_address", lambda system, peers: "127.0.0.1")
    monkeypatch.setattr(agent_connections, "END_SECONDS", 0.2)
    folder = tmp_path / "run"
    (folder / "claims").mkdir(parents=True)
    (folder / batch.CONFIG).write_text("{}")
    return folder


@pytest.fixture
def connections(run_dir: Path) -> Iterator[AgentConnections]:
    pending = AgentConnections(SYSTEM, run_dir, ["n1", "n2"])
    yield pending
    pending.end()


@pytest.fixture
def silent_connections(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[AgentConnections]:
    """Yield connections whose step starts no agents, so that a test can act as them."""
    monkeypatch.setattr(AgentConnections, "start", lambda self: subprocess.Popen(["sleep", "60"]))
    connections = AgentConnections(SYSTEM, run_dir, ["n1", "n2"])
    yield connections
    connections.end()
