"""The ssh configuration that plans, fabric and people use to reach an inventory's nodes."""

from __future__ import annotations

from pathlib import Path

from orchestrator import load, ssh_config
from orchestrator.cluster import Cluster
from orchestrator.state import State, write_private


def write_ssh_config(cluster: Cluster) -> None:
    """What the `ssh -F` of a plan, and fabric, read."""
    source = Path(cluster.source)
    if found := load.connections(source, cluster.nodes):
        write_private(State.of(source).ssh_config, ssh_config.render(found))
