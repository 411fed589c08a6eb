"""Check how runs are found, and which jobs `orch clean` cancels."""

from __future__ import annotations

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
from orchestrator.targets.batch.slurm import SLURM, job_state
from tests.support.files import write_files, write_program
from tests.support.recorded import make_run
from tests.support.slurm_jobs import write_job_outcome


def test_damaged_record_names_no_other_host(tmp_path: Path) -> None:
    location = {"name": "orch-x", "job": "12", "login": "-oProxyCommand=touch PWNED"}
    folder = make_run(tmp_path, target="slurm", location=location)
    with pytest.raises(OrchError, match="is not a valid host"):
        location_of(store.load(folder).record)


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a folder on PATH whose squeue prints `jobs` and whose scancel records its arguments."""
    bin_folder = tmp_path / "bin"
    write_program(bin_folder / "squeue", f"#!/bin/sh\ncat {bin_folder}/jobs\n")
    write_program(bin_folder / "scancel", f'#!/bin/sh\necho "$@" >> {bin_folder}/cancelled\n')
    write_program(bin_folder / "sacct", "#!/bin/sh\nexit 1\n")
    monkeypatch.setenv("PATH", f"{bin_folder}:/usr/bin:/bin")
    return bin_folder


def test_clean_cancels_the_jobs_that_hold_nodes_long_after_their_run_has_ended(tmp_path: Path, programs: Path) -> None:
    states = ("RUNNING", "COMPLETING", "SUSPENDED", "PENDING", "CONFIGURING", "REQUEUE_HOLD", "COMPLETED", "NODE_FAIL")
    cases = [(state, 3600.0) for state in states] + [("RUNNING", 5.0), ("RUNNING", None)]
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
    assert [node.node for node in report.nodes] == ["job 0", "job 1", "job 2"]
    assert (programs / "cancelled").read_text().split() == ["0", "1", "2"]


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
    write_files(base / user, {"file": user})
    runs = base / "runs"
    stored = runs / ".orch/store" / hash_of(base / user)
    stored.mkdir(mode=0o700)
    lock = stored.with_name(f".{stored.name}.lock")
    lock.write_text(f"{runs / user}\n")
    lock.chmod(0o600)
    used = time.time() - days * 24 * 3600
    os.utime(lock, (used, used))
    return stored
