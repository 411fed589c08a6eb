"""Wait for a condition, with a time limit."""

from __future__ import annotations

import time
from collections.abc import Callable

SECONDS = 400.0  # long enough for any start of ranks while other tests use all cores


def wait_until(condition: Callable[[], object], description: str, seconds: float = SECONDS) -> None:
    """Wait until a condition is true; fail the test after so many seconds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds:.0f} s: {description}"
        time.sleep(0.05)
