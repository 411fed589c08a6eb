"""The output of one command on several nodes, each line with the name of its node."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence

from orchestrator.model.hostlist import ranges
from orchestrator.screen import print_text

MAX_LINE_BYTES = 1 << 20
STDERR = 2


class NodeOutput:
    """A display of whole lines, which several threads may fill."""

    def __init__(self, nodes: Sequence[str], *, gather: bool) -> None:
        """Create the display.

        Args:
            nodes: the names of the nodes.
            gather: print the output at the end, and that of nodes with identical output once.
        """
        self.nodes = nodes
        self.gather = gather
        self.lock = threading.Lock()
        self.unfinished: dict[tuple[str, int], bytes] = {}
        self.gathered: dict[str, list[tuple[int, str]]] = {node: [] for node in nodes}

    def receive(self, node: str, stream: int, part: bytes) -> None:
        """Add a part of a node's output; print or store the lines that it completes."""
        with self.lock:
            *lines, remainder = (self.unfinished.get((node, stream), b"") + part).split(b"\n")
            if len(remainder) > MAX_LINE_BYTES:
                lines, remainder = [*lines, remainder], b""
            self.unfinished[node, stream] = remainder
            for line in lines:
                self.add_line(node, stream, line)

    def add_line(self, node: str, stream: int, line: bytes) -> None:
        text = line.decode(errors="replace").removesuffix("\r")
        if self.gather:
            self.gathered[node].append((stream, text))
        else:
            print_text(f"{node}: {text}", err=stream == STDERR)

    def end(self) -> None:
        """Print the lines without a newline at their end, and the gathered output."""
        for (node, stream), line in self.unfinished.items():
            if line:
                self.add_line(node, stream, line)
        for nodes, lines in group_nodes(self.gathered).items():
            for stream, text in lines:
                print_text(f"{','.join(ranges(nodes))}: {text}", err=stream == STDERR)


def group_nodes(outputs: Mapping[str, list[tuple[int, str]]]) -> dict[tuple[str, ...], tuple[tuple[int, str], ...]]:
    """Return each different output by the names of the nodes that have it."""
    nodes_by_output: dict[tuple[tuple[int, str], ...], list[str]] = {}
    for node, lines in outputs.items():
        nodes_by_output.setdefault(tuple(sorted(lines, key=lambda line: line[0])), []).append(node)
    return {tuple(nodes): output for output, nodes in nodes_by_output.items()}
