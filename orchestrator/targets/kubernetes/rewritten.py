"""Lines that an earlier command has written into a run's folder, and that the API sends again.

A command appends a pod's lines as they come, and saves afterwards how far it has read. If it is
killed in between, the next command asks for these lines again.
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass, field

from orch_node.protocol import files

from orchestrator.files import ConfinedFolder
from orchestrator.targets.kubernetes.log_lines import Position


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyState:
    """The positions up to which a run is copied, as saved in its folder."""

    pods: dict[str, Position] = field(default_factory=dict)  # by uid
    sizes: dict[str, int] = field(default_factory=dict)  # bytes of each file, up to these positions


class RewrittenLines:
    """The lines of each file behind the saved size, each of which is expected once more."""

    def __init__(self, folder: ConfinedFolder, sizes: dict[str, int]) -> None:
        self.folder = folder
        self.sizes = sizes
        self.expected: dict[str, Counter[bytes]] = {}

    def take(self, name: str, line: bytes) -> bool:
        """Return whether the file has this line already, and expect it no longer."""
        expected = self.expected.get(name)
        if expected is None:
            expected = self.expected[name] = self.read(name)
        if expected[line] > 0:
            expected[line] -= 1
            return True
        if files.rank_of(name.rpartition("/")[2]) is not None:
            expected.clear()  # a rank's lines come in their order: this one is new
        return False

    def read(self, name: str) -> Counter[bytes]:
        """Return the lines behind the saved size; a line that was not written whole is removed."""
        try:
            with self.folder.open(name, os.O_RDWR) as file:
                start = self.sizes.get(name, 0)
                file.seek(start)
                whole, newline, torn = file.read().rpartition(b"\n")
                if torn:
                    file.truncate(start + len(whole) + len(newline))
        except FileNotFoundError:
            return Counter()
        return Counter(whole.split(b"\n")) if newline else Counter()

    def saved_sizes(self) -> dict[str, int]:
        """Return the sizes to save: a file of which lines are still expected keeps its size."""
        settled = [name for name, lines in self.expected.items() if not lines.total()]
        return self.sizes | {name: self.folder.size(name) for name in settled}
