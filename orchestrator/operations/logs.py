"""`orch logs`: the lines of a run's ranks in which something is found."""

from __future__ import annotations

import re
from collections.abc import Iterator

from orchestrator.errors import RequestError
from orchestrator.runs.logs import LogLine
from orchestrator.targets.interface import RunHandle


def compiled(pattern: str | None) -> re.Pattern[str]:
    """Raises RequestError."""
    try:
        return re.compile(pattern or "")
    except re.error as error:
        raise RequestError(
            f"--grep {pattern}: {error}.",
            hint="It is a regular expression; a backslash before a character takes it as it is.",
        ) from None


def lines(handle: RunHandle, pattern: re.Pattern[str], *, rank: int | None, follow: bool) -> Iterator[LogLine]:
    found = handle.logs(rank=rank, follow=follow)
    return (line for line in found if pattern.search(line.text))
