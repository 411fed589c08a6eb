"""When to repeat a request to the API, and when to give up."""

from __future__ import annotations

import time

TEMPORARY_STATUSES = (429, 500, 502, 503, 504)
MAX_DELAY = 10.0
REFUSED_SECONDS = 30.0  # an API server that has just started knows neither roles nor tokens
SERIES_GAP_SECONDS = 10.0  # a refusal after a longer time without one starts a new series


def is_temporary(error: Exception) -> bool:
    """Return whether the same request may succeed if it is repeated."""
    return getattr(error, "status", 0) in (0, *TEMPORARY_STATUSES)


def retry_delay(error: Exception, attempts: int) -> float:
    """Return the seconds until the next attempt: as the API requests, or twice as long each time."""
    headers = getattr(error, "headers", None) or {}
    requested = str(headers.get("Retry-After", ""))
    return min(float(requested) if requested.isdigit() else 0.25 * 2**attempts, MAX_DELAY)


class RefusalTimer:
    """The time since which all repeated requests of one caller are refused."""

    def __init__(self) -> None:
        self.since = 0.0
        self.last: float | None = None

    def is_over(self) -> bool:
        """Count a refusal, and return whether the series of refusals has lasted too long."""
        now = time.monotonic()
        if self.last is None or now - self.last > SERIES_GAP_SECONDS:
            self.since = now
        self.last = now
        return now - self.since > REFUSED_SECONDS
