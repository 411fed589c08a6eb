"""A run that is a job, as it is followed: first in the queue, then by its events."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path

from orch_node.protocol import files, outcome, slurm
from orch_node.protocol import layout as layouts
from orch_node.protocol.events import Event, NodeNews, Waiting
from orch_node.protocol.outcome import DONE, FAILED, PREEMPTED, REFUSED, STOPPED, Outcome
from orch_node.protocol.record import Place, RunNode, RunRecord, render
from orch_node.protocol.values import ProtocolError
from orch_node.tail import last_text

from orchestrator.errors import ExecuteError
from orchestrator.runs import follow
from orchestrator.runs.state_files import PLAN, outcome_in, read_json, supervisor_of, write_json
from orchestrator.targets.interface import Tell
from orchestrator.targets.slurm import accounting, states
from orchestrator.targets.slurm.location import location_of
from orchestrator.targets.slurm.run_folder import RunFolder
from orchestrator.targets.slurm.scheduler import ControllerAway, Scheduler
from orchestrator.targets.slurm.states import JobState

POLL_SECONDS = 1.0
TICK_SECONDS = 0.2
ASK_SECONDS = 5.0  # between questions to the controller, which many ask
FIRST_SECONDS = 1.0
READY_SECONDS = 3.0  # until it is told that a job that runs has no supervisor yet
END_SECONDS = 40.0  # for a job to end, which Slurm gives 30 s between TERM and KILL
ENDED_BY = ("SIGTERM", "SIGKILL")  # as Slurm ends what is left of a job
UNKNOWN_CAUSE = (
    "Slurm does not know the job any more and has no accounting of it, so orch cannot tell whether "
    "it was cancelled, preempted or failed"
)
SEEN_SECONDS = 0.5  # until a shared file system shows what another host has written


def words_of(found: JobState, waits: bool, seconds: float) -> str:
    """Of a job that has no supervisor yet; `seconds`: since it last waited."""
    if waits:
        return states.waiting_words(found)
    return states.beginning_words(found) if seconds >= READY_SECONDS else ""


class JobWatch:
    """Follows the job of a run whose files are at a place, and in a folder here."""

    def __init__(
        self, record: RunRecord, folder: Path, scheduler: Scheduler, run_folder: RunFolder, tell: Tell
    ) -> None:
        self.record = record
        self.folder = folder
        self.job = location_of(record).job
        self.scheduler = scheduler
        self.run_folder = run_folder
        self.tell = tell
        self.asked = -ASK_SECONDS
        self.known = JobState(job=self.job, state="PENDING")
        self.away = False
        self.suspended = False
        self.questions = 0

    def state(self, *, now: bool = False) -> JobState:
        """As Slurm last said it: it is asked every few seconds only, at first more often."""
        pause = ASK_SECONDS if self.questions > 5 else FIRST_SECONDS
        if now or time.monotonic() - self.asked > pause:
            self.asked = time.monotonic()
            self.questions += 1
            try:
                ask = self.scheduler.state
                self.known = self.run_folder.attempt(lambda: ask(self.job), self.known)
                if self.away:
                    self.tell("the controller of Slurm answers again")
                self.away = False
            except ControllerAway as error:
                if not self.away:
                    self.tell(f"{error.message} The job goes on; asking again.")
                self.away = True
        return self.known

    # As follow.Source.

    def refresh(self) -> None:
        self.run_folder.refresh()

    def lost(self, pid: int) -> bool:
        found = self.state()
        if found.suspended and not self.suspended:
            self.tell(states.suspended_message(self.job))
        self.suspended = found.suspended
        return found.ended or found.waits

    def terminate(self, pid: int) -> None:
        """Not to make room: at SIGTERM the ranks would write a checkpoint first."""
        self.request_stop()
        if not self.is_step:  # without a batch script the stop file is enough
            self.scheduler.cancel(self.job, "--batch", "--signal=INT")

    @property
    def is_step(self) -> bool:
        """Return whether the run is a step of an allocation that the user holds."""
        return "." in self.job

    def request_stop(self) -> None:
        """Write the file at which the supervisor ends the run, also without Slurm's controller."""
        self.run_folder.write(files.STOP, "")

    def said(self) -> str:
        return self.run_folder.said()

    # Following.

    def events(self) -> Iterator[Event]:
        """From the queue to the end. Raises ExecuteError for a job that can never start."""
        told = 0
        while True:
            yield from self.queued()
            if not self.has_begun():
                self.note_end()
                return
            self.learn_nodes()
            for event in islice(self.of_run(), told, None):
                told += 1
                yield event
            self.note_end()
            if not self.comes_again():
                return
            if self.known.waits:
                text = (
                    f"job {self.job} is back in the queue; the run resumes from its last "
                    "checkpoint, if it has written one"
                )
                yield NodeNews(time=time.time(), text=text)

    def of_run(self) -> Iterator[Event]:
        return follow.follow(self.folder, self, ranks=len(self.record.layout))

    def comes_again(self) -> bool:
        """Whether Slurm has put the job back into the queue: it takes its outcome away once it
        starts again."""
        deadline = time.monotonic() + END_SECONDS
        while time.monotonic() < deadline:
            self.refresh()
            told, found = outcome_in(self.folder), self.state(now=True)
            if told is not None and told.state != PREEMPTED and knows_why(told):
                return False
            if found.waits or found.ended or told is None:
                return not found.ended
            time.sleep(POLL_SECONDS)
        return False

    def queued(self) -> Iterator[Event]:
        """Until the job's supervisor is there, or the job is not any more."""
        told, waited = "", time.monotonic()
        while True:
            found = self.state()
            # A job that was put back has files of before until it starts again.
            waits = found.waits and not self.away
            if waits:
                waited = time.monotonic()
            else:
                self.refresh()
            if found.ended or (self.has_begun() and not waits):
                return
            if why := states.never(found):
                self.scheduler.cancel(self.job)
                problem = f"Slurm will never start job {self.job} ({found.reason}), so orch cancelled it: {why}."
                now = time.time()
                ended = Outcome(state=FAILED, problem=problem, started=now, ended=now)
                self.run_folder.write(files.OUTCOME, outcome.render(ended))
                raise ExecuteError(problem, hint="Change that, and start the run again.")
            words = words_of(found, waits, time.monotonic() - waited)
            if words and words != told:
                told = words
                yield Waiting(time=time.time(), text=words)
            time.sleep(TICK_SECONDS)

    def has_begun(self) -> bool:
        return supervisor_of(self.folder) is not None or outcome_in(self.folder) is not None

    def learn_nodes(self) -> None:
        """Which nodes the job got, once it has laid its ranks out."""
        try:
            layout = layouts.parse((self.folder / files.LAYOUT).read_text())
        except (OSError, ProtocolError):
            return
        names = layout.node_names
        if [one.node for one in self.record.nodes] == names:
            return
        places = tuple(
            Place(
                rank=one.rank,
                node=one.node,
                local_rank=one.local_rank,
                local_world_size=one.local_world_size,
                cpus=one.cpus,
                threads=one.threads,
            )
            for one in layout.ranks
        )
        if len(places) == len(self.record.layout):
            nodes = tuple(RunNode(node=name) for name in names)
            self.record = replace(self.record, node0=nodes[0], nodes=nodes, layout=places)
            keep(self.record, self.folder)

    def note_end(self) -> None:
        """Tell the end as Slurm knows it, where the job was ended from outside, or left no word.

        A supervisor whose ranks Slurm ends writes what it sees of that: why, only Slurm knows."""
        told = outcome_in(self.folder)
        preempted = told is not None and told.state == PREEMPTED
        if knows_why(told) and not preempted:
            return
        if self.is_step and told is not None and time.time() - told.ended > END_SECONDS:
            return  # how the allocation ended later is not how the run did
        found = self.settled()
        self.refresh()
        told = outcome_in(self.folder)
        if found.state == states.GONE:
            found = self.recorded_end(found)
        # Ranks write a checkpoint at SIGTERM, also at that of scancel.
        cancelled = preempted and found.state == "CANCELLED"
        if not found.ended or (knows_why(told) and not cancelled):
            return
        if told is None or found.foreign:
            self.write_end(found, told)
        elif found.state == states.GONE and UNKNOWN_CAUSE not in (told.problem or ""):
            problem = f"{told.problem or ''}; {UNKNOWN_CAUSE}".removeprefix("; ")
            self.run_folder.write(files.OUTCOME, outcome.render(replace(told, problem=problem)))

    def recorded_end(self, found: JobState) -> JobState:
        """Return the end of a job that the controller has forgotten, as accounting records it."""
        record = self.run_folder.attempt(lambda: accounting.query(self.scheduler, self.job), None)
        return replace(found, state=record.state) if record else found

    def settled(self) -> JobState:
        """The job once it is over, if that is soon: what it wrote last may still be on its way."""
        deadline = time.monotonic() + END_SECONDS
        while True:
            found = self.state(now=True)
            if found.waits or time.monotonic() > deadline:
                return found
            if found.ended:
                time.sleep(SEEN_SECONDS)
                return found
            time.sleep(POLL_SECONDS)

    def write_end(self, found: JobState, told: Outcome | None) -> None:
        """`told`: what the supervisor has written, if it has."""
        state = STOPPED if found.state == "CANCELLED" else FAILED
        supervisor = supervisor_of(self.folder)
        now = time.time()
        known = told or Outcome(state=state, started=supervisor.started if supervisor else now, ended=now)
        memory = slurm.memory_line(f"{self.launcher_output()}\n{self.said()}")
        words = states.ending_words(found)
        if told is None and not found.foreign and (output := self.said().strip()):
            words += f"; its last output: {output.splitlines()[-1]}"
        if memory:
            state, words = FAILED, f"job {self.job}: {slurm.OUT_OF_MEMORY}: {memory}"
        elif found.state == "FAILED" and told is None and not self.run_folder.has(slurm.CONFIG):
            words = (
                f"job {self.job} has written nothing to {self.record.run_dir}: its nodes do not "
                "see this folder, or must not write there. Choose a folder that all nodes share: "
                "--runs-dir"
            )
        if told is not None and told.state == PREEMPTED and knows_why(told):
            words = f"{words}; {told.problem}"
        ended = replace(known, state=state, problem=words, first_failure=None, nodes={})
        before = None if told or found.foreign else self.before()
        if before is not None:
            ended = replace(before, problem=f"{before.problem}, but Slurm did not requeue the job: {words}")
        self.run_folder.write(files.OUTCOME, outcome.render(ended))

    def launcher_output(self) -> str:
        return last_text(self.folder / files.LAUNCHER_LOG, follow.LAST_WORDS)

    def before(self) -> Outcome | None:
        """What the job has put aside as it went back into the queue, where nothing came after."""
        aside = sorted(self.folder.glob("outcome-*.json"), key=lambda path: path.stat().st_mtime)
        if not aside or supervisor_of(self.folder) is not None:
            return None
        try:
            return outcome.parse(aside[-1].read_bytes())
        except (OSError, ProtocolError):
            return None


def keep(record: RunRecord, folder: Path) -> None:
    """The record in plan.json, beside all else that this holds."""
    known = read_json(folder / PLAN)
    if known is not None:
        write_json(folder / PLAN, {**known, **render(record)})


def knows_why(told: Outcome | None) -> bool:
    """Whether the supervisor's own word stands, whatever Slurm has done to the job since."""
    if told is None or told.state in (STOPPED, REFUSED):
        return told is not None
    if told.state == PREEMPTED:
        return (told.problem or "").startswith("checkpoint")
    first = told.first_failure
    return told.state == DONE or (first is not None and first.signal not in ENDED_BY)
