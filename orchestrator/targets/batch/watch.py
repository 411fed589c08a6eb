"""Follow a run that is a job of a batch system: first in the queue, then by its events and its log lines."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields, replace
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import TypeVar

from orch_node import atomic_write, disk
from orch_node.protocol import batch, failures, files, outcome, record, values
from orch_node.protocol import layout as layouts
from orch_node.protocol.events import Event, NodeNews, Waiting
from orch_node.protocol.outcome import DONE, FAILED, PREEMPTED, REFUSED, STOPPED, Outcome
from orch_node.protocol.record import RankPlacement, RunNode, RunRecord, render
from orch_node.protocol.values import ProtocolError
from orch_node.tail import last_text

from orchestrator.errors import ExecuteError
from orchestrator.files import write_whole
from orchestrator.runs import follow
from orchestrator.runs.follow import MAX_LOG_CHARACTERS
from orchestrator.runs.logs import LogLine, copied_lines, followed_lines, requested_ranks
from orchestrator.runs.state_files import PLAN, outcome_in, read_json, supervisor_of, write_json
from orchestrator.runs.store import Run
from orchestrator.targets.batch.scheduler import Scheduler
from orchestrator.targets.batch.settings import JOB, location_of, with_job
from orchestrator.targets.batch.system import ControllerUnreachable, JobState, Phase
from orchestrator.targets.connections.connection import Ssh
from orchestrator.targets.connections.local import Local
from orchestrator.targets.connections.mirror import MAX_STATE_BYTES, Mirror, ReconnectingMirror
from orchestrator.targets.interface import Notify

Result = TypeVar("Result")
REFRESH_SECONDS = 0.5  # Copying less often saves a login node, which many users share, from load.
STATE_FILES = (files.SUPERVISOR, files.OUTCOME, files.LAYOUT)
LAUNCHER_LOG = re.compile(re.escape(files.LAUNCHER_LOG))


class LocalFolder:
    """The folder of a run on a file system that this machine sees."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def refresh(self) -> None:
        """Do nothing: the folder is always up to date."""

    def write(self, name: str, text: str) -> None:
        """Write a file of the run that every observer of the run sees."""
        Local().put(str(self.folder / name), text)

    def has_file(self, name: str) -> bool:
        """Return whether the job has written this file."""
        return (self.folder / name).exists()

    def end_of(self, pattern: re.Pattern[str], size: int = MAX_LOG_CHARACTERS) -> str:
        """Return the end of the newest file of the run whose name matches, or '' if there is none."""
        name = files.newest((path.name for path in self.folder.iterdir()), pattern)
        return last_text(self.folder / name, size).strip() if name else ""

    def copy_logs(self, ranks: Iterable[int]) -> None:
        """Do nothing: the logs are in the folder."""

    def finish(self, output_dir: str | None) -> None:
        """Do nothing: the results are in the folder."""

    def attempt(self, action: Callable[[], Result], fallback: Result) -> Result:
        """Call `action`; over a login node, return `fallback` if that node cannot be reached."""
        return action()


class JobMirror(Mirror):
    """The local copy of a job's run.

    A requeued job deletes its outcome, so files that disappear are deleted from the copy, too.
    """

    def __init__(self, remote: Ssh, record: RunRecord, folder: Path) -> None:
        super().__init__(remote, record.run_dir, folder, ranks=len(record.layout))
        self.state_files = (*STATE_FILES, batch.job_file(record.target))
        self.last_refresh = -REFRESH_SECONDS

    def refresh(self) -> None:
        """Copy the events and the state files, at most twice per second."""
        if time.monotonic() - self.last_refresh < REFRESH_SECONDS:
            return
        # The outcome is read before the events, so that a copy with an outcome has all events.
        contents = {name: self.content(name) for name in self.state_files}
        self.append(files.EVENTS)
        for name, content in contents.items():
            with self.local_files.writing(name):
                if content is None:
                    (self.folder / name).unlink(missing_ok=True)
                else:
                    write_whole(self.folder / name, content)
        self.last_refresh = time.monotonic()

    def end_of(self, pattern: re.Pattern[str], size: int = MAX_LOG_CHARACTERS) -> str:
        """Return the end of the newest file on the cluster whose name matches, or '' if there is none."""
        name = files.newest(self.remote.list(self.run_dir), pattern)
        path = f"{self.run_dir}/{name}"
        content = self.remote.read(path, max(0, self.remote.size(path) - size), size) if name else None
        return (content or b"").decode(errors="replace").strip()


class RemoteFolder(ReconnectingMirror):
    """The local copy of a run on a file system that a login node sees."""

    mirror: JobMirror

    def __init__(self, host: Ssh, record: RunRecord, folder: Path, notify: Notify) -> None:
        super().__init__(JobMirror(host, record, folder), host.node, notify)
        self.host = host

    def write(self, name: str, text: str) -> None:
        self.host.put(f"{self.mirror.run_dir}/{name}", text)
        write_whole(self.mirror.folder / name, text)

    def has_file(self, name: str) -> bool:
        path = f"{self.mirror.run_dir}/{name}"
        return self.attempt(lambda: self.host.read(path, 0, 1) is not None, True)

    def end_of(self, pattern: re.Pattern[str], size: int = MAX_LOG_CHARACTERS) -> str:
        return self.attempt(lambda: self.mirror.end_of(pattern, size), "")

    def copy_logs(self, ranks: Iterable[int]) -> None:
        for rank in ranks:
            for name in (files.rank_log(rank), files.rank_times(rank)):
                self.attempt(lambda name=name: self.mirror.append(name), None)  # type: ignore[misc]

    def finish(self, output_dir: str | None) -> None:
        self.mirror.finish(output_dir)
        self.mirror.copy_logs()


RunFolder = LocalFolder | RemoteFolder


def run_folder_of(record: RunRecord, folder: Path, host: Local | Ssh, notify: Notify) -> RunFolder:
    """Return the folder of a run: a copy of it if the batch system's programs are on a login node."""
    if isinstance(host, Ssh):
        return RemoteFolder(host, record, folder, notify)
    return LocalFolder(folder)


def write_remote_record(run_record: RunRecord, host: Ssh) -> None:
    """Write the record to the run's folder on the cluster, for users who log in there.

    Raises:
        ExecuteError: if it cannot be written.
    """
    location = replace(location_of(run_record), login="")
    text = json.dumps(record.render(replace(run_record, location=values.record(location))), indent=1) + "\n"
    host.put(f"{run_record.run_dir}/{PLAN}", text)


def delete_remote_files(host: Ssh, paths: Iterable[str]) -> None:
    """Remove what was sent to the folders of runs that were never submitted; ignore what cannot be removed."""
    paths = tuple(paths)
    try:
        host.capture(("rm", "-rf", "--", *paths), seconds=30.0)
        host.capture(("rmdir", "--", *dict.fromkeys(str(PurePosixPath(path).parent) for path in paths)), seconds=30.0)
    except ExecuteError:
        pass


POLL_SECONDS = 1.0
TICK_SECONDS = 0.2
QUERY_SECONDS = 5.0  # The interval between queries; many users share the controller.
FIRST_QUERY_SECONDS = 1.0  # The interval between the first few queries.
NEW_START_SECONDS = 600.0  # The interval between messages that differ only in the expected start.
READY_SECONDS = 3.0  # A message explains a running job without a supervisor after this time.
END_SECONDS = 40.0  # A job ends within this time: Slurm, for example, waits 30 s between SIGTERM and SIGKILL.
ENDED_BY = ("SIGTERM", "SIGKILL")  # The signals with which a batch system ends a job's processes.
VISIBLE_SECONDS = 0.5  # A shared file system shows another host's writes after this time.


class JobWatch:
    """The job of a run, and the run's files, as they change over time.

    Attributes:
        record: the record of the run, with its nodes once the job has them.
        folder: the folder of the run on this machine.
        job: the id of the job.
        scheduler: the batch system's programs.
        run_folder: the files of the run.
        notify: the callback for messages about the job and the controller.
        last_query: when the system was last queried.
        last_state: the last known state of the job.
        unreachable: whether the system does not respond.
        suspended: whether the job was suspended at the last query.
        query_count: how often the system has been queried since a query was due in any case.
        first_byte: where the events of the newest attempts begin.
    """

    def __init__(
        self,
        record: RunRecord,
        folder: Path,
        scheduler: Scheduler,
        run_folder: RunFolder,
        notify: Notify,
        *,
        first_byte: int = 0,
    ) -> None:
        self.record = record
        self.folder = folder
        self.job = location_of(record).job
        self.scheduler = scheduler
        self.system = scheduler.system
        self.run_folder = run_folder
        self.notify = notify
        self.last_query = -QUERY_SECONDS
        self.last_state = JobState(job=self.job, state="PENDING", phase=Phase.PENDING)
        self.unreachable = False
        self.suspended = False
        self.query_count = 0
        self.first_byte = first_byte

    def state(self, *, now: bool = False) -> JobState:
        """Return the last known state of the job, after querying the system if that is due.

        It is queried every second at first, and later every few seconds.

        Args:
            now: query the system in any case, and every second after it.
        """
        if now:
            self.query_count = 0
        pause = QUERY_SECONDS if self.query_count > 5 else FIRST_QUERY_SECONDS
        if now or time.monotonic() - self.last_query > pause:
            self.last_query = time.monotonic()
            self.query_count += 1
            try:
                query = self.scheduler.state
                self.last_state = self.run_folder.attempt(lambda: query(self.job), self.last_state)
                if self.last_state.ended and self.adopt_next_job():
                    self.last_state = self.run_folder.attempt(lambda: query(self.job), self.last_state)
                if self.unreachable:
                    self.notify(f"{self.system.title} responds again")
                self.unreachable = False
            except ControllerUnreachable as error:
                if not self.unreachable:
                    self.notify(f"{error.message.rstrip('.')}. The job continues; retrying.")
                self.unreachable = True
        return self.last_state

    @property
    def is_pending(self) -> bool:
        """Return whether the job is known to be pending; a system that does not respond may have started it since."""
        return self.last_state.pending and not self.unreachable

    def adopt_next_job(self) -> bool:
        """Follow the job that this one has submitted to continue the run; return whether there is one."""
        if not self.system.resubmits:
            return False
        self.refresh()
        try:
            submitted = batch.parse_submitted(atomic_write.read(self.folder / batch.job_file(self.system.name)))
        except (OSError, ProtocolError):
            return False
        if submitted.job == self.job or not submitted.restarts or not JOB.fullmatch(submitted.job):
            return False
        self.job = submitted.job
        self.save_record(with_job(self.record, self.job))
        return True

    def save_record(self, record: RunRecord) -> None:
        """Adopt a record of the run and write it to plan.json; warn if the disk is full, and follow the run anyway."""
        self.record = record
        try:
            update_record(record, self.folder)
        except OSError as error:
            self.notify(disk.describe_error(self.folder / PLAN, error))

    # The methods of follow.Source.

    def refresh(self) -> None:
        """Bring the run's local folder up to date."""
        self.run_folder.refresh()

    def lost(self, pid: int) -> bool:
        """Return whether the supervisor is gone because the job has ended or is pending again."""
        job = self.state()
        if job.suspended and not self.suspended:
            self.notify(job.describe_suspension())
        self.suspended = job.suspended
        return job.ended or self.is_pending

    def terminate(self, pid: int) -> None:
        """Stop the run with SIGINT.

        At SIGTERM the ranks would write a checkpoint first, as for a preemption.
        """
        try:
            self.request_stop()
        except ExecuteError as error:  # The batch system ends the job also without this file.
            self.notify(error.message)
        if not self.is_step:  # The stop file is enough for a step, which has no batch script.
            self.scheduler.interrupt(self.job)

    @property
    def is_step(self) -> bool:
        """Return whether the run is a step of an allocation that the user holds."""
        return self.system.is_step(self.job)

    def request_stop(self) -> None:
        """Write the stop file, which ends the run even if the batch system does not respond."""
        self.run_folder.write(files.STOP, "")

    def supervisor_output(self) -> str:
        """Return the end of the job's output."""
        return self.run_folder.end_of(files.JOB_OUTPUT)

    # The events and the end of the run.

    def events(self) -> Iterator[Event]:
        """Yield the events of the run, from the queue to its end.

        Raises:
            ExecuteError: if the job can never start.
        """
        event_count = 0
        while True:
            yield from self.queue_events()
            if not self.has_begun():
                self.ensure_outcome()
                return
            self.record_nodes()
            run_events = follow.follow(self.folder, self, ranks=len(self.record.layout), offset=self.first_byte)
            for event in islice(run_events, event_count, None):
                event_count += 1
                yield event
            self.ensure_outcome()
            if not self.is_requeued():
                return
            if self.is_pending:
                text = (
                    f"job {self.job} is back in the queue; the run resumes from its last "
                    "checkpoint, if it has written one"
                )
                yield NodeNews(time=time.time(), text=text)

    def is_requeued(self) -> bool:
        """Return whether the job was requeued.

        A requeued job deletes its outcome when it starts again.
        """
        deadline = time.monotonic() + END_SECONDS
        while time.monotonic() < deadline:
            self.refresh()
            run_outcome = outcome_in(self.folder)
            if is_final(run_outcome):
                return False
            job = self.state(now=True)
            if self.is_pending or job.ended or run_outcome is None:
                return not job.ended
            time.sleep(POLL_SECONDS)
        return False

    def has_ended(self) -> bool:
        """Return whether the run has ended, and its job does not start again."""
        run_outcome = outcome_in(self.folder)
        if is_final(run_outcome) or self.state().ended:
            return True
        return run_outcome is not None and not self.is_pending and not self.is_requeued()

    def queue_events(self) -> Iterator[Event]:
        """Yield messages until the job's supervisor has started or the job has ended.

        Raises:
            ExecuteError: if the job can never start; it is cancelled.
        """
        last_message, last_reason, reported = "", "", 0.0
        last_pending = time.monotonic()
        while True:
            job = self.state()
            # A requeued job keeps its previous files until it starts again.
            pending = self.is_pending
            if pending:
                last_pending = time.monotonic()
            else:
                self.refresh()
            if job.ended or (self.has_begun() and not pending):
                return
            if job.problem:
                self.scheduler.cancel(self.job)
                never = f"{self.system.title} will never start job {self.job} ({job.reason})"
                problem = f"{never}, so orch cancelled it: {job.problem}."
                now = time.time()
                ended = Outcome(state=FAILED, problem=problem, started=now, ended=now)
                self.run_folder.write(files.OUTCOME, outcome.render(ended))
                raise ExecuteError(problem, hint="Change that, and start the run again.")
            now = time.monotonic()
            message = job.describe_waiting() if pending else ""
            if not job.pending and now - last_pending >= READY_SECONDS:
                message = job.describe_start()
            reason = message.replace(job.start, "") if job.start else message
            is_new = reason != last_reason or now - reported > NEW_START_SECONDS
            if message and message != last_message and is_new:
                last_message, last_reason, reported = message, reason, now
                yield Waiting(time=time.time(), text=message)
            time.sleep(TICK_SECONDS)

    def has_begun(self) -> bool:
        """Return whether the run has a supervisor or an outcome."""
        return supervisor_of(self.folder) is not None or outcome_in(self.folder) is not None

    def record_nodes(self) -> None:
        """Record the nodes of the job as soon as it has assigned its ranks to them."""
        record = with_nodes(self.record, self.folder)
        if record != self.record:
            self.save_record(record)

    def ensure_outcome(self) -> None:
        """Write the outcome if the batch system ended the job, or if the run has left none.

        The outcome that a supervisor writes while its ranks are being ended describes only the symptoms;
        the batch system alone knows the cause.
        """
        self.record_nodes()  # another command may have been replacing the layout when the run began
        run_outcome = outcome_in(self.folder)
        preempted = run_outcome is not None and run_outcome.state == PREEMPTED
        if is_final(run_outcome):
            return
        if run_outcome is not None and supervisor_of(self.folder) is None:
            return  # The job has never started, and orch has written why.
        if self.is_step and run_outcome is not None and time.time() - run_outcome.ended > END_SECONDS:
            return  # The allocation has ended later, independently of the run.
        job = self.await_end()
        self.refresh()
        run_outcome = outcome_in(self.folder)
        if job.phase == Phase.FORGOTTEN:
            record = self.run_folder.attempt(lambda: self.system.accounting(self.scheduler, self.job), None)
            job = self.system.named_state(self.job, record.state) if record else job
        # The SIGTERM of scancel looks like a preemption to the ranks: they write a checkpoint.
        cancelled = preempted and job.phase == Phase.CANCELLED
        if not job.ended or (explains_end(run_outcome) and not cancelled):
            return
        if run_outcome is None or job.ended_externally:
            self.write_job_outcome(job, run_outcome)
        elif job.phase == Phase.FORGOTTEN and self.unknown_cause not in (run_outcome.problem or ""):
            problem = f"{run_outcome.problem or ''}; {self.unknown_cause}".removeprefix("; ")
            self.run_folder.write(files.OUTCOME, outcome.render(replace(run_outcome, problem=problem)))

    @property
    def unknown_cause(self) -> str:
        """Return the message about the end of a job of which the system knows nothing."""
        return (
            f"{self.system.title} does not know the job any more and has no accounting of it, so orch cannot tell "
            "whether it was cancelled, preempted or failed"
        )

    def await_end(self) -> JobState:
        """Return the job once it has ended or is pending again, or after a time limit.

        Files that the job wrote last may become visible with a delay.
        """
        deadline = time.monotonic() + END_SECONDS
        while True:
            job = self.state(now=True)
            if self.is_pending or time.monotonic() > deadline:
                return job
            if job.ended:
                time.sleep(VISIBLE_SECONDS)
                return job
            time.sleep(POLL_SECONDS)

    def write_job_outcome(self, job: JobState, run_outcome: Outcome | None) -> None:
        """Write the outcome of a job that the system ended, or whose run has left none.

        Args:
            job: the job.
            run_outcome: the outcome that the supervisor has written, if any.
        """
        state = STOPPED if job.phase == Phase.CANCELLED else FAILED
        supervisor = supervisor_of(self.folder)
        now = time.time()
        base_outcome = run_outcome or Outcome(state=state, started=supervisor.started if supervisor else now, ended=now)
        launcher_output = self.run_folder.end_of(LAUNCHER_LOG)
        memory = self.system.on_nodes.memory_line(f"{launcher_output}\n{self.supervisor_output()}")
        message = job.describe_end()
        if run_outcome is None and not job.ended_externally and (output := self.supervisor_output().strip()):
            message += f"; its last output: {output.splitlines()[-1]}"
        if memory:
            state, message = FAILED, f"job {self.job}: {self.system.on_nodes.out_of_memory}: {memory}"
        elif job.phase == Phase.FAILED and run_outcome is None and not self.run_folder.has_file(batch.CONFIG):
            message = (
                f"job {self.job} has written nothing to {self.record.run_dir}: its nodes do not "
                "see this folder, or may not write to it. Choose a folder that all nodes share with "
                "--runs-dir"
            )
        if run_outcome is not None and run_outcome.state == PREEMPTED and explains_end(run_outcome):
            message = f"{message}; {run_outcome.problem}"
        ended = replace(base_outcome, state=state, problem=message, first_failure=None, nodes={})
        before = None if run_outcome or job.ended_externally else self.saved_outcome()
        if before is not None:
            ended = replace(
                before, problem=f"{before.problem}, but {self.system.title} did not requeue the job: {message}"
            )
        self.run_folder.write(files.OUTCOME, outcome.render(ended))

    def saved_outcome(self) -> Outcome | None:
        """Return the outcome that the job saved when it was requeued, if it has not started since."""
        if supervisor_of(self.folder) is not None:
            return None
        try:
            return outcome.parse(self.run_folder.end_of(files.SAVED_OUTCOME, MAX_STATE_BYTES))
        except (OSError, ProtocolError):
            return None


def with_nodes(record: RunRecord, folder: Path) -> RunRecord:
    """Return the record with the nodes of the job if it has assigned the run's ranks to them, or else unchanged."""
    try:
        layout = layouts.parse(atomic_write.read(folder / files.LAYOUT))
    except (OSError, ProtocolError):
        return record
    names = layout.node_names
    if [node.node for node in record.nodes] == names or len(layout.ranks) != len(record.layout):
        return record
    rank_places = tuple(
        RankPlacement(**{field.name: getattr(rank, field.name) for field in fields(RankPlacement)})
        for rank in layout.ranks
    )
    nodes = tuple(RunNode(node=name) for name in names)
    return replace(record, node0=nodes[0], nodes=nodes, layout=rank_places)


def update_record(record: RunRecord, folder: Path) -> None:
    """Update the record in plan.json, and leave the other contents of the file as they are."""
    stored = read_json(folder / PLAN)
    if stored is not None:
        write_json(folder / PLAN, {**stored, **render(record)})


def explains_end(run_outcome: Outcome | None) -> bool:
    """Return whether the supervisor's outcome holds, whatever happens to the job later.

    When a batch system ends a job, one rank may lose its peer before it receives a signal itself.
    """
    if run_outcome is None or run_outcome.state in (STOPPED, REFUSED):
        return run_outcome is not None
    if run_outcome.state == PREEMPTED:
        return (run_outcome.problem or "").startswith("checkpoint")
    failure = run_outcome.first_failure
    if failure is None or run_outcome.state == DONE:
        return run_outcome.state == DONE
    return failure.signal not in ENDED_BY and not failures.blames_another(failure.rank, failure.text)


def is_final(run_outcome: Outcome | None) -> bool:
    """Return whether the outcome holds and the job does not continue the run."""
    return run_outcome is not None and run_outcome.state != PREEMPTED and explains_end(run_outcome)


def log_lines(
    watch: JobWatch, run: Run, *, rank: int | None, follow: bool, starts: Mapping[int, int]
) -> Iterator[LogLine]:
    """Yield the log lines in the order of time, or as they are written while the run is followed.

    Args:
        watch: the watch over the run's job.
        run: the run.
        rank: the only rank to read; None for all of them.
        follow: yield lines as they are written, until the run has ended.
        starts: the bytes of each rank's log to skip.

    Raises:
        RequestError: if the run does not have this rank.
    """
    nodes = requested_ranks(run, rank)
    if not follow or watch.has_ended():
        watch.run_folder.copy_logs(nodes)
        yield from copied_lines(run, nodes, starts)
        return

    def updates() -> Iterator[None]:
        running = True
        while running:
            watch.refresh()
            watch.run_folder.copy_logs(nodes)
            yield
            running = not watch.has_ended()
            time.sleep(TICK_SECONDS)
        watch.run_folder.copy_logs(nodes)

    yield from followed_lines(run.folder, lambda: nodes, starts, updates())
