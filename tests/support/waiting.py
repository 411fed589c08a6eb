"""A test waits for what it can see, with a bound, and for no longer."""

from __future__ import annotations

import time
from collections.abc import Callable


def wait_until(true: Callable[[], object], what: str, seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, f"{what}: not after {seconds:.0f} s"
        time.sleep(0.05)
