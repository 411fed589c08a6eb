"""Programs of orch on nodes.

A training script may use `from orch_node import note, report`.
"""

from orch_node.events import note, report

__all__ = ["note", "report"]
