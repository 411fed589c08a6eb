"""Check how jobs are submitted and found, and which of them `orch clean` cancels; their programs are shell scripts."""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from orch_node.content_store import hash_of

from orchestrator.errors import ExecuteError, OrchError
from orchestrator.files import TRAIN
from orchestrator.operations.runs import list_recorded_runs
from orchestrator.runs import store
from orchestrator.targets.batch import scheduler
from orchestrator.targets.batch.scheduler import Scheduler
from orchestrator.targets.batch.settings import location_of
from orchestrator.targets.batch.slurm import SLURM, job_state
from orchestrator.targets.batch.system import Phase
from orchestrator.targets.batch.target import BatchTarget, record_jobs, run_state
from orchestrator.targets.connections.connection import Ssh
from orchestrator.targets.interface import RunHandle
from tests.support.disks import small_file_system
from tests.support.files import set_age, write_files, write_program
from tests.support.recorded import make_run
from tests.support.slurm_jobs import write_job_outcome
from tests.support.slurm_plans import SITE, make_array, make_request, plan_request


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a folder on PATH whose squeue prints `jobs` and whose scancel records its arguments."""
    bin_folder = tmp_path / "bin"
    write_program(bin_folder / "squeue", f"#!/bin/sh\ncat {bin_folder}/jobs\n")
    write_program(bin_folder / "scancel", f'#!/bin/sh\necho "$@" >> {bin_folder}/cancelled\n')
    write_program(bin_folder / "sacct", "#!/bin/sh\nexit 1\n")
    monkeypatch.setenv("PATH", f"{bin_folder}:/usr/bin:/bin")
    return bin_folder


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


def test_job_that_cannot_be_recorded_is_cancelled(tmp_path: Path, programs: Path) -> None:
    disk = tmp_path / "disk"
    write_program(programs / "sbatch", f"#!/bin/sh\ncat /dev/zero > {disk}/data 2>&-\necho 12\n")
    with small_file_system(disk, "1m"):
        folder = disk / "runs" / SITE.run_id
        plan = plan_request(make_request(), run_paths=replace(SITE, run_dir=str(folder)))
        with pytest.raises(ExecuteError, match=r"is full .* so orch cancelled job 12"):
            BatchTarget(SLURM).start(plan, folder)
        assert not folder.exists()
        assert (programs / "cancelled").read_text() == "12\n"
        (disk / "data").unlink()
        write_program(programs / "scancel", "#!/bin/sh\necho not now >&2\nexit 1\n")
        with pytest.raises(ExecuteError, match=r"is full .* so job 12 is not recorded\. .*not now"):
            BatchTarget(SLURM).start(plan, folder)


@pytest.mark.parametrize(
    ("code", "hint"), [(1, SLURM.rejection_hint), (127, "Run orch on a login node of the cluster.")]
)
def test_only_a_missing_program_suggests_a_login_node(tmp_path: Path, programs: Path, code: int, hint: str) -> None:
    folder = tmp_path / "runs" / SITE.run_id
    (programs / "jobs").touch()
    if code == 127:  # a machine without Slurm
        (programs / "squeue").unlink()
    results = "" if code == 127 else f"mkdir {folder}/ranks\n"  # those of a job that has ended already
    write_program(programs / "sbatch", f"#!/bin/sh\n{results}echo burst buffer not found >&2\nexit {code}\n")
    with pytest.raises(ExecuteError, match="burst buffer not found") as caught:
        BatchTarget(SLURM).start(plan_request(make_request(), run_paths=replace(SITE, run_dir=str(folder))), folder)
    assert caught.value.hint == hint
    assert folder.exists() == bool(results), "what a job has written is kept"


# subprocess.run() does not wait for a program that it kills because of Ctrl-C.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("accepted", [True, False])
def test_interrupted_submission_is_recorded_only_if_accepted(tmp_path: Path, programs: Path, accepted: bool) -> None:
    write_program(programs / "sbatch", "#!/bin/sh\nkill -INT $PPID\nsleep 10\n")
    (programs / "jobs").write_text(f"12|orch-{SITE.run_id}|PENDING|N/A||cpu|None\n" if accepted else "")
    folder = tmp_path / "runs" / SITE.run_id
    plan = plan_request(make_request(), run_paths=replace(SITE, run_dir=str(folder)))
    with pytest.raises(KeyboardInterrupt):
        BatchTarget(SLURM).start(plan, folder)
    assert folder.exists() == accepted
    if accepted:
        assert location_of(store.load(folder).record).job == "12", "`orch stop` can end it"


TIMED_OUT = "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation"


def start_without_response(programs: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> RunHandle:
    """Start a run whose submission Slurm does not answer, and look for its job for a second."""
    monkeypatch.setattr(scheduler, "ACCEPTED_SECONDS", 1.0)
    monkeypatch.setattr(scheduler, "ACCEPTED_POLL_SECONDS", 0.05)
    write_program(programs / "sbatch", f"#!/bin/sh\necho '{TIMED_OUT}' >&2\nexit 1\n")
    plan = plan_request(make_request(), run_paths=replace(SITE, run_dir=str(folder)))
    return BatchTarget(SLURM).start(plan, folder)


def test_job_is_found_that_slurm_lists_after_the_submission_has_timed_out(
    tmp_path: Path, programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = f"12|orch-{SITE.run_id}|PENDING|N/A||cpu|None"
    (programs / "jobs").touch()
    squeue = f"#!/bin/sh\ncat {programs}/jobs\necho '{listed}' > {programs}/jobs\n"  # from the second query on
    write_program(programs / "squeue", squeue)
    handle = start_without_response(programs, tmp_path / "runs" / SITE.run_id, monkeypatch)
    assert location_of(handle.record).job == "12"


@pytest.mark.parametrize("squeue", ["exit 0", "echo 'slurm_load_jobs error: Socket timed out' >&2; exit 1"])
def test_job_that_slurm_accepts_later_can_be_stopped(
    tmp_path: Path, programs: Path, monkeypatch: pytest.MonkeyPatch, squeue: str
) -> None:
    write_program(programs / "squeue", f"#!/bin/sh\n{squeue}\n")
    folder = tmp_path / "runs" / SITE.run_id
    with pytest.raises(ExecuteError, match=r"has not answered .*Socket timed out"):
        start_without_response(programs, folder, monkeypatch)
    states = f"if [ -e {programs}/cancelled ]; then state=CANCELLED; else state=PENDING; fi"
    job = f'echo "12|orch-{SITE.run_id}|$state|N/A||cpu|None"'
    write_program(programs / "squeue", f"#!/bin/sh\n{states}\n{job}\n")
    assert [row.state for row in list_recorded_runs(folder.parent, "slurm").rows] == ["waiting"]
    handle = BatchTarget(SLURM).find(folder.parent, SITE.run_id, "slurm", print)
    assert [node.node for node in handle.stop().nodes] == ["job 12"]
    assert (programs / "cancelled").read_text() == "12\n"
    assert store.load(folder).state == "stopped"


def test_run_whose_job_has_never_come_was_not_submitted_unless_it_has_written_its_job(
    tmp_path: Path, programs: Path
) -> None:
    (programs / "jobs").touch()
    folder = make_run(tmp_path, target="slurm", location={"name": "orch-x"}, ended=False)
    handle = BatchTarget(SLURM).find(tmp_path, folder.name, "slurm", print)
    with pytest.raises(ExecuteError, match="was not submitted to Slurm"):
        handle.stop()
    (folder / "slurm-job.json").write_text('{"job": "12"}')
    write_job_outcome(folder, state="failed", problem="rank 1 failed")
    assert handle.state(now=True).phase == Phase.FORGOTTEN
    assert location_of(store.load(folder).record).job == "12"


def test_damaged_record_names_no_other_host(tmp_path: Path) -> None:
    location = {"name": "orch-x", "job": "12", "login": "-oProxyCommand=touch PWNED"}
    folder = make_run(tmp_path, target="slurm", location=location)
    with pytest.raises(OrchError, match="is not a valid host"):
        location_of(store.load(folder).record)


def test_clean_cancels_the_jobs_that_hold_nodes_long_after_their_run_has_ended(tmp_path: Path, programs: Path) -> None:
    states = ("RUNNING", "COMPLETING", "SUSPENDED", "PENDING", "CONFIGURING", "REQUEUE_HOLD", "COMPLETED", "NODE_FAIL")
    cases = [(state, 3600.0) for state in states] + [("RUNNING", 5.0), ("RUNNING", None)]
    jobs = ""
    for job, (state, seconds) in enumerate(cases):
        location = {"name": f"orch-{job}", "job": str(job)}
        folder = make_run(tmp_path, f"run-{job}", ranks=1, nodes=1, target="slurm", location=location, ended=False)
        if seconds is not None:  # The run has ended.
            write_job_outcome(folder, state="preempted", problem="checkpoint", ended=time.time() - seconds)
        jobs += f"{job}|orch-{job}|{state}|N/A|n1|cpu|None\n"
    (programs / "jobs").write_text(jobs)
    report = BatchTarget(SLURM).clean("slurm", tmp_path, dry_run=False)
    assert [node.node for node in report.nodes] == ["job 0", "job 1", "job 2"]
    assert (programs / "cancelled").read_text().split() == ["0", "1", "2"]


def test_list_of_runs_names_a_silent_system(tmp_path: Path, programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = make_run(Path("other"), target="slurm", location={"name": "orch-1", "job": "1"}, ended=False)
    write_program(programs / "squeue", "#!/bin/sh\necho 'Unable to contact slurm controller' >&2\nexit 1\n")
    result = list_recorded_runs(Path("other"), "slurm")
    assert result.unreachable == ("Slurm: Unable to contact slurm controller",)
    assert [row.folder for row in result.rows] == [str(folder.absolute())]


def test_run_that_is_done_does_not_wait_although_slurm_has_requeued_its_job(folder: Path) -> None:
    pending = job_state("12", "PENDING")
    write_job_outcome(folder, state="preempted", problem="checkpoint at step 3")
    assert run_state(store.load(folder), pending) == "waiting"
    write_job_outcome(folder, state="done")
    assert run_state(store.load(folder), pending) == "done"


@pytest.mark.parametrize(
    "name", [pytest.param("runs/.orch/store", id="packages"), pytest.param("orch/store", id="projects")]
)
def test_clean_removes_what_no_run_has_used_for_30_days_from_a_store(
    name: str, tmp_path: Path, programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    runs = tmp_path / "runs"
    location = {"name": "orch-x", "job": "12"}
    make_run(runs, target="slurm", location=location, run_dir=str(runs / "x"), python=sys.executable, train=str(TRAIN))
    (programs / "jobs").write_text("13|orch-queued|PENDING|N/A|n1|cpu|Priority\n")
    (tmp_path / name).mkdir(mode=0o700, parents=True)
    users = {"ended": 31, "ended2": 29, "queued": 31}
    unused, *used = (store_folder(tmp_path, name, user, days) for user, days in users.items())
    report = BatchTarget(SLURM).clean("slurm", runs, dry_run=True)
    assert [(node.left, node.unused) for node in report.nodes] == [((f"{unused}: no run uses it",), ())]
    assert unused.exists()
    report = BatchTarget(SLURM).clean("slurm", runs, dry_run=False)
    assert [(node.state, node.unused) for node in report.nodes] == [("clean", (str(unused),))]
    assert [folder.exists() for folder in (unused, *used)] == [False, True, True]


def store_folder(base: Path, store: str, user: str, days: float) -> Path:
    """Put a folder into a store that a run has used so many days ago, and return its path there."""
    write_files(base / user, {"file": user})
    stored = base / store / hash_of(base / user)
    stored.mkdir(mode=0o700)
    lock = stored.with_name(f".{stored.name}.lock")
    lock.write_text(f"{base / 'runs' / user}\n")
    lock.chmod(0o600)
    set_age(lock, days * 24 * 3600)
    return stored
