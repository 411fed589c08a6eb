"""The ssh configuration that plans, fabric and people use to reach an inventory's nodes."""

from __future__ import annotations

from pathlib import Path

from orchestrator.model.cluster import Cluster
from orchestrator.planning.plan import PutLocalFile
from orchestrator.state import State, write_private


def ssh_config(cluster: Cluster) -> PutLocalFile | None:
    """What the `ssh -F` of a plan, and fabric, read: for all nodes, also of other runs. None where
    it is there already, or where no node is another machine."""
    if cluster.ssh_config is None:
        return None
    path = State.of(Path(cluster.source)).ssh_config
    return PutLocalFile(path=str(path), content=cluster.ssh_config)


def write_ssh_config(cluster: Cluster) -> None:
    step = ssh_config(cluster)
    if step is not None:
        write_private(Path(step.path), step.content)
