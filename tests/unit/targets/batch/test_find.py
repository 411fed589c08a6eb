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


@pytest.mark.parametrize("ended_ago", [5, 3600], ids=["a moment ago", "an hour ago"])
def test_clean_cancels_a_job_that_runs_long_after_its_end(folder: Path, programs: Path, ended_ago: float) -> None:
    write_job_outcome(folder, state="preempted", problem="checkpoint", ended=time.time() - ended_ago)
    (programs / "jobs").write_text("12|orch-x|RUNNING|N/A|n1|BeginTime\n")
    report = find.clean(SLURM, "slurm", folder.parent, dry_run=False)
    assert [node.node for node in report.nodes] == ["job 12"] * (ended_ago > 60)


# The states of squeue(1) in which a job holds no nodes, because it waits or has ended.
HOLDS_NO_NODES = {
    *("PENDING", "CONFIGURING", "POWER_UP_NODE", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESV_DEL_HOLD"),
    *("SPECIAL_EXIT", "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "LAUNCH_FAILED", "NODE_FAIL"),
    *("OUT_OF_MEMORY", "PREEMPTED", "RECONFIG_FAIL", "REVOKED", "TIMEOUT", "STEP_ENDED"),
}


@pytest.mark.parametrize("state", sorted(PHASES))
def test_clean_cancels_only_jobs_that_hold_nodes_in_every_state_of_the_queue(
    folder: Path, programs: Path, state: str
) -> None:
    write_job_outcome(folder, state="preempted", problem="checkpoint", ended=time.time() - 3600)
    (programs / "jobs").write_text(f"12|orch-x|{state}|N/A|n1|None\n")
    find.clean(SLURM, "slurm", folder.parent, dry_run=False)
    assert (programs / "cancelled").exists() is (state not in HOLDS_NO_NODES)


def test_run_that_is_done_does_not_wait_although_slurm_has_requeued_its_job(folder: Path) -> None:
    pending = job_state("12", "PENDING")
    write_job_outcome(folder, state="preempted", problem="checkpoint at step 3")
    assert find.run_state(store.load(folder), pending) == "waiting"
    write_job_outcome(folder, state="done")
    assert find.run_state(store.load(folder), pending) == "done"


@pytest.mark.parametrize(
    ("user", "days", "is_removed"),
    [("ended", 31, True), ("ended", 29, False), ("queued", 31, False)],
    ids=["unused", "used recently", "used by a job in the queue"],
)
def test_clean_removes_what_no_run_has_used_for_30_days_from_the_store(
    tmp_path: Path, programs: Path, user: str, days: float, is_removed: bool
) -> None:
    runs = tmp_path / "runs"
    make_run(
        runs,
        target="slurm",
        location={"name": "orch-x", "job": "12"},
        run_dir=str(runs / "x"),
        python=sys.executable,
        train=str(TRAIN),
    )
    (programs / "jobs").write_text("13|orch-queued|PENDING|N/A|n1|Priority\n")
    sent = runs / ".orch/store" / hash_of(tmp_path / "bin")
    sent.mkdir(mode=0o700, parents=True)
    sent.parent.chmod(0o700)
    lock = sent.with_name(f".{sent.name}.lock")
    lock.write_text(f"{runs / user}\n")
    lock.chmod(0o600)
    used = time.time() - days * 24 * 3600
    os.utime(lock, (used, used))
    report = find.clean(SLURM, "slurm", runs, dry_run=True)
    assert [(node.left, node.unused) for node in report.nodes] == [((f"{sent}: no run uses it",), ())] * is_removed
    assert sent.exists()
    report = find.clean(SLURM, "slurm", runs, dry_run=False)
    assert [(node.state, node.unused) for node in report.nodes] == [("clean", (str(sent),))] * is_removed
    assert sent.exists() is not is_removed


def test_clean_reports_a_store_that_it_cannot_search(tmp_path: Path, programs: Path) -> None:
    location = {"name": "orch-x", "job": "12"}
    make_run(tmp_path, target="slurm", location=location, run_dir=str(tmp_path / "x"), train="/no")
    (tmp_path / ".orch/store").mkdir(parents=True)
    (programs / "jobs").write_text("")
    (node,) = find.clean(SLURM, "slurm", tmp_path, dry_run=False).nodes
    assert (node.state, "/no/node.py" in node.problem) == ("left", True)


def test_clean_does_not_cancel_the_job_of_an_active_run(folder: Path, programs: Path) -> None:
    (programs / "jobs").write_text("12|orch-x|RUNNING|N/A|n1|None\n")
    assert find.clean(SLURM, "slurm", folder.parent, dry_run=False).nodes == ()
    assert json.loads((folder / "plan.json").read_text())["location"]["job"] == "12"
