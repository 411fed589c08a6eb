"""What the settings of a recipe may be: a wrong one is refused here, not by ranks minutes later."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType

INTEGER, NUMBER, SWITCH, TEXT = "integer", "number", "switch", "text"
WANTED = {INTEGER: "a whole number", NUMBER: "a number", SWITCH: "true or false"}
# What transformers' parser takes for one.
SWITCHES = ("yes", "true", "t", "y", "1", "no", "false", "f", "n", "0")


def type_of(default: object) -> str:
    """What a default tells: a script that has 2 may take 2.5 as well."""
    if isinstance(default, bool):
        return SWITCH
    return NUMBER if isinstance(default, (int, float)) else TEXT


def fits(value: object, kind: str) -> bool:
    """Whether a value, as it was written, is of the type."""
    return kind not in FITS or FITS[kind](str(value))


def is_integer(text: str) -> bool:
    try:
        int(text)
    except ValueError:
        return False
    return True


def is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


FITS: Mapping[str, Callable[[str], bool]] = MappingProxyType(
    {INTEGER: is_integer, NUMBER: is_number, SWITCH: lambda text: text.lower() in SWITCHES}
)
