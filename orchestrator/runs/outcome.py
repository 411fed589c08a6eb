"""The outcome of a recorded run, with everything that reports show about it, and the result of a cleanup."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from orch_node.atomic_write import plain
from orch_node.protocol import events as kinds
from orch_node.protocol import files, outcome
from orch_node.protocol.failures import rank_ends
from orch_node.protocol.layout import AUTO
from orch_node.protocol.record import Decision, number_ranges
from orch_node.tail import last_text

from orchestrator.model.decision import GPUS, Finding
from orchestrator.runs.events import last_attempt
from orchestrator.runs.explanations import explain
from orchestrator.runs.logs import position_at
from orchestrator.runs.state_files import Accounting, read_accounting
from orchestrator.runs.store import Run
from orchestrator.runs.timeline import Moment, how_it_failed, timeline_of
from orchestrator.runs.tracebacks import HEADER, error_key

LOG_CHARACTERS = 200_000
EXIT_CODES = {outcome.DONE: 0, outcome.STOPPED: 130, outcome.PREEMPTED: outcome.EX_TEMPFAIL}
STATES_WITHOUT_ERROR = (outcome.DONE, outcome.PREEMPTED, "running", "unknown")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOutcome:
    """The outcome of a run.

    Attributes:
        run_id: the id of the run.
        folder: the local folder of the run.
        state: the state of the run.
        recipe: the recipe or script.
        ranks: the number of ranks of the last attempt, which may be lower than planned.
        planned_ranks: the number of planned ranks.
        ran_on: the number of nodes of the last attempt.
        backend: the backend of torch.distributed.
        precision: the precision that was used.
        seconds: the duration of the run without the pauses before it was resumed, or None if it has not ended.
        failure: the first rank that failed, or None.
        same_error: the other ranks that ended with the same error.
        problem: the reason why the run ended early, or None.
        explanations: the known errors in the logs of a failed run.
        result: the figures that the script reported, or None.
        accounting: the batch system's record of the job, or None if there is none.
        decisions: the decisions of the plan.
        nodes: the result of ending the run's processes, by node.
        attempts: the number of attempts.
        timeline: the events of the run as text.
        notes: messages about data that could not be read.
    """

    run_id: str
    folder: Path
    state: str
    recipe: str
    ranks: int
    planned_ranks: int
    ran_on: int
    backend: str
    precision: str
    seconds: float | None
    failure: outcome.Failure | None
    same_error: tuple[int, ...]
    problem: str | None
    explanations: tuple[Finding, ...]
    result: kinds.Result | None
    accounting: Accounting | None
    decisions: tuple[Decision, ...]
    nodes: dict[str, outcome.NodeEnd]
    attempts: int
    timeline: tuple[Moment, ...]
    notes: tuple[str, ...]

    @property
    def exit_code(self) -> int:
        """Return the exit code of a command that reports this outcome."""
        return EXIT_CODES.get(self.state, 1)


def outcome_of(run: Run) -> RunOutcome:
    """Return the outcome of a run, read from its folder."""
    ended = run.outcome
    failure = failure_of(ended.first_failure, run) if ended else None
    events = run.events()
    planned = len(run.record.layout)
    by_rank = kinds.UnreadableEvents(event for event in events if isinstance(event, kinds.UnreadableEvent))
    unreadable = (*map(kinds.describe_unreadable, by_rank.events()), *log_notes(run.folder))
    ranks, nodes = of_last_attempt(last_attempt(events), planned) or (planned, len(run.nodes))
    return RunOutcome(
        run_id=run.id,
        folder=run.folder.absolute(),
        state=run.state,
        recipe=run.record.recipe,
        ranks=ranks,
        planned_ranks=planned,
        ran_on=nodes,
        backend=run.record.backend,
        precision=chosen_precision(events) or run.record.precision,
        seconds=ended.ended - ended.started + seconds_before(ended.started, events) if ended else None,
        failure=failure,
        same_error=ranks_with_same_error(events, failure) if failure else (),
        problem=ended.problem if ended else None,
        explanations=() if run.state in STATES_WITHOUT_ERROR else explanations_of(run, failure, events),
        result=run.newest(kinds.Result),
        accounting=read_accounting(run.folder),
        decisions=run.record.decisions,
        nodes=ended.nodes if ended else {},
        attempts=ended.attempts if ended else 1,
        timeline=tuple(timeline_of(events)),
        notes=(*run.problems, *unreadable, *untrained_notes(run.state, events), *nan_notes(failure, events)),
    )


def seconds_before(resumed: float, events: Sequence[kinds.Event]) -> float:
    """Return how long a run was running before it was resumed, or 0 if it was not."""
    seconds, launched, last = 0.0, 0.0, 0.0
    for event in events:
        if not 0 < event.time < resumed:
            continue
        if isinstance(event, kinds.Launched):
            seconds += last - launched
            launched = last = event.time
        elif launched:
            last = max(last, event.time)
        if isinstance(event, kinds.Finished):
            seconds += last - launched
            launched = last = 0.0
    return seconds + last - launched


def explanations_of(run: Run, failure: outcome.Failure | None, events: Sequence[kinds.Event]) -> tuple[Finding, ...]:
    """Return the known errors in the logs of a failed run and in the reason of its end."""
    joined = {event.rank for event in last_attempt(events) if isinstance(event, kinds.Joined)}
    return explain(
        run_output(run, failure, events),
        exception=failure.text if failure and HEADER in failure.text else "",
        all_joined=len(joined) >= len(run.record.layout),
        on_gpus=any(decision.topic == GPUS for decision in run.record.decisions),
    )


def ranks_with_same_error(events: Sequence[kinds.Event], failure: outcome.Failure) -> tuple[int, ...]:
    """Return the other ranks of the last attempt that ended with the error of the first failure."""
    ends = rank_ends(last_attempt(events))
    error = error_key(failure.text)
    texts = {rank: end.raised.text for rank, end in ends.items() if end.raised and rank != failure.rank}
    return tuple(sorted(rank for rank, text in texts.items() if rank >= 0 and error_key(text) == error))


def precision_of(run: Run) -> str:
    """Return the precision in which a run trained, or `auto` if its ranks have not chosen it yet."""
    planned = run.record.precision
    return (chosen_precision(run.events()) or planned) if planned == AUTO else planned


def chosen_precision(events: Sequence[kinds.Event]) -> str:
    """Return the precision that the ranks chose last, or an empty string if the plan chose it."""
    choices = (e.value for e in events if isinstance(e, kinds.Decided) and e.topic == "precision")
    return next(iter(list(choices)[-1:]), "")


def of_last_attempt(events: Sequence[kinds.Event], planned: int) -> tuple[int, int] | None:
    """Return the numbers of ranks and nodes in the events of the last attempt, or None if they are unknown.

    If the launcher has restarted the ranks on the remaining nodes, only ranks that have joined are counted.
    """
    joined = [event for event in events if isinstance(event, kinds.Joined)]
    if restart := max((event.restart for event in joined), default=0):
        nodes = {event.rank: event.node for event in joined if event.restart == restart}
        return len(nodes), len({*nodes.values()})
    launches = (event for event in events if isinstance(event, kinds.Launched))
    return next(((e.ranks, len(e.nodes)) for e in launches if 0 < e.ranks <= planned and e.nodes), None)


def log_notes(folder: Path) -> Iterator[str]:
    """Yield a note for each log of a rank that cannot be read."""
    for path in sorted(folder.glob("ranks/rank-*.log")):
        try:
            open(path, opener=plain).close()
        except OSError as error:
            yield f"note: {path.name} cannot be read: {error.strerror}"


def untrained_notes(state: str, events: Sequence[kinds.Event]) -> list[str]:
    """Return a note for a run that is done although no rank trained.

    Scripts that find no GPU often exit at once without an error. A script that reports progress
    or a result is assumed to have done its work.
    """
    ended = [event for event in last_attempt(events) if isinstance(event, kinds.ScriptEnded)]
    has_reported = any(isinstance(event, (kinds.Progress, kinds.Result)) for event in events)
    if state != "done" or has_reported or not ended or any(event.trained for event in ended):
        return []
    return ["note: no training step was seen: the script ended without one on every rank"]


def nan_notes(failure: outcome.Failure | None, events: Sequence[kinds.Event]) -> list[str]:
    """Return a warning for a run that did not fail although its loss was NaN."""
    ranks = sorted({event.rank for event in events if isinstance(event, kinds.Warned) and kinds.NAN_LOSS in event.text})
    if failure or not ranks:
        return []
    names = f"rank{'s' * (len(ranks) > 1)} {number_ranges(ranks)}"
    return [f"warning: {kinds.NAN_LOSS} on {names}; --stop-on-nan ends a run after 10 such backward passes in a row"]


def run_output(run: Run, failure: outcome.Failure | None, events: Sequence[kinds.Event]) -> str:
    """Return the output of the launcher and of the failing rank, or of every rank if none failed.

    Logs do not have the reason why a node was lost or a rank got SIGKILL, only lines of healthy ranks.
    """
    if failure and failure.signal == "SIGKILL" and HEADER not in failure.text:
        return how_it_failed(failure)
    problem = run.outcome.problem if run.outcome else None
    if problem and not failure and any(isinstance(event, kinds.NodesLost) for event in last_attempt(events)):
        return problem
    ranks = "*" if failure is None else str(failure.rank)
    begin = max((e.time for e in events if isinstance(e, kinds.Launched) and e.attempt > 1), default=0.0)
    if run.outcome and run.state == outcome.REFUSED:
        begin = run.outcome.started
    messages = [how_it_failed(failure), failure.text] if failure else []
    paths = sorted(run.folder.glob(f"ranks/rank-{ranks}.log"))
    logs = (last_text(path, LOG_CHARACTERS, start=position_at(path, begin)) for path in paths)
    return "\n".join([*messages, problem or "", last_text(run.folder / files.LAUNCHER_LOG, LOG_CHARACTERS), *logs])


def failure_of(failure: outcome.Failure | None, run: Run) -> outcome.Failure | None:
    """Return the recorded failure with the name of its node, or None."""
    if failure is None or failure.node:
        return failure
    layout = run.record.layout
    in_layout = 0 <= failure.rank < len(layout)
    return replace(failure, node=layout[failure.rank].node if in_layout else "an unknown node")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeCleanup:
    """The result of a cleanup on one node.

    Attributes:
        node: the name of the node.
        state: `clean`, `left` if processes of the run remain, or `unreachable`.
        ended: the ended processes.
        left: the remaining processes.
        segments: the removed segments of /dev/shm.
        problem: the reason why the cleanup is incomplete, or "".
        segments_left: the segments that are not known to belong to a library and were not removed.
        moved: a description of each damaged run that was moved away.
        unused: the removed folders of the store, which no run has used for a long time.
    """

    node: str
    state: str
    ended: tuple[str, ...] = ()
    left: tuple[str, ...] = ()
    segments: tuple[str, ...] = ()
    problem: str = ""
    segments_left: tuple[str, ...] = ()
    moved: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanupReport:
    """The results of a cleanup on all nodes.

    Attributes:
        run_id: the run that was cleaned up, or "" for all runs.
        seconds: the duration of the cleanup.
        nodes: the result of each node.
    """

    run_id: str
    seconds: float
    nodes: tuple[NodeCleanup, ...]

    @property
    def exit_code(self) -> int:
        """Return 0 if all nodes are clean, otherwise 1."""
        return 0 if all(node.state == "clean" for node in self.nodes) else 1
