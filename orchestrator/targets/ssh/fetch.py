"""What a run has written on one of its nodes, brought to this machine."""

from __future__ import annotations

from pathlib import Path

from orch_node.protocol.record import RunNode, RunRecord

from orchestrator.errors import RequestError
from orchestrator.runs.fetch import Collected, FetchListener, collect, default_target
from orchestrator.targets.connections.local import Local
from orchestrator.targets.interface import Wanted
from orchestrator.targets.ssh.nodes import connection_to


def fetch(record: RunRecord, folder: Path, wanted: Wanted, listener: FetchListener) -> Collected:
    """Raises RequestError for a node that the run does not have, ExecuteError for what fails."""
    connection = connection_to(run_node_of(record, wanted.node))
    local = isinstance(connection, Local)
    target = wanted.to or (Path(wanted.source) if local else default_target(folder, wanted.node))
    try:
        return collect(connection, wanted.source, target, only=wanted.only, listener=listener)
    finally:
        connection.close()


def run_node_of(record: RunRecord, node: str | None) -> RunNode:
    """node0, or another node of the run. Raises RequestError."""
    hosts = {host.node: host for host in record.nodes}
    if node is None:
        return record.nodes[0]
    if node not in hosts:
        raise RequestError(f"Run {record.run_id} has no node '{node}'.", hint=f"It has {', '.join(hosts)}.")
    return hosts[node]
