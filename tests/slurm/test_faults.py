"""Test failures on a real Slurm that take a minute each, only if ORCH_SLURM_SUITE is set."""

from __future__ import annotations

import json
import os
import subprocess

import pytest

from tests.slurm.runs import CHECKPOINTING, LONG_RUN, TWO_NODES, BackgroundRun, start_requeued_job
from tests.slurm.site import Site

pytestmark = pytest.mark.skipif("ORCH_SLURM_SUITE" not in os.environ, reason="needs ORCH_SLURM_SUITE (make test-all)")


def test_a_node_that_dies_without_a_spare_is_named(site: Site) -> None:
    run = BackgroundRun(site, *TWO_NODES, *LONG_RUN)
    run.wait_for_event("joined", 2)
    subprocess.run(["docker", "kill", site.container("n2")], check=True, capture_output=True)
    code, output = run.wait()
    assert code == 1, output
    assert "n2" in output
    assert run.read_outcome()["state"] == "failed"


def test_a_job_at_its_time_limit_writes_a_checkpoint_and_continues(site: Site) -> None:
    """Use a limit of three minutes: Slurm signals the job 50 to 80 s earlier, when the ranks have certainly joined."""
    time_limit = ("--slurm", "time=3", "--slurm", "signal=B:TERM@50")
    run = BackgroundRun(site, *TWO_NODES, *time_limit, "--", "1", script=CHECKPOINTING)
    run.wait_for_event("joined", 2)
    start_requeued_job(run, seconds=240)
    first_outcome = json.loads((run.folder / "outcome-0.json").read_text())
    assert first_outcome["problem"].startswith("checkpoint at step")
    site.stdout_of("scontrol", "update", f"jobid={run.job_id()}", "timelimit=10", user="root")
    code, output = run.wait()
    assert code == 0, output
