"""What a new run is known by, on every target."""

from __future__ import annotations

import datetime
import secrets
import socket
import time
from dataclasses import dataclass

from orchestrator.state import user_name


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """`stamp` sorts by time, `suffix` tells two runs of one second apart. `started_by`: user@host;
    `created`: since the epoch."""

    stamp: str
    suffix: str
    started_by: str
    created: float


def new_identity() -> Identity:
    return Identity(
        stamp=datetime.datetime.now().strftime("%Y%m%d-%H%M%S"),
        suffix=secrets.token_hex(2),
        started_by=f"{user_name()}@{socket.gethostname()}",
        created=round(time.time(), 3),
    )


def run_id(new: Identity, recipe: str) -> str:
    """It sorts by time and reads well in a list."""
    plain = (letter if letter.isascii() and letter.isalnum() else "-" for letter in recipe)
    return f"{new.stamp}-{''.join(plain)[:40]}-{new.suffix}"
