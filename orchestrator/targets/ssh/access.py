"""The ssh configuration that plans, fabric and people use to reach an inventory's nodes."""

from __future__ import annotations

from pathlib import Path

from orchestrator import load
from orchestrator.model import ssh_options
from orchestrator.model.cluster import Cluster
from orchestrator.planning.plan import PutHere
from orchestrator.state import State, write_private


def ssh_config(cluster: Cluster) -> PutHere | None:
    """What the `ssh -F` of a plan, and fabric, read: for all nodes, also of other runs. None where
    it is there already, or where no node is another machine."""
    source = Path(cluster.source)
    state = State.of(source)
    if all(node.local for node in cluster.nodes) or state.ssh_config_holds():
        return None
    content = ssh_options.render(load.connections(source))
    return PutHere(path=str(state.ssh_config), content=content)


def write_ssh_config(cluster: Cluster) -> None:
    step = ssh_config(cluster)
    if step is not None:
        write_private(Path(step.path), step.content)
