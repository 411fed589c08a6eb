"""Write many names of nodes as ranges: node[0-31] means node0 to node31."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

NUMBERED = re.compile(r"(?P<before>.*?)(?P<number>\d+)(?P<after>\D*)")
MAX_LISTED = 8  # up to this number, names are easier to read than ranges


def fold(names: Iterable[str]) -> str:
    """Return names in the form that --nodes accepts; many names are written as ranges."""
    hosts = tuple(names)
    return ",".join(ranges(hosts)) if len(hosts) > MAX_LISTED else ", ".join(hosts)


def ranges(names: tuple[str, ...]) -> Iterator[str]:
    """Yield each longest run of consecutive names as one range."""
    run: list[str] = []
    for name in names:
        if run and name != successor(run[-1]):
            yield as_range(run)
            run = []
        run.append(name)
    if run:
        yield as_range(run)


def successor(name: str) -> str | None:
    match = NUMBERED.fullmatch(name)
    if match is None:
        return None
    width = len(match["number"])
    return f"{match['before']}{int(match['number']) + 1:0{width}}{match['after']}"


def as_range(run: list[str]) -> str:
    first, last = (NUMBERED.fullmatch(name) for name in (run[0], run[-1]))
    if len(run) == 1 or first is None or last is None:
        return run[0]
    return f"{first['before']}[{first['number']}-{last['number']}]{first['after']}"


def fold_by_text(texts: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return the nodes that share a text as one name, with the text; the nodes may stand in it themselves.

    Args:
        texts: by node.
    """
    nodes: dict[str, list[str]] = {}
    for node, text in texts.items():
        nodes.setdefault(re.sub(rf"(?<![\w.-]){re.escape(node)}(?![\w-])", "\0", text), []).append(node)
    return [(fold(names), text.replace("\0", fold(names))) for text, names in nodes.items()]
