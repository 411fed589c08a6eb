"""A start of which nothing is heard: what is waited for is told, and where it cannot come."""

from __future__ import annotations

import os
from pathlib import Path

from orch_node.agent.processes import has_children
from orch_node.supervisor.rank_tracker import RankTracker
from orch_node.tail import last_text

TELL_SECONDS = 20.0
BARREN_SECONDS = 10.0
LOOK_SECONDS = 1.0
LAST_WORDS = 300  # characters
LAST_CHARACTERS = 20_000  # of the log, in which the last line is searched
# They start each rank by a process of their own: ssh, srun or a proxy.
PARENTS = ("mpiexec", "mpiexec.hydra", "mpirun")


class StartupMonitor:
    """Of one attempt. `launcher`: its pid, `program`: its first word, `log`: what it says."""

    def __init__(self, launcher: int, program: str, log: Path) -> None:
        self.launcher = launcher
        self.program = os.path.basename(program)
        self.log = log
        self.told = False
        self.looked = 0.0

    def news(self, tracker: RankTracker, now: float) -> str:
        """What is waited for, once, where that takes longer than it should."""
        quiet = tracker.quiet(now)
        if self.told or quiet < TELL_SECONDS or not tracker.waiting_to_join():
            return ""
        self.told = True
        begun = len(tracker.started)
        missing = f"{begun} of {len(tracker.nodes)} ranks have started, {tracker.absent()}"
        return f"nothing heard for {quiet:.0f} s: {missing}{self.last_words()}"

    def problem(self, tracker: RankTracker, now: float) -> str:
        """Why no rank can come any more. MPICH's hydra waits for ever for a proxy whose srun or ssh
        has failed."""
        if tracker.started or self.program not in PARENTS or tracker.quiet(now) < BARREN_SECONDS:
            return ""
        if now - self.looked < LOOK_SECONDS:
            return ""
        self.looked = now
        if has_children(self.launcher):
            return ""
        why = f"{self.program} has no process left that could start a rank"
        return f"{why}: none of {len(tracker.nodes)} has started{self.last_words()}"

    def last_words(self) -> str:
        try:
            lines = last_text(self.log, LAST_CHARACTERS).strip().splitlines()
        except OSError:
            return ""
        return f"; the launcher's last words: {lines[-1][:LAST_WORDS]}" if lines else ""
