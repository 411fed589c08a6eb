"""Write many names of nodes as ranges: node[0-31] means node0 to node31."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")
NUMBERS = re.compile(r"([0-9]+)")  # splits a name so that every second part is a number
MAX_DIGITS = 9  # of a number in a range
MAX_LISTED = 8  # up to this number, names are easier to read than ranges


def fold(names: Iterable[str]) -> str:
    """Return names in the form that --nodes accepts; many names are written as ranges."""
    hosts = tuple(names)
    return ",".join(ranges(hosts)) if len(hosts) > MAX_LISTED else ", ".join(hosts)


def ranges(names: tuple[str, ...]) -> Iterator[str]:
    """Yield names that differ in one number as one text, in their order: n[1-3,7] means n1, n2, n3, n7."""
    group: list[list[str]] = []
    counting: int | None = None  # the index of that number
    for name in names:
        parts = NUMBERS.split(name)
        index = index_of_number(group[-1], parts) if group else None
        if group and (index is None or counting not in (None, index)):
            yield as_text(group, counting)
            group, index = [], None
        group.append(parts)
        counting = index
    if group:
        yield as_text(group, counting)


def index_of_number(before: list[str], after: list[str]) -> int | None:
    """Return the index of the only part in which two names differ, if it is a number, or None."""
    different = [index for index, (part, new_part) in enumerate(zip(before, after)) if part != new_part]
    if len(before) != len(after) or len(different) != 1 or different[0] % 2 == 0:
        return None
    index = different[0]
    return index if max(len(before[index]), len(after[index])) <= MAX_DIGITS else None


def as_text(group: list[list[str]], index: int | None) -> str:
    if index is None:
        return "".join(group[0])
    runs: list[list[str]] = []  # numbers of which each is the next one
    for number in (parts[index] for parts in group):
        if runs and number == f"{int(runs[-1][-1]) + 1:0{len(runs[-1][-1])}}":
            runs[-1].append(number)
        else:
            runs.append([number])
    numbers = ",".join(f"{run[0]}-{run[-1]}" if run[1:] else run[0] for run in runs)
    return "".join([*group[0][:index], f"[{numbers}]", *group[0][index + 1 :]])


def grouped(items: Iterable[tuple[K, V]]) -> dict[K, list[V]]:
    """Return the values of each key, in their order."""
    groups: dict[K, list[V]] = {}
    for key, value in items:
        groups.setdefault(key, []).append(value)
    return groups


def fold_by_text(texts: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return the nodes that share a text as one name, with the text; the nodes may stand in it themselves.

    Args:
        texts: by node.
    """
    patterns = {node: rf"(?<![\w.-]){re.escape(node)}(?![\w-])" for node in texts}
    nodes = grouped((re.sub(patterns[node], "\0", text), node) for node, text in texts.items())
    return [(fold(names), text.replace("\0", fold(names))) for text, names in nodes.items()]
