"""No flag is dropped: what a target has no use for is refused, with a reason and a way out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
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
    refuse([*found, *foreign(request.options, request.on)])


def check_foreign(options: Iterable[TargetOptions], on: str | None) -> None:
    """Raises PlanError for what is meant for another target than `on`."""
    refuse(list(foreign(options, on)))


def refuse(found: Sequence[tuple[str, Refusal]]) -> None:
    if found:
        raise PlanError(
            " ".join(f"{name} {refusal.why}." for name, refusal in found),
            hint=" ".join(dict.fromkeys(refusal.instead for _, refusal in found)),
        )


def foreign(options: Iterable[TargetOptions], on: str | None) -> Iterator[tuple[str, Refusal]]:
    for one in options:
        where = f"--on {one.on}"
        for name in given(one) if one.on != on else ():
            yield flag(name), Refusal(f"is for {where}", f"Add {where}, or leave it out.")
