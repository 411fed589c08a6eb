"""Check how a job explains its end, and when it is requeued or repeated."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from orch_node.agent import run_folders
from orch_node.batch import job, slurm, system
from orch_node.batch.slurm import SYSTEM
from orch_node.protocol import batch, files
from orch_node.protocol import outcome as outcomes
from orch_node.protocol.events import Launched, render
from orch_node.protocol.outcome import FAILED, Failure, Outcome

from orchestrator.files import LIB
from tests.support.files import write_program


def test_superseded_start_writes_no_outcome(run_dir: Path) -> None:
    """Exit before the outcome of the later start could be overwritten."""
    program = """
import sys
from pathlib import Path
from orch_node.batch import job, slurm
sys.exit(job.fail(slurm.SYSTEM, Path(sys.argv[1]), "n2 cannot be reached", 1.0))
"""
    (run_dir / batch.job_file("slurm")).write_text(json.dumps({"job": "12", "restarts": 1, "notes": []}))
    command = [sys.executable, "-c", program, str(run_dir)]
    for restarts, is_written in (("0", False), ("1", True)):
        variables = {**os.environ, "PYTHONPATH": str(LIB), "SLURM_RESTART_COUNT": restarts}
        result = subprocess.run(command, env=variables, capture_output=True, text=True)
        assert result.returncode == 1
        assert ("Slurm has restarted this job elsewhere" in result.stderr) is not is_written, result.stderr
        assert (run_dir / files.OUTCOME).exists() is is_written


def test_restarted_job_does_not_repeat_a_run_that_is_done(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for restarts, state, is_done in (("1", "done", True), ("0", "done", False), ("1", "failed", False)):
        monkeypatch.setenv("SLURM_RESTART_COUNT", restarts)
        (run_dir / files.OUTCOME).write_text(outcomes.render(Outcome(state=state)))
        assert job.is_done(SYSTEM, run_dir) is is_done


def test_job_asks_its_own_cluster_whatever_clusters_its_user_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check it for a batch script: programs would need slurmdbd, and find a job of the same number elsewhere."""
    monkeypatch.setenv("SLURM_CLUSTERS", "east,west")
    monkeypatch.delenv("SLURM_STEP_ID", raising=False)
    SYSTEM.prepare()
    assert "SLURM_CLUSTERS" not in os.environ


def test_start_of_a_requeued_job_counts_the_attempts_of_earlier_starts(run_dir: Path) -> None:
    log = run_dir / files.EVENTS
    assert job.last_attempt(log) == 0
    launched = b"{\n".join(render(Launched(attempt=number)) for number in (1, 2))
    log.write_bytes(launched + b'{\n{"event": "launched"}\n')
    assert job.last_attempt(log) == 2


def test_memory_failure_is_explained_by_slurms_message(run_dir: Path) -> None:
    line = "slurmstepd: error: StepId=12.1 exceeded memory limit (700 > 500), being killed"
    (run_dir / files.LAUNCHER_LOG).write_text(f"{line}\n")
    code = "the launcher ended with exit code 137"
    explained = job.explain_memory_failure(SYSTEM, run_dir, Outcome(FAILED, problem=code))
    assert explained.problem == f"{SYSTEM.out_of_memory}: {line}; {code}"
    killed = Outcome(FAILED, first_failure=Failure(rank=1, signal="SIGKILL"))
    result = job.explain_memory_failure(SYSTEM, run_dir, killed)
    assert result.first_failure.oom == line
    raised = Outcome(FAILED, first_failure=Failure(rank=1, code=1))
    assert job.explain_memory_failure(SYSTEM, run_dir, raised) == raised
    # Slurm has killed all processes of a node, so only the rank of the other node reports its end.
    lost_peer = Failure(rank=0, node="n1", code=1, text="RuntimeError: Connection closed by peer [10.0.0.2]:40153")
    result = job.explain_memory_failure(SYSTEM, run_dir, Outcome(FAILED, first_failure=lost_peer))
    assert result.first_failure is None
    assert result.problem == f"{SYSTEM.out_of_memory}: {line}"


def test_next_attempt_has_no_outcome_of_an_earlier_job(run_dir: Path) -> None:
    (run_dir / "outcome-0.json").write_text("{}")
    run_folders.prepare(run_dir)
    assert not list(run_dir.glob("outcome*"))


def test_job_is_requeued_only_while_its_checkpoint_advances(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_RESTART_COUNT", "2")
    for problem, before, limit, refused in (
        # The first two find no earlier outcome.
        ("checkpoint at step 12", None, None, ""),  # first
        ("without a checkpoint: the run had not started", None, None, "without a checkpoint"),
        ("checkpoint at step 12", "checkpoint at step 11", None, ""),  # later
        ("checkpoint at step 12", "checkpoint at step 12", None, "not newer than"),  # same-step
        ("checkpoint at step 12", "checkpoint at step 11", 2, "as often as --slurm max-requeues"),  # limit
        ("checkpoint at step 12", "checkpoint at step 11", 3, ""),  # below-limit
    ):
        if before is not None:
            (run_dir / "outcome-1.json").write_text(outcomes.render(Outcome(state="preempted", problem=before)))
        result = job.requeue_problem(SYSTEM, run_dir, problem, limit)
        assert refused in result
        assert bool(result) is bool(refused)


# The controller responds to the last of so many requests.
SCONTROL = """#!/bin/sh
echo "$*" >>requests
[ "$(wc -l <requests)" -ge "$NEEDED" ] || { echo "$PROBLEM" >&2; exit 1; }
"""


def test_requeue_is_retried_if_the_controller_does_not_respond(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system, "RETRY_SECONDS", 0.0)
    monkeypatch.setattr(slurm, "REQUEUE_SECONDS", 0.0)
    monkeypatch.chdir(run_dir)
    for name, text in (("scontrol", SCONTROL), ("squeue", "#!/bin/sh\n")):
        write_program(run_dir.parent / "bin" / name, text)
    away, disabled = "Unable to contact slurm controller (connect failure)", "Requested operation is presently disabled"
    for needed, problem, requests in (("3", away, 3), ("99", away, 6), ("99", disabled, 7)):
        monkeypatch.setenv("NEEDED", needed)
        monkeypatch.setenv("PROBLEM", problem)
        assert SYSTEM.requeue(run_dir) == ("" if needed == "3" else problem)
        assert (run_dir / "requests").read_text() == "requeue 12\n" * requests
