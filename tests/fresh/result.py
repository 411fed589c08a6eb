"""Read the result of a case from the output of its container."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from tests.fresh.cases import Case

MARK = "fresh: "
STEPS = ("demo", "test-unit")


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The result of a case."""

    code: int  # exit code of the container
    steps: dict[str, int] = field(default_factory=dict)  # name -> exit code
    figures: dict[str, Any] = field(default_factory=dict)
    torch: str = ""  # version
    missing: str = ""  # why the build is not available here

    def verdict(self, case: Case) -> str:
        if self.missing:
            return f"NOT AVAILABLE HERE: {self.missing}"
        for name, code in self.steps.items():
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


def result_of(code: int, text: str) -> Result:
    lines = [line[len(MARK) :] for line in text.splitlines() if line.startswith(MARK)]
    values: dict[str, Any] = {"steps": {}}
    for line in lines:
        kind, _, value = line.partition(" ")
        if kind == "step":
            name, code_of_step, _ = value.split()
            values["steps"][name] = int(code_of_step)
        elif kind == "figures":
            values[kind] = json.loads(value)
        else:
            values[kind] = value.strip()
    return Result(code=code, **values)
