"""Write many names of nodes as ranges: node[0-31] means node0 to node31."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

NUMBERS = re.compile(r"([0-9]+)")  # splits a name so that every second part is a number
MAX_LISTED = 8  # up to this number, names are easier to read than ranges


def fold(names: Iterable[str]) -> str:
    """Return names in the form that --nodes accepts; many names are written as ranges."""
    hosts = tuple(names)
    return ",".join(ranges(hosts)) if len(hosts) > MAX_LISTED else ", ".join(hosts)


def ranges(names: tuple[str, ...]) -> Iterator[str]:
    """Yield each longest run of names as one range: names of which one number, always the same one, counts up."""
    run: list[list[str]] = []
    counting: int | None = None  # the place of that number
    for name in names:
        parts = NUMBERS.split(name)
        place = place_of_step(run[-1], parts) if run else None
        if run and (place is None or counting not in (None, place)):
            yield as_range(run, counting)
            run, place = [], None
        run.append(parts)
        counting = place
    if run:
        yield as_range(run, counting)


def place_of_step(before: list[str], after: list[str]) -> int | None:
    """Return the place of the only part in which two names differ, if it is a number and the next one, or None."""
    different = [place for place, (one, other) in enumerate(zip(before, after, strict=False)) if one != other]
    if len(before) != len(after) or len(different) != 1 or different[0] % 2 == 0:
        return None
    number = before[different[0]]
    return different[0] if after[different[0]] == f"{int(number) + 1:0{len(number)}}" else None


def as_range(run: list[list[str]], place: int | None) -> str:
    first, last = run[0], run[-1]
    if place is None:
        return "".join(first)
    return "".join([*first[:place], f"[{first[place]}-{last[place]}]", *first[place + 1 :]])


def fold_by_text(texts: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return the nodes that share a text as one name, with the text; the nodes may stand in it themselves.

    Args:
        texts: by node.
    """
    nodes: dict[str, list[str]] = {}
    for node, text in texts.items():
        nodes.setdefault(re.sub(rf"(?<![\w.-]){re.escape(node)}(?![\w-])", "\0", text), []).append(node)
    return [(fold(names), text.replace("\0", fold(names))) for text, names in nodes.items()]
