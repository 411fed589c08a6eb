"""Runs that one request has started: each is followed to its end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from orch_node.protocol.events import Waiting

from orchestrator.errors import OrchError
from orchestrator.operations.find import handle_of
from orchestrator.planning.plan import Plan
from orchestrator.runs import store
from orchestrator.runs.outcome import Outcome, outcome_of
from orchestrator.targets.interface import RunHandle, Tell


def members(plan: Plan, base: Path, tell: Tell) -> list[RunHandle]:
    """`base`: the folder of runs."""
    handles = [handle_of(store.load(base / one.run.run_id)) for one in plan.array]
    for handle in handles:
        handle.tell = tell
    return handles


def follow(handles: Sequence[RunHandle], tell: Tell) -> Iterator[Outcome]:
    """How each ended, in their order; `tell` gets why one waits."""
    for handle in handles:
        try:
            for event in handle.events():
                if isinstance(event, Waiting):
                    tell(f"{handle.record.run_id}: {event.text}")
            yield handle.finish()
        except OrchError as error:
            tell(f"{handle.record.run_id}: {error.message}")
            yield outcome_of(store.load(handle.folder))


def stop(handles: Sequence[RunHandle]) -> None:
    for handle in handles:
        handle.interrupt()


def exit_code(outcomes: Sequence[Outcome]) -> int:
    """1 where a run has failed, else what the first says that is not done."""
    codes = [one.exit_code for one in outcomes if one.exit_code]
    return 1 if 1 in codes else next(iter(codes), 0)
