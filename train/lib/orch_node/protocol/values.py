"""Convert JSON to frozen dataclasses with exactly their fields and types, and back."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeVar

from orch_node import atomic_write

T = TypeVar("T")
Measured = float  # a result of training, which may be NaN
Reader = Callable[[object, str], Any]
MAX_DEPTH = 32  # of nested lists and objects
MAX_DIGITS = 20  # of an integer, as 2^64 has
SCALAR_TYPES = {str, int, float, bool, type(None)}
DESCRIPTIONS = {int: "a whole number", str: "text", bool: "true or false", list: "a list", dict: "an object"}


class ProtocolError(Exception):
    """A file or line with an unexpected form.

    The message names the key, such as `layout.json: ranks[3].cpus`.
    """


def parse(kind: type[T], text: str | bytes, source: str, *, ignore_unknown: bool = False) -> T:
    """Parse JSON as an instance of a class.

    Args:
        kind: the class.
        text: the JSON.
        source: the name of the file, for messages.
        ignore_unknown: ignore keys that only another version knows.

    Raises:
        ProtocolError: if the text does not match the class.
    """
    return read(kind, loads(text, source), source, ignore_unknown=ignore_unknown)


def load(parse: Callable[[bytes], T], path: Path) -> T | None:
    """Return the content of a file, or None if it cannot be read or is damaged."""
    try:
        return parse(atomic_write.read(path))
    except (OSError, ProtocolError):
        return None


def loads(text: str | bytes, source: str) -> Any:
    """Parse JSON from an untrusted source, with limited depth and integers.

    Raises:
        ProtocolError: if it is not valid JSON or exceeds the limits.
    """
    try:
        value = DECODER.decode(text if isinstance(text, str) else text.decode())
    except RecursionError:
        raise ProtocolError(f"{source} is nested too deeply.") from None
    except ValueError as error:
        raise ProtocolError(f"{source} is not valid JSON: {error}") from None
    if is_deeper(value, MAX_DEPTH):
        raise ProtocolError(f"{source} is nested too deeply.")
    return value


def whole_number(digits: str) -> int:
    """Return an integer.

    Raises:
        ValueError: if it has too many digits.
    """
    if len(digits) > MAX_DIGITS + digits.startswith("-"):
        raise ValueError(f"a number has {len(digits)} digits.")
    return int(digits)


DECODER = json.JSONDecoder(parse_int=whole_number)  # json.loads would create a decoder for each line


def is_deeper(value: Any, limit: int) -> bool:
    """Return whether lists and objects are nested more than `limit` times."""
    items = list(value.values()) if isinstance(value, dict) else value
    return limit < 0 or (isinstance(items, list) and any(is_deeper(item, limit - 1) for item in items))


def read(kind: type[T], value: object, source: str, *, ignore_unknown: bool = False) -> T:
    """Return a JSON value as an instance of a class, as parse() does.

    Raises:
        ProtocolError: if the value does not match the class; the text names the key.
    """
    content: dict[str, Any] = check(value, source, dict)
    fields_by_name = readers(kind)  # type: ignore[arg-type]  # a class is hashable
    for name in content:
        if name not in fields_by_name and not ignore_unknown:
            raise ProtocolError(f"{source} has the unknown key {name!r:.60}.")
    arguments = {}
    for name, (reader, is_required) in fields_by_name.items():
        if name in content:
            arguments[name] = reader(content[name], f"{source}: {name}")
        elif is_required:
            raise ProtocolError(f"{source} has no {name!r}.")
    return kind(**arguments)


def check_schema(value: Mapping[str, Any], source: str, schema: int = 1) -> None:
    """Raise ProtocolError unless a JSON object has this schema."""
    if value.get("schema") != schema:
        raise ProtocolError(f"{source} has schema {value.get('schema')!r:.60}, not {schema}.")


def record(value: Any) -> Any:
    """Return a value for JSON, as read() takes it."""
    if type(value) in SCALAR_TYPES:  # the usual case, fast because layouts have thousands of ranks
        return value
    if hasattr(value, "__dataclass_fields__"):
        return {field.name: record(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, (tuple, list)):
        return [item if type(item) in SCALAR_TYPES else record(item) for item in value]
    return {name: record(item) for name, item in value.items()} if isinstance(value, Mapping) else value


def render(value: Any) -> str:
    """Return a value as one line of JSON, as parse() takes it."""
    return json.dumps(record(value))


@cache
def readers(kind: type[Any]) -> dict[str, tuple[Reader, bool]]:
    """Return, for each field of a class, its reader and whether it is required."""
    names = {name: value for base in kind.__mro__ for name, value in vars(sys.modules[base.__module__]).items()}
    return {
        field.name: (make_reader(str(field.type), names), field.default is field.default_factory is MISSING)
        for field in fields(kind)
    }


def make_reader(annotation: str, names: Mapping[str, Any]) -> Reader:
    """Return the reader for a field's annotation, which is text (postponed evaluation).

    Args:
        annotation: such as `tuple[int, ...]`.
        names: the classes that it may refer to.
    """
    if annotation.endswith(" | None"):
        inner = make_reader(annotation[: -len(" | None")], names)
        return lambda value, source: None if value is None else inner(value, source)
    if annotation.startswith("tuple["):
        inner = make_reader(annotation[len("tuple[") : -len(", ...]")], names)
        return lambda value, source: tuple(
            inner(item, f"{source}[{index}]") for index, item in enumerate(check(value, source, list))
        )
    if annotation.startswith("dict[str, "):
        inner = make_reader(annotation[len("dict[str, ") : -1], names)
        return lambda value, source: {
            name: inner(item, f"{source}.{name}") for name, item in check(value, source, dict).items()
        }
    return SCALARS.get(annotation) or (lambda value, source: read(names[annotation], value, source))


def check(value: object, source: str, kind: type[T]) -> T:
    """Return a value of exactly this type, so a bool is not an int; raise ProtocolError for other types."""
    if type(value) is kind:
        return value
    raise ProtocolError(f"{source} is {value!r:.60}, not {DESCRIPTIONS[kind]}.")


def check_number(value: object, source: str, *, is_measured: bool = False) -> float:
    """Return a number; only one that is measured may be NaN or infinite."""
    if isinstance(value, (int, float)) and not isinstance(value, bool) and (is_measured or abs(value) < math.inf):
        return value
    raise ProtocolError(f"{source} is {value!r:.60}, not a number.")


SCALARS: dict[str, Reader] = {
    **{kind.__name__: partial(check, kind=kind) for kind in (int, str, bool)},
    "float": check_number,
    "Measured": partial(check_number, is_measured=True),
    "Any": lambda value, source: value,
}
