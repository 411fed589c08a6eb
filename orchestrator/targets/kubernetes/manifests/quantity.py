"""Kubernetes quantities: 500m of a CPU, 64Gi of memory."""

from __future__ import annotations

import re
from fractions import Fraction

from orchestrator.errors import PlanError

# apimachinery's pkg/api/resource: decimal suffixes, binary ones, or an exponent.
UNITS = {
    "n": Fraction(1, 10**9),
    "u": Fraction(1, 10**6),
    "m": Fraction(1, 1000),
    "": Fraction(1),
    **{unit: Fraction(1000 ** (power + 1)) for power, unit in enumerate("kMGTPE")},
    **{f"{unit}i": Fraction(1024 ** (power + 1)) for power, unit in enumerate("KMGTPE")},
}
GRAMMAR = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(?:[eE]([+-]?\d{1,2})|([numkMGTPE]|[KMGTPE]i)?)")


def amount(text: str, name: str) -> Fraction:
    """Return the exact value of a quantity above 0.

    Args:
        text: as Kubernetes writes it.
        name: of the setting, for the error.

    Raises:
        PlanError: if it is not such a quantity.
    """
    match = GRAMMAR.fullmatch(text)
    value = number(match) if match else Fraction(0)
    if value <= 0:
        raise PlanError(
            f"{name} = {text!r} is not a quantity above 0.", hint="Write 16 or 500m for CPUs, 64Gi or 512Mi for memory."
        )
    return value


def number(match: re.Match[str]) -> Fraction:
    digits, exponent, unit = match.groups()
    if exponent is not None:
        return Fraction(digits) * Fraction(10) ** int(exponent)
    return Fraction(digits) * UNITS[unit or ""]


def plain(value: Fraction) -> str:
    """Return the value as a decimal number, for messages."""
    return f"{float(value):g}"
