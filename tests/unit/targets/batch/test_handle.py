"""Check how orch follows a job, and which outcome it records if the job has left none."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from orch_node.batch.slurm import SYSTEM
from orch_node.protocol import files
from orch_node.protocol import outcome as outcomes
from orch_node.protocol.events import NodeNews, Waiting
from orch_node.protocol.layout import render
from orch_node.protocol.outcome import Failure, Outcome

from orchestrator.errors import ExecuteError
from orchestrator.model.printable import CommandResult
from orchestrator.runs import store
from orchestrator.runs.store import UNFETCHED
from orchestrator.targets.batch.handle import BatchHandle
from orchestrator.targets.batch.run_folder import RemoteFolder
from orchestrator.targets.batch.slurm import SLURM
from orchestrator.targets.batch.target import run_row
from orchestrator.targets.interface import ignore
from tests.support.files import write_files
from tests.support.layouts import make_layout
from tests.support.slurm_jobs import (
    FORGOTTEN,
    RecordedHost,
    make_handle,
    make_job,
    make_result,
    squeue,
    write_job_outcome,
)
from tests.support.slurm_plans import make_plan
from tests.unit.targets.connections.test_mirror import Folder

AWAY = CommandResult(code=1, out="", err="Unable to contact slurm controller")


def outcome_of(folder: Path) -> Outcome:
    return outcomes.parse((folder / "outcome.json").read_bytes())


def waiting_messages(handle: BatchHandle) -> list[str]:
    return [event.text for event in handle.queue_events() if isinstance(event, Waiting)]


def test_requeued_job_waits_although_it_has_had_a_supervisor(folder: Path) -> None:
    pending = squeue("PENDING", "BeginTime", nodes="")
    host = RecordedHost(pending, pending, squeue("RUNNING"))
    assert waiting_messages(make_handle(folder, host)) == [make_job("PENDING", "BeginTime").describe()]
    assert not host.results


def test_job_that_slurm_did_not_requeue_keeps_its_checkpoint(folder: Path) -> None:
    (folder / "supervisor.json").unlink()
    preempted = Outcome(state="preempted", started=1.0, ended=2.0, problem="checkpoint at step 3")
    (folder / "outcome-0.json").write_text(outcomes.render(preempted))
    make_handle(folder, RecordedHost(squeue("FAILED", "NonZeroExitCode"))).ensure_outcome()
    result = outcome_of(folder)
    assert result.state == "preempted"
    assert (result.problem or "").startswith("checkpoint at step 3, but Slurm did not")


class Login(Folder):
    """The files of a run on a login node."""

    node = "login1"

    def put(self, path: str, content: str) -> None:
        Path(path).write_text(content)


def test_files_on_the_login_node_explain_the_end_of_a_job(folder: Path, tmp_path: Path) -> None:
    record = replace(store.load(folder).record, run_dir=str(tmp_path / "remote"))
    preempted = outcomes.render(Outcome(state="preempted", started=1.0, ended=2.0, problem="checkpoint at step 3"))
    for name, content, end, expected in (
        ("launcher.log", MEMORY[1], squeue("CANCELLED"), "failed"),
        ("outcome-0.json", preempted, squeue("FAILED"), "preempted"),
    ):
        run_folder = RemoteFolder(Login(write_files(tmp_path / "remote", {name: content}), []), record, folder, ignore)
        handle = make_handle(folder, RecordedHost(squeue=end))
        handle.record, handle.run_folder = record, run_folder  # type: ignore[misc]
        handle.ensure_outcome()
        assert outcome_of(folder).state == expected
        (folder / "outcome.json").unlink()
        shutil.rmtree(tmp_path / "remote")


SACCT = "12|CANCELLED by 1000|00:01:40||2026-01-02T03:00:00|2026-01-02T03:01:40\n"


def test_cancelled_job_that_slurm_has_forgotten_is_looked_up_in_its_accounting(folder: Path) -> None:
    write_job_outcome(folder, problem="n2 was lost: the connection to its agent ended")
    make_handle(folder, RecordedHost(squeue=FORGOTTEN, sacct=make_result(SACCT))).ensure_outcome()
    result = outcome_of(folder)
    assert result.state == "stopped"
    assert "job was cancelled" in (result.problem or "")


def test_cancelled_job_counts_as_cancelled_although_it_wrote_a_checkpoint(folder: Path) -> None:
    """Ranks write a checkpoint at the SIGTERM of scancel, as when they are preempted."""
    for state, expected in (("CANCELLED", "stopped"), ("FAILED", "preempted"), ("TIMEOUT", "preempted")):
        write_job_outcome(folder, state="preempted", problem="checkpoint at step 3")
        make_handle(folder, RecordedHost(squeue=squeue(state))).ensure_outcome()
        result = outcome_of(folder)
        assert result.state == expected
        assert "checkpoint at step 3" in (result.problem or "")


def test_job_is_back_in_the_queue_although_a_rank_lost_its_peer_first(folder: Path) -> None:
    """Wait for the job although Slurm does not end the ranks of all nodes at the same moment."""
    text = "RuntimeError: [pair.cc:553] Connection closed by peer [10.0.0.2]"
    write_job_outcome(folder, first_failure=Failure(rank=0, node="n1", code=1, text=text))
    handle = make_handle(folder, RecordedHost(squeue=[squeue("COMPLETING"), squeue("PENDING", "BeginTime")]))
    handle.ensure_outcome()
    assert handle.is_requeued()
    write_job_outcome(folder, first_failure=Failure(rank=0, node="n1", code=1, text="ValueError: boom"))
    assert not make_handle(folder, RecordedHost(squeue=squeue("COMPLETING"))).is_requeued(), "the error is its own"


MEMORY = [
    "slurmstepd: error: Detected 1 oom_kill event in StepId=12.1. Some of the step tasks have been OOM Killed.",
    "srun: error: n2: task 1: Out Of Memory",
]


@pytest.mark.parametrize("file", ["launcher.log", "slurm-12.out"])
def test_job_that_slurm_ended_for_its_memory_is_not_reported_as_cancelled(folder: Path, file: str) -> None:
    for line in MEMORY:
        (folder / file).write_text(f"step 1\n{line}\nstep 2\n")
        write_job_outcome(folder, first_failure=Failure(rank=1, node="n2", signal="SIGKILL"))
        make_handle(folder, RecordedHost(squeue=squeue("CANCELLED"))).ensure_outcome()
        result = outcome_of(folder)
        assert result.state == "failed"
        assert f"ran out of memory (--slurm mem=): {line}" in (result.problem or "")
    assert not SYSTEM.memory_line("MemoryError: exceeded memory limit\ntorch: out of memory\n"), "of a script"


def test_job_is_not_requeued_because_the_controller_is_away(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Attach to a run whose job has started, and whose state was never known here."""
    monkeypatch.setattr("orchestrator.targets.batch.handle.END_SECONDS", 0.0)
    handle = make_handle(folder, RecordedHost(squeue=AWAY))
    assert waiting_messages(handle) == []
    (folder / "supervisor.json").unlink()
    monkeypatch.setattr("orchestrator.targets.batch.handle.READY_SECONDS", 0.0)
    assert waiting_messages(make_handle(folder, RecordedHost(squeue=[AWAY, squeue("FAILED")]))) == []
    write_job_outcome(folder)
    assert not any("back in the queue" in event.text for event in handle.events() if isinstance(event, NodeNews))


def test_runs_have_their_real_nodes_also_if_nobody_has_followed_them(folder: Path) -> None:
    (folder / files.LAYOUT).write_text(render(make_layout(*["n1"] * 4, *["n2"] * 4)))
    write_job_outcome(folder, state="done")
    assert run_row(store.load(folder), None).nodes == ("n1", "n2")
    make_handle(folder, RecordedHost()).ensure_outcome()
    assert store.load(folder).nodes == ("n1", "n2")


def test_stop_without_a_controller_writes_the_stop_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.targets.batch.handle.STOP_SECONDS", 0.0)
    assert "does not respond" in make_handle(folder, RecordedHost(squeue=AWAY, scancel=AWAY)).end()
    assert (folder / files.STOP).exists()


def test_stop_seldom_asks_whether_the_job_has_ended(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many users share the controller."""
    monkeypatch.setattr("orchestrator.targets.batch.handle.GONE_SECONDS", 0.5)
    host = RecordedHost(squeue=squeue("PENDING"))
    messages: list[str] = []
    handle = make_handle(folder, host)
    handle.notify = messages.append
    handle.interrupt()
    assert messages == ["Slurm still reports job 12 as PENDING"]
    assert sum(command[0] == "squeue" for command in host.commands) <= 3


def test_logs_do_not_depend_on_the_controller(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    messages: list[str] = []
    (folder / files.RANK_LOG.format(0)).parent.mkdir(exist_ok=True)
    (folder / files.RANK_LOG.format(0)).write_text("step 1\n")
    monkeypatch.setattr("orchestrator.targets.batch.handle.host_at", lambda login: RecordedHost(squeue=AWAY))
    handle = BatchHandle(SLURM, store.load(folder).record, folder)
    handle.notify = messages.append
    assert next(handle.logs(rank=0, follow=True)).text == "step 1"
    assert messages == []


def test_logs_of_a_job_that_failed_without_ranks_are_its_output(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.targets.batch.handle.host_at", lambda login: RecordedHost())
    shutil.rmtree(folder / files.RANKS, ignore_errors=True)
    (folder / "slurm-12.out").write_text("bash: module: command not found\nerror: --slurm setup=module load x failed\n")
    write_job_outcome(folder, problem="job 12: the job failed")
    message = r"no rank has written a line.*\nbash: module: command not found\nerror:"
    with pytest.raises(ExecuteError, match=message) as exc_info:
        list(BatchHandle(SLURM, store.load(folder).record, folder).logs(rank=None, follow=False))
    assert f"orch resume {folder.name} --runs-dir {folder.parent}." in exc_info.value.hint


def test_followed_logs_continue_after_a_preempted_job_is_back_in_the_queue(folder: Path) -> None:
    """Follow them in the time between the outcome and the requeue."""
    log = folder / files.RANK_LOG.format(0)
    log.parent.mkdir(exist_ok=True)
    log.write_text("step 1\n")
    states = [squeue("RUNNING"), squeue("PENDING"), squeue("COMPLETED")]
    handle = make_handle(folder, RecordedHost(squeue=states))
    lines = handle.log_lines(store.load(folder), rank=0, follow=True)
    assert next(lines).text == "step 1"
    write_job_outcome(folder, state="preempted", problem="checkpoint at step 3")
    assert not list(lines)
    assert states == [squeue("COMPLETED")], "the logs were followed until the job had ended"


def test_copy_of_a_requeued_job_has_no_outcome(tmp_path: Path) -> None:
    names = ("events.jsonl", "outcome.json", "supervisor.json")
    remote_folder, copy = write_files(tmp_path / "remote", dict.fromkeys(names, "{}\n")), tmp_path / "copy"
    copy.mkdir()
    record = replace(make_plan().run, run_dir=str(remote_folder), layout=())
    for _ in range(2):
        RemoteFolder(Login(remote_folder, []), record, copy, ignore).copy_state()  # type: ignore[arg-type]
        assert {path.name for path in copy.iterdir()} - {UNFETCHED} == {path.name for path in remote_folder.iterdir()}
        (remote_folder / "outcome.json").unlink(missing_ok=True)
        (remote_folder / "supervisor.json").unlink(missing_ok=True)
        (remote_folder / "events.jsonl").write_text("{}\n{}\n")
    assert (copy / "events.jsonl").read_text() == "{}\n{}\n"
    (remote_folder / "outcome.json").write_text("{}\n")
    (copy / "outcome.json").mkdir()
    with pytest.raises(ExecuteError, match="cannot be written"):
        RemoteFolder(Login(remote_folder, []), record, copy, ignore).copy_state()  # type: ignore[arg-type]
