"""What a case came to, read out of what its container printed, and the table of all."""

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
    """`steps`: name -> (exit code, seconds), of those `wanted`. `missing`: why it cannot be had."""

    code: int
    wanted: tuple[str, ...] = STEPS
    steps: dict[str, tuple[int, int]] = field(default_factory=dict)
    figures: dict[str, Any] = field(default_factory=dict)
    torch: str = ""
    missing: str = ""

    def verdict(self, case: Case) -> str:
        if self.missing:
            return f"NOT AVAILABLE HERE: {self.missing}"
        for name, (code, _) in self.steps.items():
            if code:
                return f"FAILED: make {name} ended with {code}"
        if self.code or tuple(self.steps) != self.wanted:
            return f"FAILED: ended with {self.code}"
        if self.torch.endswith("+cpu") != (case.build == "cpu"):
            return f"FAILED: not the {case.build} build"
        return "passed"

    def row(self, name: str) -> tuple[str, ...]:
        times = [f"{self.steps[step][1] / 60:.1f} min" if step in self.steps else "-" for step in STEPS]
        after = self.figures.get("after", {})
        speed = self.figures.get("train_samples_per_second")
        seconds = self.figures.get("train_seconds")
        training = "-" if seconds is None else f"{seconds:.0f} s"
        figures = ["-" if value is None else f"{value:.1f}" for value in (speed, after.get("em"), after.get("f1"))]
        return (name, self.verdict(CASES[name]), self.torch or "-", *times, training, *figures)


def result_of(code: int, text: str, wanted: tuple[str, ...] = STEPS) -> Result:
    said = [line[len(MARK) :] for line in text.splitlines() if line.startswith(MARK)]
    found: dict[str, Any] = {"steps": {}}
    for line in said:
        kind, _, rest = line.partition(" ")
        if kind == "step":
            name, ended, seconds = rest.split()
            found["steps"][name] = (int(ended), int(seconds))
        elif kind == "figures":
            found[kind] = json.loads(rest)
        else:
            found[kind] = rest.strip()
    return Result(code=code, wanted=wanted, **found)


def table(results: dict[str, Result]) -> str:
    rows = [COLUMNS, ("---",) * len(COLUMNS)]
    rows += [result.row(name) for name, result in results.items()]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)
