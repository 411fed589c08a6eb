"""Copy files that a run has written on one of its nodes to this machine."""

from __future__ import annotations

from pathlib import Path

from orch_node.protocol.record import RunNode, RunRecord

from orchestrator.errors import RequestError
from orchestrator.runs.fetch import Collected, FetchListener, collect, default_target
from orchestrator.targets.connections.local import Local
from orchestrator.targets.interface import FetchRequest
from orchestrator.targets.ssh.nodes import connection_to


def fetch(record: RunRecord, folder: Path, request: FetchRequest, listener: FetchListener) -> Collected:
    """Copy the requested files of a run's node to this machine.

    Raises:
        RequestError: If the run does not have the requested node.
        ExecuteError: If the files cannot be read or written.
    """
    connection = connection_to(run_node_of(record, request.node))
    is_local = isinstance(connection, Local)
    target = request.destination or (Path(request.source) if is_local else default_target(folder, request.node))
    try:
        return collect(connection, request.source, target, patterns=request.patterns, listener=listener)
    finally:
        connection.close()


def run_node_of(record: RunRecord, node: str | None) -> RunNode:
    """Return the named node of a run, or node0; raise RequestError if the run does not have it."""
    hosts = {host.node: host for host in record.nodes}
    if node is None:
        return record.nodes[0]
    if node not in hosts:
        raise RequestError(f"Run {record.run_id} has no node '{node}'.", hint=f"It has {', '.join(hosts)}.")
    return hosts[node]
