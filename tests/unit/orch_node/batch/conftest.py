"""The folder of a run that is a job of Slurm."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from orch_node.batch import agents
from orch_node.protocol import batch, values

from orchestrator.targets.batch.plan import plan_run
from tests.support.files import write_program
from tests.support.slurm_plans import make_request, plan_request

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
    monkeypatch.setattr(agents, "listening_address", lambda system, peers: "127.0.0.1")
    monkeypatch.setattr(agents, "END_SECONDS", 0.2)
    folder = tmp_path / "run"
    (folder / "claims").mkdir(parents=True)
    _, config = plan_request(make_request(), planner=plan_run)
    (folder / batch.CONFIG).write_text(json.dumps(values.record(config)))
    return folder
