"""Decisions and findings: what was chosen or checked, with the reason or the evidence."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

from orch_node.protocol.record import Decision as Decision

from orchestrator.errors import OrchError

T = TypeVar("T", covariant=True)
ARRAY_MEMBER = "array"  # the topic of the decision with the values of one run of an array
GPUS = "gpus"  # the topic of the decision with the GPUs of the nodes


@dataclass(frozen=True, slots=True)
class Choice(Generic[T]):
    """A value, and the decisions that explain it; none if there was no alternative."""

    value: T
    decisions: tuple[Decision, ...] = ()


def array_values(decisions: Iterable[Decision]) -> str:
    """Return the values and the number of a run of an array, such as `lr=0.1 (1 of 3)`; empty for other runs."""
    return next((decision.value for decision in decisions if decision.topic == ARRAY_MEMBER), "")


def all_decisions(*choices: Choice[object]) -> tuple[Decision, ...]:
    """Return the decisions of all choices, in the order in which they are printed."""
    return tuple(decision for choice in choices for decision in choice.decisions)


Severity = Literal["ok", "miss", "absent", "unknown"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A result of a check.

    Attributes:
        subject: what was checked: a node, a package, a part of a cluster.
        severity: `miss` if it makes runs fail, `absent` if they do not need it, `unknown` if it could not be checked.
        message: what is wrong, or what is right if the severity is `ok`.
        evidence: what shows it, or its effect; may be empty.
        hint: what to do about it; may be empty.
    """

    subject: str
    severity: Severity = "miss"
    message: str
    evidence: str = ""
    hint: str = ""


def finding_of(error: OrchError, subject: str, severity: Severity = "miss") -> Finding:
    """Return an error of a check as its finding."""
    return Finding(subject=subject, severity=severity, message=error.message, hint=error.hint)
