"""No flag is dropped: what a target has no use for is refused, with a reason and a way out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

from orchestrator.errors import PlanError
from orchestrator.planning.request import TargetOptions, TrainRequest

NAMES = {"settings": "--set"}  # fields that are not called like their flags


@dataclass(frozen=True, slots=True)
class Refusal:
    """`why` goes on after the flag's name; `instead`: what to do."""

    why: str
    instead: str


def flag(field: str) -> str:
    return NAMES.get(field) or f"--{field.replace('_', '-')}"


def given(value: Any) -> Iterator[str]:
    """Fields of a request, or of a target's options, that are not as if nothing had been said."""
    for field in fields(value):
        if getattr(value, field.name) != field.default:
            yield field.name


def check_refused(request: TrainRequest, refuses: Mapping[str, Refusal]) -> None:
    """Raises PlanError for all that the target refuses, at once. `refuses`: field -> why."""
    found = [(flag(name), refuses[name]) for name in given(request) if name in refuses]
    found += [foreign(one, name) for one in request.options if one.on != request.on
              for name in given(one)]  # fmt: skip
    if found:
        raise PlanError(
            " ".join(f"{name} {refusal.why}." for name, refusal in found),
            hint=" ".join(dict.fromkeys(refusal.instead for _, refusal in found)),
        )


def foreign(options: TargetOptions, field: str) -> tuple[str, Refusal]:
    where = f"--on {options.on}"
    return flag(field), Refusal(f"is for {where}", f"Add {where}, or leave it out.")
