"""Rows of the list that `orch runs` prints."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from orch_node.protocol.events import Progress
from orch_node.protocol.node_reports import RunReport
from orch_node.protocol.outcome import Failure, Outcome
from orch_node.protocol.record import RunRecord

from orchestrator.runs.measures import numbers
from orchestrator.runs.timeline import how_it_failed
from orchestrator.runs.tracebacks import summary

USAGE_ERROR = re.compile(r"(?:\S+: )?error: ")  # of a recipe, or as argparse writes it
NO_SCORES = ("train_seconds", "train_samples_per_second")  # figures of a result that do not rate the model


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRow:
    """A run in a list.

    Attributes:
        name: as the user named it, or ''.
        arguments: the settings of the recipe and the arguments of the script, without secrets.
        progress: the phase and the step, or what the run waits for.
        loss: the last loss, or None if it is unknown or NaN.
        has_nan_loss: whether the loss was NaN at the end.
        scores: the results of the script by name.
        cause: why the run ended early, in one line, or what it waits for.
        created: when it was planned, in seconds since the epoch.
        started: when its last attempt began, or None if it has not.
        ended: when it ended, or None if it has not.
        folder: the folder of its files, on this machine or on its nodes.
    """

    id: str
    name: str
    state: str
    recipe: str
    arguments: tuple[str, ...]
    ranks: int
    backend: str
    precision: str
    nodes: tuple[str, ...]
    progress: str
    loss: float | None
    has_nan_loss: bool
    scores: Mapping[str, float]
    cause: str
    started_by: str
    created: float
    started: float | None
    ended: float | None
    folder: str


def row_of(
    record: RunRecord,
    report: RunReport,
    *,
    state: str,
    nodes: Iterable[str],
    folder: str,
    wait: str = "",
    precision: str = "",
) -> RunRow:
    """Return the row of a run.

    Args:
        record: the record of the run.
        report: what the run has reported.
        state: its state.
        nodes: the names of its nodes.
        folder: the folder of its files.
        wait: what it waits for, or ''.
        precision: the one that its ranks chose, if it is known.
    """
    outcome = None if wait else report.outcome
    loss = report.progress.loss if report.progress else None
    return RunRow(
        id=record.run_id,
        name=record.name,
        state=state,
        recipe=record.recipe,
        arguments=record.arguments,
        ranks=len(record.layout),
        backend=record.backend,
        precision=precision or record.precision,
        nodes=tuple(nodes),
        progress=wait or progress_words(report.progress),
        loss=None if loss is None or not math.isfinite(loss) else loss,
        has_nan_loss=report.is_nan or (loss is not None and math.isnan(loss)),
        scores=scores_of(report.result),
        cause=wait or cause_of(outcome),
        started_by=record.started_by,
        created=record.created,
        started=(outcome.started if outcome else report.started) or None,
        ended=outcome.ended if outcome else None,
        folder=folder,
    )


def scores_of(result: Mapping[str, Any]) -> dict[str, float]:
    """Return the finite scores of the trained model by name, from the figures that its script reported."""
    after = numbers(result.get("after")) or numbers(result)
    return {name: value for name, value in after.items() if name not in NO_SCORES and math.isfinite(value)}


def progress_words(progress: Progress | None) -> str:
    """Return the phase and the step of a run, or an empty string without progress."""
    if progress is None or progress.step is None:
        return ""
    phase = f"{progress.phase} " if progress.phase else ""
    return f"{phase}{progress.step}/{progress.steps}" if progress.steps else f"{phase}step {progress.step}"


def cause_of(outcome: Outcome | None) -> str:
    """Return why a run ended early, in one line, or an empty string."""
    failure = outcome.first_failure if outcome else None
    text = cause(failure) if failure else (outcome.problem if outcome else None) or ""
    return next(iter(text.strip().splitlines()), "")


def cause(failure: Failure) -> str:
    """Return the exception of a rank that failed, or how it ended, with the text of its sys.exit()."""
    text = f": {failure.text}" if failure.text.startswith("sys.exit('") else ""
    is_message = USAGE_ERROR.match(failure.text)
    return summary(failure.text, is_short=True) or (failure.text if is_message else f"{how_it_failed(failure)}{text}")
