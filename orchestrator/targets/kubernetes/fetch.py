"""What a run has written on its volume, brought to this machine."""

from __future__ import annotations

from pathlib import Path

from orch_node.protocol.record import RunRecord

from orchestrator.errors import RequestError
from orchestrator.runs.fetch import Collected, FetchListener, collect
from orchestrator.targets.interface import Wanted
from orchestrator.targets.kubernetes.api.client import Kube
from orchestrator.targets.kubernetes.volume import reader


def fetch(cluster: Kube, record: RunRecord, folder: Path, wanted: Wanted, listener: FetchListener) -> Collected:
    """Raises RequestError for another node than there is, ExecuteError for what fails."""
    if wanted.node:
        raise RequestError("--node is for nodes behind SSH: all pods share one volume.", hint="Leave --node out.")
    target = wanted.to or folder.absolute() / "output"
    with reader(cluster, record) as pod:
        return collect(pod, wanted.source, target, only=wanted.only, listener=listener)
