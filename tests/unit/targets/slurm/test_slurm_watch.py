"""Check how orch follows, explains and cleans up Slurm jobs."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from orch_node.protocol import files
from orch_node.protocol import outcome as outcomes
from orch_node.protocol.outcome import Failure, Outcome
from orch_node.protocol.slurm import CONFIG, memory_line

from orchestrator.errors import ExecuteError
from orchestrator.model.command import CommandResult
from orchestrator.report import training
from orchestrator.runs import outcome, store
from orchestrator.runs.accounting import Accounting
from orchestrator.targets.slurm import accounting, find, states
from orchestrator.targets.slurm.handle import SlurmHandle
from orchestrator.targets.slurm.run_folder import LocalFolder
from orchestrator.targets.slurm.scheduler import Scheduler
from orchestrator.targets.slurm.states import JobState
from orchestrator.targets.slurm.watch import UNKNOWN_CAUSE, JobWatch
from tests.support.recorded import make_run

FORGOTTEN = CommandResult(code=1, out="", err="slurm_load_jobs error: Invalid job id specified")
NO_ACCOUNTING = CommandResult(code=1, out="", err="Slurm accounting storage is disabled")


class Host:
    """A host that returns a prepared result for each program name."""

    def __init__(self, **answers: CommandResult | list[CommandResult]) -> None:
        self.answers = answers
        self.commands: list[tuple[str, ...]] = []

    def put(self, path: str, content: str) -> None:
        raise AssertionError(path)

    def capture(self, argv: tuple[str, ...], *, seconds: float) -> CommandResult:
        self.commands.append(argv)
        result = self.answers.get(argv[0], CommandResult(code=0, out="", err=""))
        if isinstance(result, list):
            result = result.pop(0) if len(result) > 1 else result[0]
        return result


def squeue(state: str, reason: str = "None") -> CommandResult:
    return CommandResult(code=0, out=f"{state}|N/A|n1|{reason}\n", err="")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return the folder of a run that is job 12 and has not ended."""
    run_folder = make_run(tmp_path, target="slurm", location={"name": "orch-x", "job": "12"})
    (run_folder / "outcome.json").unlink()
    (run_folder / "supervisor.json").write_text('{"pid": 7, "started": 1.0}')
    (run_folder / CONFIG).write_text("{}")
    return run_folder


def watch_of(folder: Path, host: Host, notify: Callable[[str], None] = lambda line: None) -> JobWatch:
    record = store.load(folder).record
    return JobWatch(record, folder, Scheduler(host), LocalFolder(folder), notify)


def write_job_outcome(folder: Path, **fields: object) -> None:
    ended = Outcome(**{"state": "failed", "started": 1.0, "ended": 2.0, **fields})  # type: ignore[arg-type]
    (folder / "outcome.json").write_text(outcomes.render(ended))


def outcome_of(folder: Path) -> Outcome:
    return outcomes.parse((folder / "outcome.json").read_bytes())


def test_a_suspended_job_is_reported_once_and_is_not_back_in_the_queue(folder: Path) -> None:
    lines: list[str] = []
    watch = watch_of(folder, Host(squeue=squeue("SUSPENDED")), lines.append)
    for _ in range(2):
        watch.last_query = -100.0
        assert not watch.lost(7)
    assert lines == [states.describe_suspension("12")]


def test_a_job_that_can_never_start_has_an_outcome(folder: Path) -> None:
    host = Host(squeue=squeue("PENDING", "PartitionTimeLimit"))
    with pytest.raises(ExecuteError, match="will never start"):
        next(watch_of(folder, host).queue_events())
    assert ("scancel", "12") in host.commands
    result = outcome_of(folder)
    assert result.state == "failed"
    assert "will never start job 12 (PartitionTimeLimit)" in (result.problem or "")


SACCT = """Welcome | to | the | site
12|CANCELLED by 1000|00:01:40||2026-01-02T03:00:00|2026-01-02T03:01:40
12.batch|CANCELLED|00:01:41|5120K|2026-01-02T03:00:00|2026-01-02T03:01:41
12.0|CANCELLED|00:01:40|1.5G|2026-01-02T03:00:01|2026-01-02T03:01:40
"""
# Two runs, one after the other, each with the step of its ranks.
SACCT_ALLOCATION = """12|RUNNING|00:05:00||2026-01-02T03:00:00|Unknown
12.0|COMPLETED|00:00:30|9000K|2026-01-02T03:00:00|2026-01-02T03:00:30
12.1|COMPLETED|00:00:20|3G|2026-01-02T03:00:05|2026-01-02T03:00:25
12.2|COMPLETED|00:01:00|9000K|2026-01-02T03:02:00|2026-01-02T03:03:00
12.3|COMPLETED|00:00:50|2G|2026-01-02T03:02:05|2026-01-02T03:02:55
"""
SHOWN = "JobId=12 JobName=orch-x JobState=COMPLETED Reason=None RunTime=00:01:05 TimeLimit=01:00:00"


def test_a_cancelled_job_that_slurm_has_forgotten_is_looked_up_in_its_accounting(folder: Path) -> None:
    write_job_outcome(folder, problem="n2 was lost: the connection to its agent ended")
    host = Host(squeue=FORGOTTEN, sacct=CommandResult(code=0, out=SACCT, err=""))
    watch_of(folder, host).ensure_outcome()
    result = outcome_of(folder)
    assert result.state == "stopped"
    assert "job was cancelled" in (result.problem or "")


@pytest.mark.parametrize(
    ("state", "expected"), [("CANCELLED", "stopped"), ("FAILED", "preempted"), ("TIMEOUT", "preempted")]
)
def test_a_cancelled_job_counts_as_cancelled_although_it_wrote_a_checkpoint(
    folder: Path, state: str, expected: str
) -> None:
    """Ranks write a checkpoint at the SIGTERM of scancel, as when they are preempted."""
    write_job_outcome(folder, state="preempted", problem="checkpoint at step 3")
    watch_of(folder, Host(squeue=squeue(state))).ensure_outcome()
    result = outcome_of(folder)
    assert result.state == expected
    assert "checkpoint at step 3" in (result.problem or "")


def test_a_job_is_back_in_the_queue_although_a_rank_lost_its_peer_first(folder: Path) -> None:
    """When Slurm preempts a job, it does not end the ranks of all nodes at the same moment."""
    failure = Failure(
        rank=0, node="n1", code=1, text="RuntimeError: [pair.cc:553] Connection closed by peer [10.0.0.2]"
    )
    write_job_outcome(folder, first_failure=failure)
    watch = watch_of(folder, Host(squeue=[squeue("COMPLETING"), squeue("PENDING", "BeginTime")]))
    watch.ensure_outcome()
    assert watch.is_requeued()


def test_a_failure_that_no_other_rank_caused_ends_the_run_at_once(folder: Path) -> None:
    write_job_outcome(folder, first_failure=Failure(rank=0, node="n1", code=1, text="ValueError: boom"))
    assert not watch_of(folder, Host(squeue=squeue("COMPLETING"))).is_requeued()


def test_without_accounting_the_cause_is_reported_as_unknown(folder: Path) -> None:
    write_job_outcome(folder, problem="n2 was lost: the connection to its agent ended")
    watch = watch_of(folder, Host(squeue=FORGOTTEN, sacct=NO_ACCOUNTING))
    for _ in range(2):
        watch.ensure_outcome()
    problem = outcome_of(folder).problem or ""
    assert problem.startswith("n2 was lost")
    assert problem.count(UNKNOWN_CAUSE) == 1


def test_accounting_of_a_job_and_its_steps() -> None:
    record = accounting.parse("12", SACCT)
    assert record is not None
    assert record.describe() == "job 12: CANCELLED, 100 s, 1536 MiB in its largest task (sacct)"
    assert accounting.parse("1", SACCT) is None


def test_accounting_of_a_run_in_an_allocation_counts_no_other_run() -> None:
    record = accounting.parse("12.2", SACCT_ALLOCATION)
    assert record is not None
    assert (record.elapsed_seconds, record.max_rss_bytes) == (60, 2 << 30)


def test_the_controller_is_queried_if_there_is_no_accounting() -> None:
    results = {"sacct": NO_ACCOUNTING, "scontrol": CommandResult(code=0, out=SHOWN, err="")}
    record = accounting.query(Scheduler(Host(**results)), "12")
    assert record == Accounting(source="scontrol", job="12", state="COMPLETED", elapsed_seconds=65, max_rss_bytes=None)


def test_the_controllers_state_counts_until_accounting_has_it() -> None:
    running = SACCT.replace("CANCELLED by 1000", "RUNNING")
    host = Host(sacct=CommandResult(code=0, out=running, err=""))
    record = accounting.query(Scheduler(host), "12", "TIMEOUT")
    assert record is not None
    assert record.state == "TIMEOUT"


def test_a_result_has_what_slurm_recorded_of_the_job(folder: Path) -> None:
    write_job_outcome(folder, state="done")
    host = Host(squeue=FORGOTTEN, sacct=CommandResult(code=0, out=SACCT, err=""))
    handle = SlurmHandle(store.load(folder).record, folder)
    handle.__dict__["watch"] = watch_of(folder, host)
    result = json.loads(training.as_json(handle.finish()))["accounting"]
    assert result == {
        "source": "sacct",
        "job": "12",
        "state": "CANCELLED",
        "elapsed_seconds": 100,
        "max_rss_bytes": 3 << 29,
    }
    assert "1536 MiB" in training.full_report(outcome.outcome_of(store.load(folder)))


MEMORY = [
    "slurmstepd: error: StepId=12.1 exceeded memory limit (716800 > 524288), being killed",
    "slurmstepd: error: Detected 1 oom_kill event in StepId=12.1. Some of the step tasks have been OOM Killed.",
    "slurmstepd: error: Exceeded job memory limit at some point.",
    "srun: error: n2: task 1: Out Of Memory",
]


@pytest.mark.parametrize("line", MEMORY, ids=["gather", "cgroup", "old", "srun"])
@pytest.mark.parametrize("file", ["launcher.log", "slurm-12.out"])
def test_a_job_that_slurm_ended_for_its_memory_is_not_reported_as_cancelled(folder: Path, line: str, file: str) -> None:
    (folder / file).write_text(f"step 1\n{line}\nstep 2\n")
    write_job_outcome(folder, first_failure=Failure(rank=1, node="n2", signal="SIGKILL"))
    watch_of(folder, Host(squeue=squeue("CANCELLED"))).ensure_outcome()
    result = outcome_of(folder)
    assert result.state == "failed"
    assert "ran out of memory (--slurm mem=)" in (result.problem or "")
    assert line in (result.problem or "")


def test_a_script_that_prints_of_memory_is_not_slurm() -> None:
    assert not memory_line("MemoryError: exceeded memory limit\ntorch: out of memory\n")


def test_a_run_folder_that_the_nodes_do_not_share_is_named(folder: Path) -> None:
    (folder / CONFIG).unlink()
    (folder / "supervisor.json").unlink()
    watch_of(folder, Host(squeue=squeue("FAILED", "NonZeroExitCode"))).ensure_outcome()
    problem = outcome_of(folder).problem or ""
    assert "has written nothing to" in problem
    assert "--runs-dir" in problem


def test_stop_without_a_controller_writes_the_stop_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.targets.slurm.handle.STOP_SECONDS", 0.0)
    away = CommandResult(code=1, out="", err="Unable to contact slurm controller")
    handle = SlurmHandle(store.load(folder).record, folder)
    handle.watch = watch_of(folder, Host(squeue=away, scancel=away))  # type: ignore[misc]
    assert "does not respond" in handle.end()
    assert (folder / files.STOP).exists()


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


@pytest.mark.parametrize(
    ("state", "ended_ago", "cancelled"),
    [
        ("PENDING", 3600, False),
        ("REQUEUED", 3600, False),
        ("REQUEUE_HOLD", 3600, False),
        ("COMPLETED", 3600, False),
        ("RUNNING", 5, False),
        ("RUNNING", 3600, True),
        ("SUSPENDED", 3600, True),
        ("COMPLETING", 3600, True),
    ],
)
def test_clean_cancels_a_job_unless_it_waits_to_resume(
    folder: Path, programs: Path, state: str, ended_ago: float, cancelled: bool
) -> None:
    write_job_outcome(folder, state="preempted", problem="checkpoint", ended=time.time() - ended_ago)
    (programs / "jobs").write_text(f"12|orch-x|{state}|N/A|n1|BeginTime\n")
    report = find.clean("slurm", folder.parent, dry_run=False)
    assert (programs / "cancelled").exists() is cancelled
    assert [node.node for node in report.nodes] == ["job 12"] * cancelled


# The states of squeue(1) in which a job holds no nodes, because it waits or has ended.
HOLDS_NO_NODES = {
    *("PENDING", "CONFIGURING", "POWER_UP_NODE", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESV_DEL_HOLD"),
    *("SPECIAL_EXIT", "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "LAUNCH_FAILED", "NODE_FAIL"),
    *("OUT_OF_MEMORY", "PREEMPTED", "RECONFIG_FAIL", "REVOKED", "TIMEOUT", "STEP_ENDED"),
}


@pytest.mark.parametrize("state", sorted(states.ALL_STATES))
def test_clean_cancels_only_jobs_that_hold_nodes_in_every_state_of_the_queue(
    folder: Path, programs: Path, state: str
) -> None:
    write_job_outcome(folder, state="preempted", problem="checkpoint", ended=time.time() - 3600)
    (programs / "jobs").write_text(f"12|orch-x|{state}|N/A|n1|None\n")
    find.clean("slurm", folder.parent, dry_run=False)
    assert (programs / "cancelled").exists() is (state not in HOLDS_NO_NODES)


def test_a_run_that_is_done_does_not_wait_although_slurm_has_requeued_its_job(folder: Path) -> None:
    pending = JobState(job="12", state="PENDING")
    write_job_outcome(folder, state="preempted", problem="checkpoint at step 3")
    assert find.run_state(store.load(folder), pending) == "waiting"
    write_job_outcome(folder, state="done")
    assert find.run_state(store.load(folder), pending) == "done"


def test_clean_does_not_cancel_the_job_of_an_active_run(folder: Path, programs: Path) -> None:
    (programs / "jobs").write_text("12|orch-x|RUNNING|N/A|n1|None\n")
    assert find.clean("slurm", folder.parent, dry_run=False).nodes == ()
    assert json.loads((folder / "plan.json").read_text())["location"]["job"] == "12"
