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


class LauncherProcesses:
    """The processes above the wrappers of a node, as they were when they were first seen."""

    def __init__(self) -> None:
        self.wrappers: dict[tuple[int, int], ProcessRecord] = {}
        self.ranks: dict[tuple[int, int], int] = {}  # of wrappers whose training process has been seen
        # The parent of each wrapper and of each process above one, by the process.
        self.parents: dict[tuple[int, int], ProcessRecord] = {}
        self.checked_at = 0.0
        # The process that has ended above each wrapper, and since when there is one.
        self.lost: dict[tuple[int, int], ProcessRecord] = {}
        self.lost_since: float | None = None

    def add(self, run_processes: list[ProcessRecord]) -> None:
        """Record the processes above new wrappers.

        Args:
            run_processes: the processes of the run on this node and the daemons above them.
        """
        by_pid = {process.pid: process for process in run_processes}
        for process in run_processes:
            parent = by_pid.get(process.parent)
            if process.role == "rank" and process.rank is not None and parent and parent.role == "wrapper":
                self.ranks[parent.key] = process.rank
            elif process.role == "wrapper" and process.key not in self.wrappers:
                self.wrappers[process.key] = process
                while parent:
                    self.parents.setdefault(process.key, parent)
                    process, parent = parent, by_pid.get(parent.parent)

    def describe_lost(self, now: float) -> str:
        """Return which process has ended for some time although its ranks continue, or ''."""
        if now - self.checked_at >= CHECK_SECONDS:
            self.checked_at = now
            self.wrappers = {key: wrapper for key, wrapper in self.wrappers.items() if machine.is_alive(*key)}
            ended = {key: self.first_lost(wrapper) for key, wrapper in self.wrappers.items()}
            self.lost = {key: process for key, process in ended.items() if process}
            self.lost_since = (self.lost_since or now) if self.lost else None
        if self.lost_since is None or now - self.lost_since < CONFIRM_SECONDS:
            return ""
        ranks = {self.ranks[key] for key in self.lost if key in self.ranks}
        names = ", ".join(dict.fromkeys(f"{process.name} (process {process.pid})" for process in self.lost.values()))
        affected = f"rank{'s' * (len(ranks) > 1)} {number_ranges(ranks)}" if ranks else "its ranks"
        return f"the launcher's {names} was killed or has crashed, so nothing receives the reports of {affected}"

    def first_lost(self, wrapper: ProcessRecord) -> ProcessRecord | None:
        """Return the process nearest to a wrapper, among those above it, that has ended."""
        process: ProcessRecord | None = self.parents.get(wrapper.key)
        while process is not None and machine.is_alive(*process.key):
            process = self.parents.get(process.key)
        return process
