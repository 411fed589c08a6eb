"""The log file of one rank."""

from __future__ import annotations

import os
from pathlib import Path

LAST_WORDS = 2000  # bytes
FATAL = b"Fatal Python error: "  # what faulthandler writes before its stack traces
SEARCHED = 1 << 16  # bytes of the log's end; the stack traces of many threads fit


def open_log(path: Path) -> int:
    path.parent.mkdir(mode=0o700, exist_ok=True)
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)


def last_words(log: Path) -> str:
    """The end of a rank's log: where a signal ends it, there is no exception to report. Stack
    traces give way to what was said before them."""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - SEARCHED))
        end = file.read()
    begin = max(0, len(end) - LAST_WORDS)
    if (fatal := end.rfind(FATAL)) >= 0:
        begin = min(begin, max(0, fatal - LAST_WORDS // 2))
    return end[begin : begin + LAST_WORDS].decode(errors="replace").strip()
