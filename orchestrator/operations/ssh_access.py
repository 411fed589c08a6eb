"""The ssh configuration that plans, fabric and people use to reach an inventory's nodes."""

from __future__ import annotations

from pathlib import Path

from orchestrator import load, ssh_config
from orchestrator.cluster import Cluster
from orchestrator.state import State, write_private


def write_ssh_config(cluster: Cluster) -> None:
    """What the `ssh -F` of a plan, and fabric, read: for all nodes, also of other runs."""
    source = Path(cluster.source)
    state = State.of(source)
    if all(node.local for node in cluster.nodes) or state.ssh_config_holds():
        return
    write_private(state.ssh_config, ssh_config.render(load.connections(source)))
