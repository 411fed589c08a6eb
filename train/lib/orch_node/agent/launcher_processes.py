"""Notice that a launcher's process above the ranks of a node has ended.

The ranks of a killed `hydra_pmi_proxy` or `prted` continue, but nobody receives their reports.
"""

from __future__ import annotations

from orch_node import machine
from orch_node.protocol.outcome import ProcessRecord
from orch_node.protocol.record import number_ranges

CHECK_SECONDS = 1.0
# While a launcher ends its ranks, some of its processes may end before them.
CONFIRM_SECONDS = 2.0
Key = tuple[int, int]  # the pid and the start of a process


class LauncherProcesses:
    """The process above each wrapper of a node, as it was when it was first seen."""

    def __init__(self) -> None:
        self.above: dict[Key, ProcessRecord] = {}  # by wrapper
        self.ranks: dict[Key, int] = {}  # of wrappers whose training process has been seen
        self.lost: dict[Key, ProcessRecord] = {}  # those above living wrappers that have ended
        self.lost_since: float | None = None
        self.checked_at = 0.0

    def add(self, run_processes: list[ProcessRecord]) -> None:
        """Record the processes above new wrappers.

        Args:
            run_processes: the processes of the run on this node and the daemons above them.
        """
        by_pid = {process.pid: process for process in run_processes}
        for process in run_processes:
            parent = by_pid.get(process.parent)
            if parent and process.role == "wrapper":
                self.above.setdefault(process.key, parent)
            elif parent and parent.role == "wrapper" and process.role == "rank" and process.rank is not None:
                self.ranks[parent.key] = process.rank

    def describe_lost(self, now: float) -> str:
        """Return which process has ended for some time although its ranks continue, or ''."""
        if now - self.checked_at >= CHECK_SECONDS:
            self.checked_at = now
            self.above = {key: parent for key, parent in self.above.items() if machine.is_alive(*key)}
            self.lost = {key: parent for key, parent in self.above.items() if not machine.is_alive(*parent.key)}
            self.lost_since = (self.lost_since or now) if self.lost else None
        if self.lost_since is None or now - self.lost_since < CONFIRM_SECONDS:
            return ""
        ranks = {self.ranks[key] for key in self.lost if key in self.ranks}
        names = ", ".join(dict.fromkeys(f"{process.name} (process {process.pid})" for process in self.lost.values()))
        affected = f"rank{'s' * (len(ranks) > 1)} {number_ranges(ranks)}" if ranks else "its ranks"
        return f"the launcher's {names} was killed or has crashed, so nothing receives the reports of {affected}"
