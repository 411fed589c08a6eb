"""Copy files of a run to this machine, from its folder on one of its nodes."""

from __future__ import annotations

from pathlib import Path

from orch_node.protocol.record import RunNode, RunRecord

from orchestrator.errors import RequestError
from orchestrator.runs.fetch import Collected, FetchListener, collect, default_target
from orchestrator.targets.connections.connection import Ssh
from orchestrator.targets.connections.local import Local
from orchestrator.targets.interface import FetchRequest


def requested_node(record: RunRecord, name: str | None) -> RunNode:
    """Return the named node of a run, or node0; raise RequestError if the run does not have it."""
    if name is None:
        return record.nodes[0]
    nodes = {node.node: node for node in record.nodes}
    if name not in nodes:
        raise RequestError(f"Run {record.run_id} has no node '{name}'.", hint=f"It has {', '.join(nodes)}.")
    return nodes[name]


def fetch_files(host: Local | Ssh, folder: Path, request: FetchRequest, listener: FetchListener) -> Collected:
    """Copy the requested files of a host to this machine.

    Args:
        host: the host that has the files.
        folder: the run's folder on this machine.
        request: the files. The default destination of local files is the folder that they are in.
        listener: receives the progress.

    Raises:
        ExecuteError: if the files cannot be read or written.
    """
    default = Path(request.source) if isinstance(host, Local) else default_target(folder, request.node)
    target = request.destination or default
    return collect(
        host, request.source, target, patterns=request.patterns, listener=listener, unchanged=request.unchanged
    )
