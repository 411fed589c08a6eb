"""Programs of orch on nodes.

A training script may use `from orch_node import note, report`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from orch_node.events import note, report

__all__ = ["note", "report"]


def __getattr__(name: str) -> Any:
    """Return what scripts import from here, which the programs of orch do not need."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from orch_node import events

    return getattr(events, name)
