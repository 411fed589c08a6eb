"""How a run's folder here is kept up to date, wherever its nodes are."""

from __future__ import annotations

from pathlib import Path

from orch_node.protocol.record import RunNode, RunRecord

from orchestrator.runs.follow import LocalRun, Source
from orchestrator.targets.connections.connection import Ssh
from orchestrator.targets.connections.mirror import Mirror, ReconnectingMirror
from orchestrator.targets.interface import Tell
from orchestrator.targets.ssh.nodes import connection_to


def source_of(record: RunRecord, folder: Path, tell: Tell) -> Source:
    """Where the run's events come from; `tell` gets what happens to the connection."""
    node0 = connection_to(record.node0)
    if not isinstance(node0, Ssh):
        return LocalRun(folder)
    mirror = Mirror(node0, record.run_dir, folder, ranks=len(record.layout))
    return ReconnectingMirror(mirror, record.node0.node, tell)


def take(record: RunRecord, folder: Path, host: RunNode) -> None:
    """What a node has of the run: node0 the results, every node the logs of its ranks.

    Raises ExecuteError.
    """
    connection = connection_to(host)
    if not isinstance(connection, Ssh):
        return
    mirror = Mirror(connection, record.run_dir, folder, ranks=len(record.layout))
    try:
        if host == record.node0:
            mirror.finish(record.output_dir)
            mirror.look_for_supervisor()
        mirror.take_logs()
    finally:
        connection.close()
