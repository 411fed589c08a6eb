"""What a script has written to standard error: where it calls sys.exit(2), the reason is there."""

from __future__ import annotations

import re
import sys
from collections import deque

WRITES = 400  # the newest that are kept; a line may take several
TRACEBACK = "Traceback (most recent call last):"
# Source lines below a warning, progress bars, warnings and what orch itself prints.
NO_REASON = re.compile(r"\s|.*\r|orch: |.*\d: \w*Warning: |.*\b(DEBUG|INFO|WARNING)\b")


class StderrRecorder:
    """Keeps the newest pieces that Python code writes to sys.stderr, which get there unchanged."""

    def __init__(self) -> None:
        self.pieces: deque[str] = deque(maxlen=WRITES)
        self.original = sys.stderr.write
        # The stream stays the same object: whoever holds it already is heard as well.
        sys.stderr.write = self.write  # type: ignore[method-assign]

    def write(self, text: str) -> int:
        """Write the text, and keep it if it is one."""
        written = self.original(text)
        self.pieces.append(text)
        return written

    def reason(self) -> str:
        """Return the last traceback, else the last line that may be a reason, else nothing."""
        lines = "".join(self.pieces).split("\n")
        if TRACEBACK in lines:
            begin = len(lines) - 1 - lines[::-1].index(TRACEBACK)
            return "\n".join(lines[begin:]).rstrip()
        reasons = [line for line in lines if line and not NO_REASON.match(line)]
        return reasons[-1].strip() if reasons else ""
