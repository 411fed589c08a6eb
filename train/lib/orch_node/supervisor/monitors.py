"""Watch for states of an attempt in which it cannot continue: a start that hangs, and ranks without a peer."""

from __future__ import annotations

import os

from orch_node.agent.processes import has_children
from orch_node.supervisor.launcher import LauncherLog
from orch_node.supervisor.rank_tracker import Position, RankTracker

REPORT_SECONDS = 20.0
NO_CHILDREN_SECONDS = 30.0  # hydra took 6 s with 20 runnable processes per core, 11 s if no name server responds
CHECK_SECONDS = 1.0
# Launchers that start each rank by a child process: ssh, srun or a proxy.
PARENTS = ("mpiexec", "mpiexec.hydra", "mpirun")
# Time for a backend that reports the lost peer itself, or a script that does not need the result.
GRACE_SECONDS = 10.0


class StartupMonitor:
    """The launcher of an attempt until all ranks have joined."""

    def __init__(self, launcher: int, program: str, log: LauncherLog) -> None:
        """Watch a launcher.

        Args:
            launcher: its process number.
            program: its path.
            log: its output.
        """
        self.launcher = launcher
        self.program = os.path.basename(program)
        self.log = log
        self.reported = False
        self.checked_at = 0.0

    def news(self, tracker: RankTracker, now: float) -> str:
        """Return what the start waits for, once, if it takes longer than it should."""
        seconds = tracker.seconds_since_progress(now)
        if self.reported or seconds < REPORT_SECONDS or not tracker.waiting_to_join():
            return ""
        self.reported = True
        missing = (
            f"{len(tracker.started)} of {len(tracker.nodes)} ranks have started, {tracker.describe_missing_ranks()}"
        )
        reason = self.launcher_reason() if len(tracker.started) < len(tracker.nodes) else ""
        return f"no progress for {seconds:.0f} s: {missing}{reason}"

    def problem(self, tracker: RankTracker, now: float) -> str:
        """Return why no rank can start any more, or ''.

        MPICH's hydra waits for ever for a proxy whose srun or ssh has failed.
        """
        if tracker.started or self.program not in PARENTS or tracker.seconds_since_progress(now) < NO_CHILDREN_SECONDS:
            return ""
        if now - self.checked_at < CHECK_SECONDS:
            return ""
        self.checked_at = now
        if has_children(self.launcher):
            return ""
        reason = f"{self.program} has no process left that could start a rank"
        return f"{reason}: none of {len(tracker.nodes)} has started{self.launcher_reason()}"

    def launcher_reason(self) -> str:
        """Return what the launcher says about its trouble, to be added to a message, or ''."""
        reason = self.log.reason()
        return f"; the launcher reports: {reason}" if reason else ""


class MismatchedCollectives:
    """The ranks that wait in a collective for ranks whose script has ended, and since when.

    Such a collective never completes. Some backends report the lost peer; with MPI the rank that has
    ended waits in MPI_Finalize for the others, and nothing would happen until the stall timeout.
    """

    def __init__(self) -> None:
        self.waiting: dict[int, Position] = {}
        self.since = 0.0

    def problem(self, tracker: RankTracker, now: float) -> str:
        """Return why the run cannot continue, once the ranks have waited long enough."""
        waiting = tracker.blocked_on_finished_ranks()
        if waiting != self.waiting:  # a rank that makes progress does not wait
            self.waiting, self.since = waiting, now
        return tracker.describe_mismatched_collectives(waiting) if waiting and now - self.since > GRACE_SECONDS else ""
