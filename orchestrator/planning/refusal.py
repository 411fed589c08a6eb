"""Refuses options that a target cannot use, with a reason and a remedy; no option is ignored silently."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from orchestrator.errors import PlanError
from orchestrator.planning.request import FLAGS, TargetOptions, TrainRequest

# Options whose names differ from those of their fields.
NAMES = {item.name: item.metadata[FLAGS][0] for item in fields(TrainRequest) if item.metadata.get(FLAGS)}


@dataclass(frozen=True, slots=True)
class Refusal:
    """A target's refusal of an option.

    Attributes:
        reason: the rest of a sentence that begins with the option.
        hint: what the user can do.
    """

    reason: str
    hint: str


NO_ARRAYS = Refusal("is for hosts and batch systems", "Start one run for each value.")


def flag(field: str) -> str:
    return NAMES.get(field) or f"--{field.replace('_', '-')}"


def changed_fields(value: Any) -> Iterator[str]:
    """Yield the fields of a request, or of a target's options, that differ from their defaults."""
    for field in fields(value):
        if getattr(value, field.name) != field.default:
            yield field.name


def check_refused(request: TrainRequest, refuses: Mapping[str, Refusal]) -> None:
    """Check that the target can use all options of the request.

    Args:
        request: the request.
        refuses: the reason for each field that the target refuses.

    Raises:
        PlanError: naming all options that it refuses.
    """
    refused = [(flag(name), refuses[name]) for name in changed_fields(request) if name in refuses]
    raise_refusals([*refused, *misplaced_options(request.options, request.on)])


def check_foreign(options: Iterable[TargetOptions], target: str | None) -> None:
    """Raise PlanError for options of another target than the chosen one."""
    raise_refusals(list(misplaced_options(options, target)))


def raise_refusals(refusals: Sequence[tuple[str, Refusal]]) -> None:
    if refusals:
        raise PlanError(
            " ".join(f"{name} {refusal.reason}." for name, refusal in refusals),
            hint=" ".join(dict.fromkeys(refusal.hint for _, refusal in refusals)),
        )


def misplaced_options(options: Iterable[TargetOptions], target: str | None) -> Iterator[tuple[str, Refusal]]:
    for target_options in options:
        flag_text = f"--on {target_options.on}"
        for name in changed_fields(target_options) if target_options.on != target else ():
            yield flag(name), Refusal(f"is for {flag_text}", f"Add {flag_text}, or omit {flag(name)}.")
