"""JSON <-> frozen dataclasses. What is read has exactly the fields, and the types, of the class."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, fields
from typing import Any, TypeVar

T = TypeVar("T")
Measured = float  # what a training has come to; NaN is an answer
Reader = Callable[[object, str], Any]
DEEPEST = 32  # of lists and objects in each other
DIGITS = 20  # of a whole number: 2^64 has as many
NAMES: dict[type[Any], tuple[str, ...]] = {}
READERS: dict[type[Any], dict[str, tuple[Reader, bool]]] = {}  # made once for each class


PLAIN = {str, int, float, bool, type(None)}


class ProtocolError(Exception):
    """What is wrong with a file or a line, and at which key: `layout.json: ranks[3].cpus ...`."""


def parse(kind: type[T], text: str | bytes, where: str) -> T:
    """`where`: the name of the file. Raises ProtocolError."""
    return read(kind, loads(text, where), where)


def parse_known(kind: type[T], text: str | bytes, where: str) -> T:
    """The same, of any version: what that one says besides is dropped. Raises ProtocolError."""
    return read_known(kind, loads(text, where), where)


def loads(text: str | bytes, where: str) -> Any:
    """JSON from anywhere: no depth and no length of it harms who reads it. Raises ProtocolError."""
    try:
        value = DECODER.decode(text if isinstance(text, str) else text.decode())
    except RecursionError:
        raise ProtocolError(f"{where} is nested too deep.") from None
    except ValueError as error:
        raise ProtocolError(f"{where} is no JSON: {error}") from None
    if deeper(value, DEEPEST):
        raise ProtocolError(f"{where} is nested too deep.")
    return value


def whole_number(digits: str) -> int:
    if len(digits) > DIGITS + digits.startswith("-"):
        raise ValueError(f"a number has {len(digits)} digits.")
    return int(digits)


DECODER = json.JSONDecoder(parse_int=whole_number)  # json.loads would make one for each line


def deeper(value: Any, limit: int) -> bool:
    """Whether lists and objects are in each other more than `limit` times."""
    layer = [value]
    for _ in range(limit + 1):
        inner = [list(one.values()) if isinstance(one, dict) else one for one in layer if isinstance(one, (dict, list))]
        layer = [one for part in inner for one in part]
    return bool(layer)


def read(kind: type[T], value: object, where: str) -> T:
    """Raises ProtocolError that names the key."""
    if not isinstance(value, dict):
        raise ProtocolError(f"{where} is {value!r:.60}, no object.")
    known = readers(kind)
    for name in value:
        if name not in known:
            raise ProtocolError(f"{where} has the unknown key {name!r:.60}.")
    found = {}
    for name, (reader, required) in known.items():
        if name in value:
            found[name] = reader(value[name], f"{where}: {name}")
        elif required:
            raise ProtocolError(f"{where} has no {name!r}.")
    return kind(**found)


def read_known(kind: type[T], value: object, where: str) -> T:
    """The same, and what another version says besides is dropped. Raises ProtocolError."""
    found = an_object(value, where)
    return read(kind, {name: found[name] for name in readers(kind) if name in found}, where)


def check_schema(value: Mapping[str, Any], where: str, schema: int = 1) -> None:
    """Raises ProtocolError."""
    if value.get("schema") != schema:
        raise ProtocolError(f"{where} has schema {value.get('schema')!r:.60}, not {schema}.")


def record(value: Any) -> Any:
    """A value as JSON has it: what `read` takes."""
    if type(value) in PLAIN:  # most are: thousands of ranks are written in one go
        return value
    if hasattr(value, "__dataclass_fields__"):
        return {name: record(getattr(value, name)) for name in names_in(type(value))}
    if isinstance(value, (tuple, list)):
        return [one if type(one) in PLAIN else record(one) for one in value]
    if isinstance(value, Mapping):
        return {name: record(one) for name, one in value.items()}
    return value


def names_in(kind: type[Any]) -> tuple[str, ...]:
    """The fields of a class."""
    if kind not in NAMES:
        NAMES[kind] = tuple(one.name for one in fields(kind))
    return NAMES[kind]


def readers(kind: type[Any]) -> dict[str, tuple[Reader, bool]]:
    """Field -> what reads it, and whether it must be there."""
    if kind not in READERS:
        names = {name: one for base in kind.__mro__ for name, one in names_of(base).items()}
        READERS[kind] = {one.name: (reader_of(str(one.type), names), required(one)) for one in fields(kind)}
    return READERS[kind]


def names_of(kind: type[Any]) -> dict[str, Any]:
    return vars(sys.modules[kind.__module__])


def required(field: Field[Any]) -> bool:
    return field.default is MISSING and field.default_factory is MISSING


def reader_of(words: str, names: Mapping[str, Any]) -> Reader:
    """For a field's annotation, which is text in a module with postponed annotations."""
    if words.endswith(" | None"):
        inner = reader_of(words[: -len(" | None")], names)
        return lambda value, where: None if value is None else inner(value, where)
    if words.startswith("tuple["):
        inner = reader_of(words[len("tuple[") : -len(", ...]")], names)
        return lambda value, where: tuple(inner(one, f"{where}[{at}]") for at, one in enumerate(a_list(value, where)))
    if words.startswith("dict[str, "):
        inner = reader_of(words[len("dict[str, ") : -1], names)
        return lambda value, where: {
            name: inner(one, f"{where}.{name}") for name, one in an_object(value, where).items()
        }
    return SCALARS.get(words) or (lambda value, where: read(names[words], value, where))


def scalar(kind: type[Any], what: str) -> Reader:
    def check(value: object, where: str) -> Any:
        if type(value) is not kind:  # a bool is no number here
            raise ProtocolError(f"{where} is {value!r:.60}, not {what}.")
        return value

    return check


def any_number(value: object, where: str) -> float:
    """NaN and the infinities, too."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return value
    raise ProtocolError(f"{where} is {value!r:.60}, not a number.")


def a_number(value: object, where: str) -> float:
    found = any_number(value, where)
    if math.isfinite(found):
        return found
    raise ProtocolError(f"{where} is {value!r:.60}, not a number.")


def a_list(value: object, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise ProtocolError(f"{where} is {value!r:.60}, not a list.")
    return value


def an_object(value: object, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ProtocolError(f"{where} is {value!r:.60}, no object.")
    return value


SCALARS: dict[str, Reader] = {
    "int": scalar(int, "a whole number"),
    "str": scalar(str, "text"),
    "bool": scalar(bool, "true or false"),
    "float": a_number,
    "Measured": any_number,
    "Any": lambda value, where: value,
}
