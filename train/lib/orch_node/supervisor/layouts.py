"""Derive claims, hostfiles and launcher commands from a layout. Nothing here has side effects."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Mapping

from orch_node.protocol.agent import Claim
from orch_node.protocol.layout import RunLayout

# The number of ranks behind the address in a hostfile: `:2` for hydra, ` slots=2` for Open MPI.
RANKS_OF_HOST = re.compile(r"(:| slots=)\d+\s*$")


def claim_of(run_dir: str, layout: RunLayout, node: str) -> Claim:
    """Return the claim on the cores and GPUs of a node, for its ranks and their oneCCL workers.

    The cores of a spare node are those of the nodes that it may replace.
    """
    model = layout.node_names[0] if node in layout.spare_hosts else node
    ranks = layout.ranks_on(model)
    cpus = {cpu for placement in ranks for cpu in (*placement.cpus, *placement.worker_cpus)}
    gpus = {placement.gpu for placement in ranks if placement.gpu is not None}
    run = os.path.basename(run_dir)
    return Claim(run=run, run_dir=run_dir, cpus=tuple(sorted(cpus)), gpus=tuple(sorted(gpus)))


def describe_conflicts(node: str, conflicts: Iterable[Claim]) -> str:
    """Return which runs have the cores or GPUs of a node."""
    parts = [f"run {claim.run} has {claim.describe()}" for claim in conflicts]
    return f"{node} is taken: {'; '.join(parts)}"


def replace_hosts(hostfile: str, layout: RunLayout, stand_ins: Mapping[str, str]) -> str:
    """Return the hostfile with the addresses of spare nodes in place of lost ones."""
    hosts = layout.spare_hosts
    lines = hostfile.splitlines(keepends=True)
    for index, node in enumerate(layout.node_names):
        if node in stand_ins:
            ranks = RANKS_OF_HOST.search(lines[index])
            assert ranks is not None, "orch has written the line"
            lines[index] = hosts[stand_ins[node]] + ranks.group()
    return "".join(lines)


def remove_hosts(hostfile: str, layout: RunLayout, lost: Collection[str]) -> str:
    """Return the hostfile without the lines of lost nodes; it has one line per node, in order."""
    lines = hostfile.splitlines(keepends=True)
    return "".join(lines[i] for i, node in enumerate(layout.node_names) if node not in lost)


def resize_command(launcher: list[str], layout: RunLayout, size_at: int | None, nodes_at: int | None) -> list[str]:
    """Return the launcher's command with the numbers of a new layout.

    Args:
        launcher: the command.
        layout: the new layout.
        size_at: the index of the number of ranks; None if the launcher reads the layout itself.
        nodes_at: the index of the number of nodes, or None.
    """
    numbers = {size_at: str(layout.world_size), nodes_at: str(len(layout.node_names))}
    return [numbers.get(index, word) for index, word in enumerate(launcher)]
