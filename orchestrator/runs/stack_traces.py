"""Filter the stack traces that orch requests from ranks out of their logs.

They are useful in a log, but not on a screen that shows a running training.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from orchestrator.runs.logs import LogLine

# The format of CPython's faulthandler (Python/traceback.c).
TRACE_START = re.compile(r"(?:Current thread|Thread) 0x[0-9a-f]+ .*\(most recent call first\):")
TRACE_LINE = re.compile(r'  File ".*", line (?:\d+|\?\?\?) in |  <|  \.\.\.|$')


def without(lines: Iterable[LogLine]) -> Iterator[LogLine]:
    """Yield the lines of ranks, in any order, without their stack traces."""
    inside: set[int] = set()
    for line in lines:
        if not line.finished:
            if line.rank not in inside:
                yield line
        elif TRACE_START.match(line.text):
            inside.add(line.rank)
        elif line.rank not in inside or not TRACE_LINE.match(line.text):
            inside.discard(line.rank)
            yield line
