"""Interrupt the submission of a job, with programs of Slurm that are shell scripts."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.errors import ExecuteError
from orchestrator.runs import store
from orchestrator.targets.batch.location import location_of
from orchestrator.targets.batch.scheduler import Scheduler
from orchestrator.targets.batch.slurm import SLURM
from orchestrator.targets.batch.start import record_jobs, start
from orchestrator.targets.connections.connection import Ssh
from tests.support.disks import small_file_system
from tests.support.files import write_program
from tests.support.slurm_plans import SITE, make_array, make_request, plan_request


class Full(Ssh):
    """A login node on which no file can be written."""

    def put(self, path: str, content: str, mode: int = 0o600) -> None:
        raise ExecuteError("The disk is full.")


def test_all_members_of_a_submitted_array_have_their_job(tmp_path: Path) -> None:
    plan = make_array("learning_rate=1e-5,3e-5")
    folders = [tmp_path / member.run.run_id for member in plan.array]
    for member, folder in zip(plan.array, folders, strict=True):
        store.create(member, folder)
    with pytest.raises(ExecuteError):
        record_jobs(plan, folders, Scheduler(SLURM, Full("login1", None), submitted="12"))
    assert [location_of(store.load(folder).record).job for folder in folders] == ["12_0", "12_1"]


def test_job_that_cannot_be_recorded_is_cancelled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    disk, cancelled = tmp_path / "disk", tmp_path / "cancelled"
    write_program(tmp_path / "sbatch", f"#!/bin/sh\ncat /dev/zero > {disk}/data 2>&-\necho 12\n")
    write_program(tmp_path / "scancel", f'#!/bin/sh\necho "$@" > {cancelled}\n')
    with small_file_system(disk, "1m"):
        folder = disk / "runs" / SITE.run_id
        plan = plan_request(make_request(), site=replace(SITE, run_dir=str(folder)))
        with pytest.raises(ExecuteError, match=r"is full .* so orch cancelled job 12"):
            start(SLURM, plan, folder)
        assert not folder.exists()
    assert cancelled.read_text() == "12\n"


INTERRUPT = "#!/bin/sh\nkill -INT $PPID\nsleep 10\n"


# subprocess.run() does not wait for a program that it kills because of Ctrl-C.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("accepted", [True, False])
def test_interrupted_submission_is_recorded_only_if_slurm_has_accepted_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, accepted: bool
) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    write_program(tmp_path / "sbatch", INTERRUPT)
    listed = f"12|orch-{SITE.run_id}|PENDING|N/A||None" if accepted else ""
    write_program(tmp_path / "squeue", f"#!/bin/sh\necho '{listed}'\n")
    folder = tmp_path / "runs" / SITE.run_id
    plan = plan_request(make_request(), site=replace(SITE, run_dir=str(folder)))
    with pytest.raises(KeyboardInterrupt):
        start(SLURM, plan, folder)
    assert folder.exists() == accepted
    if accepted:
        assert location_of(store.load(folder).record).job == "12", "`orch stop` can end it"
