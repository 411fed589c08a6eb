"""Ranks whose script has ended while others wait for them in a collective.

Such a collective never completes. Some backends report the lost peer; with MPI the rank that has
ended waits in MPI_Finalize for the others, and nothing would happen until the stall timeout.
"""

from __future__ import annotations

from orch_node.supervisor.rank_tracker import Position, RankTracker

# Time for a backend that reports the lost peer itself, or a script that does not need the result.
GRACE_SECONDS = 10.0


class UnevenEnd:
    """The ranks of an attempt that wait in vain, and since when."""

    def __init__(self) -> None:
        self.waiting: dict[int, Position] = {}
        self.since = 0.0
        self.description = ""
        self.reported = False

    def news(self, tracker: RankTracker, now: float) -> str:
        """Return a line to report as soon as ranks wait in vain, and then an empty one."""
        waiting = tracker.waiting_in_vain()
        if waiting != self.waiting:  # a rank that makes progress does not wait
            self.waiting, self.since = waiting, now
            self.description = tracker.describe_uneven_end(waiting) if waiting else ""
        if not waiting or self.reported:
            return ""
        self.reported = True
        return f"{self.description}; the run ends in {GRACE_SECONDS:.0f} s unless that changes"

    def problem(self, now: float) -> str:
        """Return why the run cannot continue, once the ranks have waited long enough."""
        return self.description if self.waiting and now - self.since > GRACE_SECONDS else ""
