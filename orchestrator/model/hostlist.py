"""Names of hosts as ranges: node[0-3] stands for node0 to node3."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator

RANGE = re.compile(r"(?P<before>[^\[\]]*)\[(?P<first>\d+)[-:](?P<last>\d+)\](?P<after>[^\[\]]*)")
NUMBERED = re.compile(r"(?P<before>.*?)(?P<number>\d+)(?P<after>\D*)")
LISTED = 8  # so many names are read more easily than a range


def expand(pattern: str, is_group: Callable[[str], bool]) -> list[str]:
    """`node[08-10]` -> node08, node09, node10; any other pattern as it is.

    After the name of a group the brackets are Ansible's own subscript, and stay.
    """
    sign = pattern[:1] if pattern[:1] in ("!", "&") else ""
    match = RANGE.fullmatch(pattern[len(sign) :])
    if match is None or sign == "&" or match["before"].startswith("~") or is_group(match["before"]):
        return [pattern]
    width = len(match["first"])
    numbers = range(int(match["first"]), int(match["last"]) + 1)
    return [f"{sign}{match['before']}{number:0{width}}{match['after']}" for number in numbers]


def fold(names: Iterable[str]) -> str:
    """Names as they may be given to --nodes: neighbours in number as ranges, if they are many."""
    given = tuple(names)
    return ",".join(ranges(given)) if len(given) > LISTED else ", ".join(given)


def ranges(names: tuple[str, ...]) -> Iterator[str]:
    """Each longest run of names that count on by one, as one word."""
    run: list[str] = []
    for name in names:
        if run and name != successor(run[-1]):
            yield word(run)
            run = []
        run.append(name)
    if run:
        yield word(run)


def successor(name: str) -> str | None:
    match = NUMBERED.fullmatch(name)
    if match is None:
        return None
    width = len(match["number"])
    return f"{match['before']}{int(match['number']) + 1:0{width}}{match['after']}"


def word(run: list[str]) -> str:
    first, last = (NUMBERED.fullmatch(name) for name in (run[0], run[-1]))
    if len(run) == 1 or first is None or last is None:
        return run[0]
    return f"{first['before']}[{first['number']}-{last['number']}]{first['after']}"
