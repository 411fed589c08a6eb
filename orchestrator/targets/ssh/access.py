"""Write the ssh configuration that plans, fabric and users reach an inventory's nodes with."""

from __future__ import annotations

from pathlib import Path

from orchestrator.model.cluster import Cluster
from orchestrator.planning.plan import PutLocalFile
from orchestrator.state import State, write_private


def ssh_config(cluster: Cluster) -> PutLocalFile | None:
    """Return the step that writes the ssh configuration of all nodes of an inventory.

    The result is None if the file exists already or if no node is another machine.
    """
    if cluster.ssh_config is None:
        return None
    path = State.of(Path(cluster.source)).ssh_config
    return PutLocalFile(path=str(path), content=cluster.ssh_config)


def write_ssh_config(cluster: Cluster) -> None:
    """Write the ssh configuration of an inventory if it is missing."""
    step = ssh_config(cluster)
    if step is not None:
        write_private(Path(step.path), step.content)
