"""Comparison of two runs, and the runs of an array ranked by a result."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from orch_node.protocol.events import Result

from orchestrator.errors import RequestError, did_you_mean
from orchestrator.model.decision import array_values
from orchestrator.model.hosts import fold
from orchestrator.report.listing import number_text, table
from orchestrator.runs.measures import Measures, measures, number, scores
from orchestrator.runs.outcome import RunOutcome, outcome_of
from orchestrator.runs.store import Run

ABSENT = "-"
LOSS, SPEED = "loss", "samples_per_second"
# Words and parts of words in the names of results that are better if they are smaller, such as eval_loss and MSELoss.
SMALLER_IS_BETTER = re.compile(
    "loss|perplexity|error|seconds|(?<![a-z])(r?mse|mae|mape|nll|ppl|wer|cer|fid|bpc|latency|runtime|time)(?![a-z])"
)


def compare(a: Run, b: Run) -> dict[str, Any]:
    """Return the comparison of two runs, as in JSON.

    It has their ids `a` and `b`, their `states`, the `differences` of their settings, and all `figures` that at least
    one of them has, with the `ratio` b/a, which is None if a value is missing or a is 0.
    """
    outcomes, measured = [outcome_of(run) for run in (a, b)], [measures(run) for run in (a, b)]
    settings_a, settings_b = settings(a, outcomes[0]), settings(b, outcomes[1])
    step = max(dict(measured[0].loss).keys() & dict(measured[1].loss).keys(), default=None)
    figures_a, figures_b = (figures(*side, step) for side in zip(outcomes, measured, strict=True))
    return {
        "a": a.id,
        "b": b.id,
        "states": [outcome.state for outcome in outcomes],
        "differences": [
            {"name": name, "a": settings_a.get(name, ABSENT), "b": settings_b.get(name, ABSENT)}
            for name in {**settings_a, **settings_b}
            if settings_a.get(name) != settings_b.get(name)
        ],
        "figures": [figure(*key, figures_a.get(key), figures_b.get(key)) for key in {**figures_a, **figures_b}],
    }


def figure(name: str, unit: str, a: float | None, b: float | None) -> dict[str, Any]:
    return {"name": name, "unit": unit, "a": a, "b": b, "ratio": b / a if a and b is not None else None}


def settings(run: Run, outcome: RunOutcome) -> dict[str, str]:
    """Return every setting and decision of a run by its name."""
    record, origin = run.record, run.origin
    script = origin.scripts
    git = script.git if script else None
    return {
        "recipe": record.recipe,
        "stack": origin.stack or ABSENT,
        "backend": record.backend,
        "precision": outcome.precision,
        "nodes": fold(run.nodes),
        "ranks": str(len(record.layout)),
        "threads of a rank": ", ".join(dict.fromkeys(str(placement.threads) for placement in record.layout)),
        **{f"set {name}": str(value) for name, value in origin.settings.items()},
        "script arguments": " ".join(origin.script_args) or ABSENT,
        "packages": ", ".join(fingerprint[:12] for fingerprint in origin.fingerprints) or ABSENT,
        "script": script.path if script else ABSENT,
        "script, sha256": script.sha256[:12] if script else ABSENT,
        "project, sha256": origin.project.digest[:12] if origin.project else ABSENT,
        "git commit": git.commit[:12] if git else ABSENT,
        "git, changed since": (", ".join(git.changed) if git else "") or ABSENT,
    }


def figures(outcome: RunOutcome, measured: Measures, step: float | None = None) -> dict[tuple[str, str], float]:
    """Return the figures that were measured and scored by their names and units.

    Args:
        outcome: the outcome of the run.
        measured: its measurements.
        step: the last step whose loss both runs have reported, or None.
    """
    ranks = [rank for rank in measured.ranks if rank.steps]
    speeds = [rank.steps_per_second for rank in ranks if rank.steps_per_second]
    times = [rank.step_seconds * 1e3 for rank in ranks if rank.step_seconds]
    losses = dict(measured.loss)
    values = {
        ("time, all", "s"): outcome.seconds,
        ("steps", ""): float(max(rank.steps for rank in ranks)) if ranks else None,
        ("throughput", "samples/s"): sum(rank.samples_per_second or 0.0 for rank in ranks) or None,
        ("throughput", "steps/s"): median(speeds) if speeds else None,
        ("step, median of the ranks", "ms"): median(times) if times else None,
        ("step, slowest rank", "ms"): max(times, default=None),
        ("loss, last", ""): measured.loss[-1][1] if measured.loss else None,
        (f"loss at step {step or 0:g}", ""): None if step is None else losses[step],
        **{(f"{name.upper()} after", ""): float(value) for name, value in scores(outcome.result).items()},
        ("memory, largest rank", "GiB"): max(rank.peak_rss for rank in ranks) / 2**30 if ranks else None,
    }
    return {key: value for key, value in values.items() if value is not None}


def text(comparison: dict[str, Any]) -> str:
    """Return a table of the differing settings and a table of the figures."""
    heads = [f"{key}: {comparison[key]} ({state})" for key, state in zip("ab", comparison["states"], strict=True)]
    differences = [{**entry, "setting": entry["name"]} for entry in comparison["differences"]]
    settings_table = table(differences, ("setting", "a", "b")) if differences else "no setting differs"
    rows = [
        {
            "figure": ", ".join(filter(None, (entry["name"], entry["unit"]))),
            **{key: ABSENT if entry[key] is None else number_text(entry[key], 5) for key in "ab"},
            "b/a": ABSENT if entry["ratio"] is None else f"{entry['ratio']:.3f}",
        }
        for entry in comparison["figures"]
    ]
    return "\n".join([*heads, "", settings_table, "", table(rows, ("figure", "a", "b", "b/a"))])


def is_smaller_better(result: str) -> bool:
    """Return whether smaller values of a result are better, according to its name."""
    return bool(SMALLER_IS_BETTER.search(result.lower()))


def rank_runs(runs: Sequence[Run], result: str | None, *, smallest_first: bool = False) -> list[dict[str, Any]]:
    """Return the runs of an array in the order of a result; runs without it, or with NaN or infinity, come last.

    Args:
        runs: the runs of an array.
        result: the name of the result, or None for the order of the array.
        smallest_first: whether the smallest value comes first, not the largest one.

    Raises:
        RequestError: if no run has this result.
    """
    ranked = list(map(ranked_run, runs))
    if result is None:
        return ranked
    names = {name for run in ranked for name in run["results"]}
    if result not in names:
        listing = f"They have: {', '.join(sorted(names)) or 'none'}."
        suggestion = did_you_mean(result, names, listing=listing)
        raise RequestError.about("unknown-result", result=result, suggestion=suggestion)

    def order(run: Mapping[str, Any]) -> tuple[bool, float]:
        value = run["results"].get(result, math.nan)
        return (False, value if smallest_first else -value) if math.isfinite(value) else (True, 0.0)

    return sorted(ranked, key=order)


def ranked_run(run: Run) -> dict[str, Any]:
    """Return a run with its values of the array, as `NAME=VALUE NAME=VALUE`, and its results by name."""
    label, reported, loss = array_values(run.record.decisions), run.newest(Result), measures(run).loss
    results = scores(reported)
    if loss:
        results.setdefault(LOSS, loss[-1][1])
    if reported and (speed := number(reported.figures.get("train_samples_per_second"))) is not None:
        results[SPEED] = speed
    return {"run": run.id, "values": label.rpartition(" (")[0] or label, "state": run.state, "results": results}


def ranking_text(runs: Sequence[Mapping[str, Any]], result: str | None) -> str:
    """Return a table of the runs; the result by which they are ranked comes first."""
    names = sorted({key for run in runs for key in run["results"]}, key=lambda key: (key != result, key))
    absent = dict.fromkeys(names, ABSENT)
    rows = [{**absent, **{key: number_text(value, 5) for key, value in run["results"].items()}, **run} for run in runs]
    return table(rows, ("run", "values", "state", *names))
