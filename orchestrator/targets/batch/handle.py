"""A run that is a job of a batch system: wait for it in the queue, follow its events and logs, and end it."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import asdict, fields, replace
from functools import cached_property
from pathlib import Path

from orch_node import disk
from orch_node.protocol import batch, failures, files, layout, outcome, values
from orch_node.protocol.events import Event, NodeNews, Waiting
from orch_node.protocol.outcome import DONE, ENDING_SIGNALS, FAILED, PREEMPTED, REFUSED, STOPPED, Outcome
from orch_node.protocol.record import RankPlacement, RunNode, RunRecord

from orchestrator.errors import ConnectionLost, ExecuteError, RequestError
from orchestrator.files import state_home
from orchestrator.model.hosts import Nodes
from orchestrator.model.printable import counted
from orchestrator.planning.run_files import project_copy
from orchestrator.runs import store
from orchestrator.runs.events import events_in, whole_lines
from orchestrator.runs.fetch import Collected, FetchListener, Source
from orchestrator.runs.logs import LogLine, copied_lines, followed_lines, requested_ranks
from orchestrator.runs.outcome import CleanupReport, NodeCleanup, RunOutcome, outcome_of
from orchestrator.runs.state_files import ACCOUNTING, outcome_in, supervisor_of, write_json
from orchestrator.targets.batch.run_folder import RemoteFolder, RunFolder, run_folder_of, update_record
from orchestrator.targets.batch.scheduler import Scheduler, host_at
from orchestrator.targets.batch.settings import JOB, JOB_NAME_PREFIX, location_of, store_of, with_job
from orchestrator.targets.batch.system import BatchSystem, ControllerUnreachable, JobState, Phase
from orchestrator.targets.connections.connection import Ssh
from orchestrator.targets.connections.local import Local
from orchestrator.targets.connections.mirror import MAX_STATE_BYTES
from orchestrator.targets.fetch import fetch_files, fetch_project, requested_node
from orchestrator.targets.interface import FetchRequest, NodeCommands, RunHandle

TICK_SECONDS = 0.2
POLL_SECONDS = 1.0
QUERY_SECONDS = 5.0  # The interval between queries; many users share the controller.
FIRST_QUERY_SECONDS = 1.0  # The interval between the first few queries.
NEW_START_SECONDS = 600.0  # The interval between messages that differ only in the expected start.
READY_SECONDS = 3.0  # A message explains a running job without a supervisor after this time.
STOP_SECONDS = 30.0  # The supervisor ends all ranks within this time.
GONE_SECONDS = 60.0  # The batch system ends a cancelled job within this time.
END_SECONDS = 40.0  # A job ends within this time: Slurm, for example, waits 30 s between SIGTERM and SIGKILL.
ACCOUNTED_SECONDS = 10.0  # The end of a run waits this long for the end of its job, which accounting describes.
VISIBLE_SECONDS = 0.5  # A shared file system shows another host's writes after this time.
UNKNOWN_END = "does not know the job any more, so orch cannot tell whether it was cancelled, preempted or failed"
LAUNCHER_LOG = re.compile(re.escape(files.LAUNCHER_LOG))


class BatchHandle(RunHandle):
    """A run that is a job of a batch system.

    The run's supervisor writes its files to a shared file system, which this machine or a login node
    sees.

    Attributes:
        record: the record of the run, with its nodes once the job has them.
        system: the batch system.
        last_query: when the system was last queried.
        last_state: the last known state of the job.
        unreachable: whether the system does not respond.
        query_count: how often the system has been queried since a query was due in any case.
        read_bytes: the bytes of the events that events() has read.
    """

    def __init__(
        self, system: BatchSystem, record: RunRecord, folder: Path, earlier: store.Positions | None = None
    ) -> None:
        super().__init__(record, folder, earlier)
        self.system = system
        self.last_query = -QUERY_SECONDS
        self.last_state = JobState(job=self.job, state="PENDING", phase=Phase.PENDING)
        self.unreachable = False
        self.query_count = 0
        self.read_bytes = self.earlier.events

    @property
    def job(self) -> str:
        """Return the id of the job, which changes if a job submits another one to continue its run."""
        return location_of(self.record).job

    @cached_property
    def host(self) -> Local | Ssh:
        """Return the connection to the host with the system's programs.

        Raises:
            ExecuteError: if the run has no job, or if the system does not respond to the search for an unrecorded one.
        """
        host = host_at(location_of(self.record).login)
        if not self.job and not self.find_job(host):
            host.close()
            raise ExecuteError.about("not-submitted", run=self.record, system=self.system)
        return host

    @cached_property
    def scheduler(self) -> Scheduler:
        """Return the system's programs on that host."""
        return Scheduler(self.system, self.host, location_of(self.record).cluster)

    @cached_property
    def run_folder(self) -> RunFolder:
        """Return the files of the run."""
        return run_folder_of(self.record, self.folder, self.host, lambda line: self.notify(line))

    # The job.

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
            before = self.last_state.phase
            try:
                self.last_state = self.run_folder.attempt(lambda: self.scheduler.state(self.job), self.last_state)
                if self.last_state.ended and self.adopt_next_job():
                    self.last_state = self.run_folder.attempt(lambda: self.scheduler.state(self.job), self.last_state)
                if before != self.last_state.phase == Phase.SUSPENDED:
                    self.notify(self.last_state.describe())
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
        return self.last_state.phase == Phase.PENDING and not self.unreachable

    def find_job(self, host: Local | Ssh) -> bool:
        """Record the job of a run whose submission the system has not answered; return whether it has one."""
        location = location_of(self.record)
        listed = Scheduler(self.system, host).query_jobs(JOB_NAME_PREFIX).get(location.name)
        folder = run_folder_of(self.record, self.folder, host, self.notify)
        folder.refresh()
        started = values.load(batch.parse_submitted, self.folder / batch.job_file(self.system.name))
        if listed is not None:
            self.save_record(with_job(self.record, listed.job))
        elif started is not None and JOB.fullmatch(started.job):  # It has ended, and the system has forgotten it.
            self.save_record(with_job(self.record, started.job))
        return bool(self.job)

    def adopt_next_job(self) -> bool:
        """Follow the job that this one has submitted to continue the run; return whether there is one."""
        if not self.system.resubmits:
            return False
        self.run_folder.refresh()
        submitted = values.load(batch.parse_submitted, self.folder / batch.job_file(self.system.name))
        if submitted is None or submitted.job == self.job or not submitted.restarts or not JOB.fullmatch(submitted.job):
            return False
        self.save_record(with_job(self.record, submitted.job))
        return True

    def save_record(self, record: RunRecord) -> None:
        """Adopt a record of the run and write it to plan.json; warn if the disk is full, and follow the run anyway."""
        self.record = record
        try:
            update_record(record, self.folder)
        except OSError as error:
            self.notify(disk.describe_error(self.folder / files.PLAN, error))

    # The events of the run.

    def started(self) -> None:
        """Check that the job can start, and wait for nothing else: the system has it.

        Raises:
            ExecuteError: if the job can never start.
        """
        next(iter(self.queue_events()), None)

    def events(self) -> Iterator[Event]:
        """Yield the events of the run, from the queue to its end.

        Raises:
            ExecuteError: if the job can never start.
        """
        while True:
            yield from self.queue_events()
            if has_begun := self.has_begun():
                yield from self.run_events()
            self.ensure_outcome()
            if not has_begun or not self.is_requeued():
                return
            if self.is_pending:
                text = (
                    f"job {self.job} is back in the queue; the run resumes from its last "
                    "checkpoint, if it has written one"
                )
                yield NodeNews(time=time.time(), text=text)

    def run_events(self) -> Iterator[Event]:
        """Yield the events of a run that has begun as they arrive, until it or its job has ended."""
        self.record_nodes()
        while True:
            # This order ensures that everything written before the end is read before the loop stops.
            job_ended = self.state().ended or self.is_pending
            self.run_folder.refresh()
            has_ended = job_ended or (self.folder / files.OUTCOME).exists()
            while lines := whole_lines(self.folder / files.EVENTS, self.read_bytes):
                self.read_bytes += sum(len(line) + 1 for line in lines)
                yield from events_in(lines, ranks=len(self.record.layout))
            if has_ended:
                return
            time.sleep(TICK_SECONDS)

    def is_requeued(self) -> bool:
        """Return whether the job was requeued.

        A requeued job deletes its outcome when it starts again.
        """

        def is_known() -> bool:
            self.run_folder.refresh()
            run_outcome = outcome_in(self.folder)
            return is_final(run_outcome) or self.state(now=True).ended or self.is_pending or run_outcome is None

        is_known_in_time = wait_until(is_known, END_SECONDS, POLL_SECONDS)
        return is_known_in_time and not is_final(outcome_in(self.folder)) and not self.last_state.ended

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
        shown: JobState | None = None
        reported, last_pending = 0.0, time.monotonic()
        while True:
            job = self.state()
            # A requeued job keeps its previous files until it starts again.
            pending = self.is_pending
            if pending:
                last_pending = time.monotonic()
            else:
                self.run_folder.refresh()
            if job.ended or (self.has_begun() and not pending):
                return
            if job.problem:
                self.scheduler.cancel(self.job)
                never = f"{self.system.title} will never start job {self.job}, so orch cancelled it"
                problem = f"{never}: {job.reason}; {job.problem}."
                now = time.time()
                ended = Outcome(state=FAILED, problem=problem, started=now, ended=now)
                self.run_folder.write(files.OUTCOME, outcome.render(ended))
                raise ExecuteError(problem, hint="Change that, and start the run again.")
            now = time.monotonic()
            is_due = pending or (job.phase != Phase.PENDING and now - last_pending >= READY_SECONDS)
            is_other = shown is None or replace(job, start="") != replace(shown, start="")
            if is_due and job != shown and (is_other or now - reported > NEW_START_SECONDS):
                shown, reported = job, now
                yield Waiting(time=time.time(), text=job.describe())
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
        if self.system.is_step(self.job) and run_outcome is not None and time.time() - run_outcome.ended > END_SECONDS:
            return  # The allocation has ended later, independently of the run.
        wait_until(lambda: self.state(now=True).ended or self.is_pending, END_SECONDS, POLL_SECONDS)
        job = self.last_state
        if job.ended:
            time.sleep(VISIBLE_SECONDS)  # files that the job wrote last may become visible with a delay
        self.run_folder.refresh()
        run_outcome = outcome_in(self.folder)
        # The SIGTERM of scancel looks like a preemption to the ranks: they write a checkpoint.
        cancelled = preempted and job.phase == Phase.CANCELLED
        if not job.ended or (explains_end(run_outcome) and not cancelled):
            return
        if run_outcome is None or job.ended_externally:
            self.write_job_outcome(job, run_outcome)
        elif job.phase == Phase.FORGOTTEN and (cause := f"{self.system.title} {UNKNOWN_END}") not in (
            run_outcome.problem or ""
        ):
            problem = f"{run_outcome.problem or ''}; {cause}".removeprefix("; ")
            self.run_folder.write(files.OUTCOME, outcome.render(replace(run_outcome, problem=problem)))

    def write_job_outcome(self, job: JobState, run_outcome: Outcome | None) -> None:
        """Write the outcome of a job that the system ended, or whose run has left none.

        Args:
            job: the job.
            run_outcome: the outcome that the supervisor has written, if any.
        """
        state, message = STOPPED if job.phase == Phase.CANCELLED else FAILED, job.describe()
        output, launcher_output = self.run_folder.end_of(files.JOB_OUTPUT), self.run_folder.end_of(LAUNCHER_LOG)
        if memory := self.system.on_nodes.memory_line(f"{launcher_output}\n{output}"):
            state, message = FAILED, f"job {self.job}: {self.system.on_nodes.out_of_memory}: {memory}"
        elif run_outcome is None and job.phase == Phase.FAILED and not self.run_folder.has_file(batch.CONFIG):
            message = (
                f"job {self.job} has written nothing to {self.record.run_dir}: its nodes do not see this folder, or "
                "may not write to it. Choose a folder that all nodes share with --runs-dir"
            )
        elif run_outcome is None and not job.ended_externally and output:
            message += f"; its last output: {output.splitlines()[-1]}"
        if run_outcome is not None and run_outcome.state == PREEMPTED and explains_end(run_outcome):
            message = f"{message}; {run_outcome.problem}"
        now, supervisor = time.time(), supervisor_of(self.folder)
        ended = run_outcome or Outcome(state=state, started=supervisor.started if supervisor else now, ended=now)
        ended = replace(ended, state=state, problem=message, first_failure=None, nodes={})
        if not run_outcome and not job.ended_externally and (saved := self.saved_outcome()):
            problem = f"{saved.problem}, but {self.system.title} did not requeue the job: {message}"
            ended = replace(saved, problem=problem)
        self.run_folder.write(files.OUTCOME, outcome.render(ended))

    def saved_outcome(self) -> Outcome | None:
        """Return the outcome that the job saved when it was requeued, if it has not started since."""
        if supervisor_of(self.folder) is None:
            with suppress(OSError, values.ProtocolError):
                return outcome.parse(self.run_folder.end_of(files.SAVED_OUTCOME, MAX_STATE_BYTES))
        return None

    # Other commands.

    def interrupt(self) -> None:
        """End the run and its job, and report a job that remains."""
        if problem := self.end():
            self.notify(problem)

    def refresh(self) -> None:
        """Update the events of the run, and write its outcome if its job has ended."""
        if isinstance(self.run_folder, RemoteFolder):
            self.run_folder.copy_state()
        if self.state(now=True).ended:
            self.ensure_outcome()
        if self.unreachable:
            raise ExecuteError(f"{self.system.no_response}.", hint="Run the same command again.")

    def finish(self) -> RunOutcome:
        """Copy the results of the run if the connection allows it, and return the outcome."""
        try:
            self.run_folder.finish(self.record.output_dir)
            self.record_end()
        except ConnectionLost as error:
            self.notify(f"the files of the run are incomplete: {error.message}")
        return outcome_of(store.load(self.folder))

    def record_end(self) -> None:
        """Write the system's accounting of the job, if the job has ended or is about to."""
        if outcome_in(self.folder) is not None:
            wait_until(lambda: self.state(now=True).ended or self.unreachable, ACCOUNTED_SECONDS, POLL_SECONDS)
        if not self.state(now=True).ended:
            return
        self.ensure_outcome()
        record = self.run_folder.attempt(lambda: self.system.accounting(self.scheduler, self.last_state), None)
        if record is not None:
            try:
                write_json(self.folder / ACCOUNTING, asdict(record))
            except OSError as error:
                self.notify(disk.describe_error(self.folder / ACCOUNTING, error))

    def logs(self, *, rank: int | None, follow: bool) -> Iterator[LogLine]:
        """Yield log lines over a separate connection.

        A caller may iterate over events() at the same time.

        Raises:
            ExecuteError: with the job's output, if the run failed before any rank wrote a line.
        """
        # events() reports a system that does not respond, which no line depends on.
        reader = BatchHandle(self.system, self.record, self.folder, self.earlier)
        with closing(reader.host):
            reader.run_folder.refresh()
            reader.record_nodes()
            run = store.load(self.folder)
            is_empty = True
            for line in reader.log_lines(run, rank=rank, follow=follow):
                is_empty = False
                yield line
            has_failed = run.outcome is not None and run.outcome.state == FAILED
            if (is_empty and has_failed and rank is None and not follow) and (
                output := reader.run_folder.end_of(files.JOB_OUTPUT)
            ):
                arguments = store.cli_arguments(run.folder)
                raise ExecuteError.about("no-rank-lines", run=run, job=reader.job, output=output, arguments=arguments)

    def log_lines(self, run: store.Run, *, rank: int | None, follow: bool) -> Iterator[LogLine]:
        """Yield the log lines in the order of time, or as they are written while the run is followed.

        Raises:
            RequestError: if the run does not have this rank.
        """
        nodes = requested_ranks(run, rank)
        if not follow or self.has_ended():
            self.run_folder.update_logs(nodes)
            yield from copied_lines(run, nodes, self.earlier.logs)
            return

        def updates() -> Iterator[None]:
            running = True
            while running:
                self.run_folder.refresh()
                self.run_folder.update_logs(nodes)
                yield
                running = not self.has_ended()
                time.sleep(TICK_SECONDS)
            self.run_folder.update_logs(nodes)

        yield from followed_lines(run.folder, lambda: nodes, self.earlier.logs, updates())

    def stop(self) -> CleanupReport:
        """End the run, and report what each of its nodes and its job have left."""
        began = time.monotonic()
        problem = self.end()
        outcome = outcome_in(self.folder)
        node_ends = outcome.nodes if outcome else {}
        nodes = tuple(
            NodeCleanup(
                node=name,
                state="unreachable" if problem else "left" if end.left else "clean",
                ended=(counted(end.ended, "process"),) if end.ended else (),
                left=tuple(f"{process.name} ({process.pid})" for process in end.left),
                segments=end.segments,
                segments_left=end.segments_left,
                problem=problem or end.lost or "",
            )
            for name, end in node_ends.items()
        )
        job = NodeCleanup(node=f"job {self.job}", state="left" if problem else "clean", problem=problem)
        seconds = round(time.monotonic() - began, 3)
        return CleanupReport(run_id=self.record.run_id, seconds=seconds, nodes=(*nodes, job))

    def end(self) -> str:
        """End the run, and return the problem if its job is still running, or ''.

        The supervisor is stopped first, because it records what each node has left. Then the system ends what
        remains of the job.
        """
        job = self.state(now=True)
        if self.unreachable:  # The supervisor reads the stop file, and a job without processes ends.
            self.run_folder.write(files.STOP, "")
            if wait_until(self.is_over, STOP_SECONDS):
                return ""
            return f"{self.system.no_response}; the run ends as soon as its supervisor sees the stop file"
        if job.phase == Phase.RUNNING:
            # The ranks stop at the stop file or at SIGINT: at SIGTERM they would write a checkpoint first.
            try:
                self.run_folder.write(files.STOP, "")
            except ExecuteError as error:  # The batch system ends the job also without this file.
                self.notify(error.message)
            if not self.system.is_step(self.job):  # which has no batch script
                self.scheduler.interrupt(self.job)
            wait_until(lambda: self.is_over() or self.state().ended, STOP_SECONDS)
        if not self.state(now=True).ended:
            self.scheduler.cancel(self.job)
        if not wait_until(lambda: self.state().ended, GONE_SECONDS):
            return f"{self.system.title} still reports job {self.job} as {self.last_state.state}"
        self.ensure_outcome()
        return ""

    def is_over(self) -> bool:
        """Return whether the run has an outcome, after updating its local files."""
        self.run_folder.refresh()
        return outcome_in(self.folder) is not None

    def commands(self, nodes: Nodes | None) -> NodeCommands:
        """Raise RequestError with the command that reaches the nodes of the job."""
        location = location_of(self.record)
        host = f" on {location.login}" if location.login else ""
        shell = self.system.job_shell.format(job=location.job)
        raise RequestError.about("commands-in-job", run=self.record, system=self.system, host=host, shell=shell)

    def fetch(self, request: FetchRequest, listener: FetchListener) -> Collected:
        """Copy files of the run from the shared file system, which is the same on every node.

        Raises:
            RequestError: if the run has no node of the requested name, or no project as it was sent.
        """
        requested_node(self.record, request.node)
        source = Source(name=self.record.node0.node, remote=self.host)
        if request.project:
            is_local, copy = isinstance(self.host, Local), project_copy(self.record.run_dir)
            store_folder = str(state_home() / "store") if is_local else store_of(self.record.run_dir)
            return fetch_project(source, store_folder, copy, self.folder, request, listener)
        return fetch_files([source], self.folder, request, listener)


def wait_until(condition: Callable[[], bool], seconds: float, tick: float = TICK_SECONDS) -> bool:
    """Wait until the condition holds, and return whether it did within the time limit."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(tick)
    return True


def with_nodes(record: RunRecord, folder: Path) -> RunRecord:
    """Return the record with the nodes of the job if it has assigned the run's ranks to them, or else unchanged."""
    assigned = values.load(layout.parse, folder / files.LAYOUT)
    if assigned is None:
        return record
    names = assigned.node_names
    if [node.node for node in record.nodes] == names or len(assigned.ranks) != len(record.layout):
        return record
    rank_places = tuple(
        RankPlacement(**{field.name: getattr(rank, field.name) for field in fields(RankPlacement)})
        for rank in assigned.ranks
    )
    nodes = tuple(RunNode(node=name) for name in names)
    return replace(record, node0=nodes[0], nodes=nodes, layout=rank_places)


def explains_end(run_outcome: Outcome | None) -> bool:
    """Return whether the supervisor's outcome holds, whatever happens to the job later.

    When a batch system ends a job, one rank may lose its peer before it receives a signal itself.
    """
    if run_outcome is None or run_outcome.state in (DONE, STOPPED, REFUSED):
        return run_outcome is not None
    if run_outcome.state == PREEMPTED:
        return (run_outcome.problem or "").startswith("checkpoint")
    failure = run_outcome.first_failure
    if failure is None or failure.signal in ENDING_SIGNALS:
        return False
    return not failures.blames_another(failure.rank, failure.text)


def is_final(run_outcome: Outcome | None) -> bool:
    """Return whether the outcome holds and the job does not continue the run."""
    return run_outcome is not None and run_outcome.state != PREEMPTED and explains_end(run_outcome)
