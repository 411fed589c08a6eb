"""Check how runs are found, and which jobs `orch clean` cancels."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import pytest
from orch_node.content_store import hash_of

from orchestrator.errors import OrchError
from orchestrator.files import TRAIN
from orchestrator.runs import store
from orchestrator.targets.batch import find
from orchestrator.targets.batch.location import location_of
from orchestrator.targets.batch.slurm import PHASES, SLURM, job_state
from orchestrator.targets.interface import ignore
from tests.support.recorded import make_outcome, make_run
from tests.support.slurm_jobs import write_job_outcome


def test_damaged_record_names_no_other_host(tmp_path: Path) -> None:
    location = {"name": "orch-x", "job": "12", "login": "-oProxyCommand=touch PWNED"}
    folder = make_run(tmp_path, target="slurm", location=location)
    with pytest.raises(OrchError, match="is not a valid host"):
        location_of(store.load(folder).record)


def test_last_is_not_a_refused_run(tmp_path: Path) -> None:
    for number, state in enumerate(("done", "refused")):
        run_id = f"2026010{number + 1}-120000-qa-0000"
        folder = make_run(
            tmp_path, run_id, created=float(number), target="slurm", location={"name": f"orch-{number}", "job": "12"}
        )
        (folder / "outcome.json").write_text(json.dumps(make_outcome(state)))
    assert find.find_run(SLURM, tmp_path, "last", ignore)[0].run_id == "20260101-120000-qa-0000"


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a folder on PATH whose squeue prints `jobs` and whose scancel records its arguments."""
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    for name, text in {
        "squeue": f"cat {bin_folder}/jobs",
        "scancel": f'echo "$@" >> {bin_folder}/cancelled',
        "sacct": "exit 1",
    }.items():
        (bin_folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (bin_folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{bin_folder}:/usr/bin:/bin")
    return bin_folder


# The states of squeue(1) in which a job holds no nodes, because it waits or has ended.
HOLDS_NO_NODES = {
    *("PENDING", "CONFIGURING", "POWER_UP_NODE", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESV_DEL_HOLD"),
    *("SPECIAL_EXIT", "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "LAUNCH_FAILED", "NODE_FAIL"),
    *("OUT_OF_MEMORY", "PREEMPTED", "RECONFIG_FAIL", "REVOKED", "TIMEOUT", "STEP_ENDED"),
}


def test_clean_cancels_the_jobs_that_hold_nodes_long_after_their_run_has_ended(tmp_path: Path, programs: Path) -> None:
    cases = [(state, 3600.0) for state in PHASES] + [("RUNNING", 5.0), ("RUNNING", None)]
    jobs = ""
    for job, (state, seconds) in enumerate(cases):
        location = {"name": f"orch-{job}", "job": str(job)}
        folder = make_run(tmp_path, f"run-{job}", ranks=1, nodes=1, seconds=1, target="slurm", location=location)
        (folder / "outcome.json").unlink()
        if seconds is not None:  # The run has ended.
            write_job_outcome(folder, state="preempted", problem="checkpoint", ended=time.time() - seconds)
        jobs += f"{job}|orch-{job}|{state}|N/A|n1|None\n"
    (programs / "jobs").write_text(jobs)
    report = find.clean(SLURM, "slurm", tmp_path, dry_run=False)
    expected = [str(job) for job, state in enumerate(PHASES) if state not in HOLDS_NO_NODES]
    assert sorted(node.node for node in report.nodes) == sorted(f"job {job}" for job in expected)
    assert sorted((programs / "cancelled").read_text().split()) == sorted(expected)


def test_run_that_is_done_does_not_wait_although_slurm_has_requeued_its_job(folder: Path) -> None:
    pending = job_state("12", "PENDING")
    write_job_outcome(folder, state="preempted", problem="checkpoint at step 3")
    assert find.run_state(store.load(folder), pending) == "waiting"
    write_job_outcome(folder, state="done")
    assert find.run_state(store.load(folder), pending) == "done"


def test_clean_removes_what_no_run_has_used_for_30_days_from_the_store(tmp_path: Path, programs: Path) -> None:
    runs = tmp_path / "runs"
    location = {"name": "orch-x", "job": "12"}
    make_run(runs, target="slurm", location=location, run_dir=str(runs / "x"), python=sys.executable, train=str(TRAIN))
    (programs / "jobs").write_text("13|orch-queued|PENDING|N/A|n1|Priority\n")
    (runs / ".orch/store").mkdir(mode=0o700, parents=True)
    unused, *used = (
        store_folder(tmp_path, user, days) for user, days in (("ended", 31), ("ended2", 29), ("queued", 31))
    )
    report = find.clean(SLURM, "slurm", runs, dry_run=True)
    assert [(node.left, node.unused) for node in report.nodes] == [((f"{unused}: no run uses it",), ())]
    assert unused.exists()
    report = find.clean(SLURM, "slurm", runs, dry_run=False)
    assert [(node.state, node.unused) for node in report.nodes] == [("clean", (str(unused),))]
    assert [folder.exists() for folder in (unused, *used)] == [False, True, True]


def store_folder(base: Path, user: str, days: float) -> Path:
    """Put a folder into the store that a run has used so many days ago, and return its path there."""
    (base / user).mkdir()
    (base / user / "file").write_text(user)
    runs = base / "runs"
    stored = runs / ".orch/store" / hash_of(base / user)
    stored.mkdir(mode=0o700)
    lock = stored.with_name(f".{stored.name}.lock")
    lock.write_text(f"{runs / user}\n")
    lock.chmod(0o600)
    used = time.time() - days * 24 * 3600
    os.utime(lock, (used, used))
    return stored


def test_clean_reports_a_store_that_it_cannot_search(tmp_path: Path, programs: Path) -> None:
    location = {"name": "orch-x", "job": "12"}
    make_run(tmp_path, target="slurm", location=location, run_dir=str(tmp_path / "x"), train="/no")
    (tmp_path / ".orch/store").mkdir(parents=True)
    (programs / "jobs").write_text("")
    (node,) = find.clean(SLURM, "slurm", tmp_path, dry_run=False).nodes
    assert (node.state, "/no/node.py" in node.problem) == ("left", True)
