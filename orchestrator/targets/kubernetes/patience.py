"""How long a refusal is not taken as the API's last word."""

from __future__ import annotations

import time

REFUSED_SECONDS = 30.0  # an API server that has just started knows neither roles nor tokens
NEW_SECONDS = 10.0  # without a refusal: the next one is another story


class Patience:
    """Of one who asks again and again, a second or two apart."""

    def __init__(self) -> None:
        self.since = 0.0
        self.last: float | None = None

    def is_over(self) -> bool:
        """To be asked at each refusal: whether there were nothing but refusals for too long."""
        now = time.monotonic()
        if self.last is None or now - self.last > NEW_SECONDS:
            self.since = now
        self.last = now
        return now - self.since > REFUSED_SECONDS
