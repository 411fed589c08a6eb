"""What the ranks decide for all of the run."""

from __future__ import annotations

from orch_node.events import send
from orch_node.protocol.events import Decided

from orch_training import ranks


def tell(text: str) -> None:
    """Into the log, and to whoever watches the run; once, by rank 0."""
    ranks.note(f"{text}.")
    if ranks.is_main():
        send(Decided(text=text))
