"""A recorded run -> what there is to tell about it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from orch_node.protocol import outcome as outcomes
from orch_node.protocol.events import Decided, Event, Joined, Launched, Progress, Result, ScriptEnded
from orch_node.protocol.outcome import NodeEnd
from orch_node.protocol.precision import AUTO
from orch_node.protocol.record import Decision
from orch_node.tail import last_text

from orchestrator.runs import accounting
from orchestrator.runs.accounting import Accounting
from orchestrator.runs.events import notes
from orchestrator.runs.explanations import Explanation, explain
from orchestrator.runs.store import Run
from orchestrator.runs.timeline import Moment, how_it_failed, timeline_of
from orchestrator.runs.volumes import advise_on_volume

LOG_CHARACTERS = 200_000
EXIT_CODES = {outcomes.DONE: 0, outcomes.STOPPED: 130, outcomes.PREEMPTED: outcomes.EX_TEMPFAIL}
WELL = (outcomes.DONE, outcomes.PREEMPTED, "running", "unknown")  # nothing is to be explained


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """The first rank that failed. `text` ends with its traceback or last words."""

    rank: int
    node: str
    code: int | None
    signal: str | None
    text: str
    oom: str | None

    def describe(self) -> str:
        return how_it_failed(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a run ended. `ranks` and `ran_on` (nodes): of its last attempt, which may have gone on
    with fewer than were planned. Seconds; `result` holds the figures that the script reported;
    `accounting`: what a batch system recorded of the job, None for other targets and without it;
    `notes`: what could not be read."""

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
    failure: Failure | None
    problem: str | None
    explanations: tuple[Explanation, ...]
    result: Result | None
    accounting: Accounting | None
    decisions: tuple[Decision, ...]
    nodes: dict[str, NodeEnd]
    attempts: int
    timeline: tuple[Moment, ...]
    notes: tuple[str, ...]

    @property
    def exit_code(self) -> int:
        return EXIT_CODES.get(self.state, 1)


def outcome_of(run: Run) -> Outcome:
    ended = run.outcome
    failure = failure_of(ended.first_failure, run) if ended else None
    events = run.events()
    planned = len(run.record.layout)
    ranks, nodes = of_last_attempt(events, planned) or (planned, len(run.nodes))
    return Outcome(
        run_id=run.id,
        folder=run.folder.absolute(),
        state=run.state,
        recipe=run.record.recipe,
        ranks=ranks,
        planned_ranks=planned,
        ran_on=nodes,
        backend=run.record.backend,
        precision=chosen_precision(events) or run.record.precision,
        seconds=ended.ended - ended.started if ended else None,
        failure=failure,
        problem=ended.problem if ended else None,
        explanations=() if run.state in WELL else explanations_of(run, failure),
        result=run.result(),
        accounting=accounting.read(run.folder),
        decisions=run.record.decisions,
        nodes=ended.nodes if ended else {},
        attempts=ended.attempts if ended else 1,
        timeline=tuple(timeline_of(events)),
        notes=(*run.problems, *notes(events), *untrained_notes(run.state, events)),
    )


def explanations_of(run: Run, failure: Failure | None) -> tuple[Explanation, ...]:
    """Return the known errors in the logs of a run that failed, and in the reason of its end."""
    record, errors = run.record, explain(words(run, failure))
    return tuple(advise_on_volume(error, record.location, record.run_dir) for error in errors)


def precision_of(run: Run) -> str:
    """Return the precision in which a run trained, or `auto` if its ranks have not chosen it yet."""
    planned = run.record.precision
    return (chosen_precision(run.events()) or planned) if planned == AUTO else planned


def chosen_precision(events: Sequence[Event]) -> str:
    """Return the precision that the ranks chose last; empty if the plan had chosen it."""
    choices = (e.value for e in events if isinstance(e, Decided) and e.topic == "precision")
    return next(iter(list(choices)[-1:]), "")


def of_last_attempt(events: Sequence[Event], planned: int) -> tuple[int, int] | None:
    """(ranks, nodes) of the last attempt that tells of itself what can be: of the ranks that have
    joined, where their launcher has started them again with whatever nodes were left."""
    joined: dict[int, str | None] = {}
    restart, launched = 0, None
    for event in events:
        if isinstance(event, Launched):
            joined, restart = {}, 0
            if 0 < event.ranks <= planned and event.nodes:
                launched = event.ranks, len(event.nodes)
        elif isinstance(event, Joined):
            if event.restart > restart:
                joined, restart = {}, event.restart
            joined[event.rank] = event.node
    return (len(joined), len(set(joined.values()))) if restart else launched


def untrained_notes(state: str, events: Sequence[Event]) -> list[str]:
    """Return a note for a run that is done although no rank trained: scripts that find no GPU often
    end well at once. A script that reports progress or a result has done what it should."""
    ended: list[ScriptEnded] = []
    for event in events:
        if isinstance(event, (Progress, Result)):
            return []
        if isinstance(event, Launched):
            ended = []
        elif isinstance(event, ScriptEnded):
            ended.append(event)
    if state != "done" or not ended or any(event.trained for event in ended):
        return []
    return ["note: no training step was seen: the script ended without one on every rank"]


def words(run: Run, failure: Failure | None) -> str:
    """What the launcher and the failing rank (or every rank) have said."""
    ranks = "*" if failure is None else str(failure.rank)
    logs = [run.folder / "launcher.log", *sorted(run.folder.glob(f"ranks/rank-{ranks}.log"))]
    texts = [last_text(path, LOG_CHARACTERS) for path in logs]
    told = [failure.describe(), failure.text] if failure else []
    if run.outcome and run.outcome.problem:
        told.append(run.outcome.problem)
    return "\n".join([*told, *texts])


def failure_of(told: outcomes.Failure | None, run: Run) -> Failure | None:
    if told is None:
        return None
    layout = run.record.layout
    known = 0 <= told.rank < len(layout)
    return Failure(
        rank=told.rank,
        node=told.node or (layout[told.rank].node if known else "an unknown node"),
        code=told.code,
        signal=told.signal,
        text=told.text,
        oom=told.oom,
    )
