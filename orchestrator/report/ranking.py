"""The runs of an array, ranked by a result."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.errors import RequestError, did_you_mean
from orchestrator.model.decision import ARRAY_MEMBER
from orchestrator.report.comparison import ABSENT, Side
from orchestrator.report.listing import SCHEMA, table
from orchestrator.runs.measures import scores

LOSS, SPEED = "loss", "samples_per_second"
SMALLER_IS_BETTER = ("loss", "perplexity", "error", "seconds")  # parts of the names of such results


@dataclass(frozen=True, slots=True, kw_only=True)
class RankedRun:
    """A run of an array.

    Attributes:
        values: its values of the array, as `NAME=VALUE NAME=VALUE`.
        results: its results by name.
    """

    id: str
    values: str
    state: str
    results: dict[str, float]


def rank_runs(sides: Sequence[Side], result: str | None) -> tuple[RankedRun, ...]:
    """Return the runs in the order of a result, the best one first; runs without it, or with NaN, come last.

    Args:
        sides: the runs of an array.
        result: the name of the result, or None for the order of the array.

    Raises:
        RequestError: if no run has this result.
    """
    runs = tuple(map(ranked_run, sides))
    if result is None:
        return runs
    names = {name for run in runs for name in run.results}
    if result not in names:
        listing = f"They have: {', '.join(sorted(names)) or 'none'}."
        raise RequestError(
            f"No run of the array has the result {result!r}.", hint=did_you_mean(result, names, listing=listing)
        )
    sign = 1 if any(part in result for part in SMALLER_IS_BETTER) else -1

    def order(run: RankedRun) -> tuple[bool, float]:
        value = run.results.get(result, math.nan)
        return (True, 0.0) if math.isnan(value) else (False, sign * value)

    return tuple(sorted(runs, key=order))


def ranked_run(side: Side) -> RankedRun:
    """Return a run with its values and results."""
    label = next((decision.value for decision in side.outcome.decisions if decision.topic == ARRAY_MEMBER), "")
    reported = scores(side.run.result())
    results = dict(reported.after)
    if side.measured.loss:
        results.setdefault(LOSS, side.measured.loss[-1][1])
    if reported.train_samples_per_second is not None:
        results[SPEED] = reported.train_samples_per_second
    return RankedRun(
        id=side.run.id, values=label.rpartition(" (")[0] or label, state=side.outcome.state, results=results
    )


def as_text(runs: Sequence[RankedRun], result: str | None) -> str:
    """Return a table of the runs; the result by which they are ranked comes first."""
    names = sorted({name for run in runs for name in run.results}, key=lambda name: (name != result, name))
    rows = [
        {
            **{name: f"{run.results[name]:.5g}" if name in run.results else ABSENT for name in names},
            "run": run.id,
            "values": run.values,
            "state": run.state,
        }
        for run in runs
    ]
    return table(rows, ("run", "values", "state", *names))


def as_json(runs: Sequence[RankedRun]) -> str:
    """Return the runs in their order as JSON."""
    members = [{"run": run.id, "values": run.values, "state": run.state, "results": run.results} for run in runs]
    return json.dumps({"schema": SCHEMA, "kind": "ranking", "runs": members}, indent=1)
