"""The result of ending a run, or of cleaning up leftovers, on each node."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeCleanup:
    """The result of a cleanup on one node.

    Attributes:
        node: the name of the node.
        state: `clean`, `left` if processes of the run remain, or `unreachable`.
        ended: the ended processes.
        left: the remaining processes.
        segments: the removed segments of /dev/shm.
        problem: the reason why the cleanup is incomplete, or "".
        segments_left: the segments that are not known to belong to a library and were not removed.
        moved: a description of each damaged run that was moved away.
        unused: the removed folders of the store, which no run has used for a long time.
    """

    node: str
    state: str
    ended: tuple[str, ...]
    left: tuple[str, ...]
    segments: tuple[str, ...]
    problem: str
    segments_left: tuple[str, ...] = ()
    moved: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanupReport:
    """The results of a cleanup on all nodes.

    Attributes:
        run_id: the run that was cleaned up, or "" for all runs.
        seconds: the duration of the cleanup.
        nodes: the result of each node.
    """

    run_id: str
    seconds: float
    nodes: tuple[NodeCleanup, ...]

    @property
    def exit_code(self) -> int:
        """Return 0 if all nodes are clean, otherwise 1."""
        return 0 if all(node.state == "clean" for node in self.nodes) else 1
