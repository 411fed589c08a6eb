"""Findings: each is one result of a check, with the evidence and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from orchestrator.errors import OrchError

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
