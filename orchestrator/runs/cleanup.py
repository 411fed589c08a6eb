"""What the end of a run, or of the leftovers of many, found and ended, node by node."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeCleanup:
    """One node. `state`: clean, left (there are processes of the run) or unreachable. `segments`
    of /dev/shm were removed; those `segments_left` are not known to be a library's. `moved`:
    damaged runs that were moved out of the way, in words."""

    node: str
    state: str
    ended: tuple[str, ...]
    left: tuple[str, ...]
    segments: tuple[str, ...]
    problem: str
    segments_left: tuple[str, ...] = ()
    moved: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanupReport:
    """All nodes, and the seconds that it took. `run_id` is empty where it was about all runs."""

    run_id: str
    seconds: float
    nodes: tuple[NodeCleanup, ...]

    @property
    def exit_code(self) -> int:
        return 0 if all(node.state == "clean" for node in self.nodes) else 1
