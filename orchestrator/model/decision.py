"""Decisions of a plan: each value with its reason."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from orch_node.protocol.record import Decision as Decision

T = TypeVar("T", covariant=True)
ARRAY_MEMBER = "array"  # the topic of the decision with the values of one run of an array
GPUS = "gpus"  # the topic of the decision with the GPUs of the nodes


@dataclass(frozen=True, slots=True)
class Choice(Generic[T]):
    """A value, and the decisions that explain it; none if there was no alternative."""

    value: T
    decisions: tuple[Decision, ...] = ()


def all_decisions(*choices: Choice[object]) -> tuple[Decision, ...]:
    """Return the decisions of all choices, in the order in which they are printed."""
    return tuple(decision for choice in choices for decision in choice.decisions)
