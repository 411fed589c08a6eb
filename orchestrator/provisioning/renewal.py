"""The nodes' locks are renewed while their holder lives, however long its playbooks take."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

RENEW_SECONDS = 600.0  # a lock that was not renewed for an hour is taken over (roles/lock)


@contextmanager
def renewing(renew: Callable[[], None]) -> Iterator[None]:
    """Do this now and then, beside what is done meanwhile."""
    ended = threading.Event()

    def loop() -> None:
        while not ended.wait(RENEW_SECONDS):
            renew()

    thread = threading.Thread(target=loop, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
