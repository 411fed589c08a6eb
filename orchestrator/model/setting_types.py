"""Types of a recipe's settings: a wrong value is rejected before ranks start."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType

INTEGER, NUMBER, SWITCH, TEXT = "integer", "number", "switch", "text"
FLAG = "flag"  # an option without a value
DESCRIPTIONS = {INTEGER: "a whole number", NUMBER: "a number", SWITCH: "true or false", FLAG: "true or false"}
# The values that transformers' parser accepts for a switch.
SWITCHES = ("yes", "true", "t", "y", "1", "no", "false", "f", "n", "0")


def type_of(default: object) -> str:
    """Return the type of a default value in recipe.toml."""
    types = {bool: SWITCH, int: INTEGER, float: NUMBER}
    return types.get(type(default), TEXT)


def matches(value: object, kind: str) -> bool:
    """Return whether a value, as the user wrote it, has the type."""
    return kind not in MATCHERS or MATCHERS[kind](str(value))


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


MATCHERS: Mapping[str, Callable[[str], bool]] = MappingProxyType(
    {
        INTEGER: is_integer,
        NUMBER: is_number,
        SWITCH: lambda text: text.lower() in SWITCHES,
        FLAG: lambda text: text.lower() in ("true", "false"),
    }
)
