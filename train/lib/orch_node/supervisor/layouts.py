"""What follows from a layout: the cores that a run claims, its hostfile and its launcher's command
without some nodes. Pure."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Mapping

from orch_node.protocol.agent import Claim
from orch_node.protocol.layout import RunLayout
from orch_node.protocol.record import number_ranges

# What follows the address in a hostfile: `:2` for hydra, ` slots=2` for Open MPI.
RANKS_OF_HOST = re.compile(r"(:| slots=)\d+\s*$")


def claim_of(run_dir: str, layout: RunLayout, node: str) -> Claim:
    """The cores of one node that the run's ranks, and their oneCCL workers, are given; a spare
    node's are those of the nodes that it may stand in for."""
    like = layout.node_names[0] if node in layout.spare_hosts else node
    cpus = {cpu for placement in layout.on(like) for cpu in (*placement.cpus, *placement.worker_cpus)}
    return Claim(run=os.path.basename(run_dir), run_dir=run_dir, cpus=tuple(sorted(cpus)))


def taken_words(node: str, taken: Iterable[Claim]) -> str:
    parts = [f"run {one.run} has cores {number_ranges(one.cpus)}" for one in taken]
    return f"{node} is taken: {'; '.join(parts)}"


def hosts_replaced(hostfile: str, layout: RunLayout, stand_ins: Mapping[str, str]) -> str:
    """The hostfile with the spare nodes' addresses; the numbers of ranks stay."""
    hosts = layout.spare_hosts
    lines = hostfile.splitlines(keepends=True)
    for index, node in enumerate(layout.node_names):
        if node in stand_ins:
            ranks = RANKS_OF_HOST.search(lines[index])
            assert ranks is not None, "orch has written the line"
            lines[index] = hosts[stand_ins[node]] + ranks.group()
    return "".join(lines)


def hosts_without(hostfile: str, layout: RunLayout, lost: Collection[str]) -> str:
    """The lines of the nodes that are left; the hostfile has one for each, in their order."""
    lines = hostfile.splitlines(keepends=True)
    return "".join(lines[i] for i, node in enumerate(layout.node_names) if node not in lost)


def resized(launcher: list[str], layout: RunLayout, size_at: int | None, nodes_at: int | None) -> list[str]:
    """The launcher's command for another layout: where it names the number of ranks and of nodes.

    A launcher that names neither reads the layout itself.
    """
    numbers = {size_at: str(layout.world_size), nodes_at: str(len(layout.node_names))}
    return [numbers.get(at, word) for at, word in enumerate(launcher)]
