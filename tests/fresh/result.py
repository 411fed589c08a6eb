"""Read the result of a case from the output of its container, and print the table of all results."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from tests.fresh.cases import CASES, Case

MARK = "fresh: "
STEPS = ("demo", "test-unit")
COLUMNS = ("case", "result", "torch", "demo", "unit tests", "training", "samples/s", "EM", "F1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The result of a case."""

    code: int  # exit code of the container
    steps: dict[str, tuple[int, int]] = field(default_factory=dict)  # name -> (exit code, seconds)
    figures: dict[str, Any] = field(default_factory=dict)
    torch: str = ""  # version
    missing: str = ""  # why the build is not available here

    def verdict(self, case: Case) -> str:
        if self.missing:
            return f"NOT AVAILABLE HERE: {self.missing}"
        for name, (code, _) in self.steps.items():
            if code:
                return f"FAILED: make {name} ended with {code}"
        if self.code or tuple(self.steps) != STEPS:
            return f"FAILED: ended with {self.code}"
        if self.torch.endswith("+cpu") != (case.build == "cpu"):
            return f"FAILED: not the {case.build} build"
        if not self.scores("before").get("f1", 0.0) < self.scores("after").get("f1", 0.0):
            return "FAILED: the training has not improved F1"
        return "passed"

    def scores(self, name: str) -> dict[str, float]:
        """Return the scores "before" or "after" the training."""
        return dict(self.figures.get(name) or {})

    def row(self, name: str) -> tuple[str, ...]:
        times = [f"{self.steps[step][1] / 60:.1f} min" if step in self.steps else "-" for step in STEPS]
        after = self.scores("after")
        speed = self.figures.get("train_samples_per_second")
        seconds = self.figures.get("train_seconds")
        training = "-" if seconds is None else f"{seconds:.0f} s"
        figures = ["-" if value is None else f"{value:.1f}" for value in (speed, after.get("em"), after.get("f1"))]
        return (name, self.verdict(CASES[name]), self.torch or "-", *times, training, *figures)


def result_of(code: int, text: str) -> Result:
    lines = [line[len(MARK) :] for line in text.splitlines() if line.startswith(MARK)]
    values: dict[str, Any] = {"steps": {}}
    for line in lines:
        kind, _, value = line.partition(" ")
        if kind == "step":
            name, ended, seconds = value.split()
            values["steps"][name] = (int(ended), int(seconds))
        elif kind == "figures":
            values[kind] = json.loads(value)
        else:
            values[kind] = value.strip()
    return Result(code=code, **values)


def table(results: dict[str, Result]) -> str:
    rows = [COLUMNS, ("---",) * len(COLUMNS)]
    rows += [result.row(name) for name, result in results.items()]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)
