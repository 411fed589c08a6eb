"""Keep the local folder of a run up to date with its nodes."""

from __future__ import annotations

from pathlib import Path

from orch_node.protocol.record import RunNode, RunRecord

from orchestrator.runs.follow import LocalRun, Source
from orchestrator.targets.connections.connection import Ssh
from orchestrator.targets.connections.mirror import Mirror, ReconnectingMirror
from orchestrator.targets.interface import Notify
from orchestrator.targets.ssh.nodes import connection_to


def event_source(record: RunRecord, folder: Path, notify: Notify) -> Source:
    """Return the source of a run's events; `notify` is called when its connection is lost or restored."""
    node0 = connection_to(record.node0)
    if not isinstance(node0, Ssh):
        return LocalRun(folder)
    mirror = Mirror(node0, record.run_dir, folder, ranks=len(record.layout))
    return ReconnectingMirror(mirror, record.node0.node, notify)


def copy_state(record: RunRecord, folder: Path) -> None:
    """Copy the events and the state of the run from node0.

    Raises:
        ExecuteError: if the files cannot be read from the node or written to the folder.
    """
    connection = connection_to(record.node0)
    if not isinstance(connection, Ssh):
        return
    mirror = Mirror(connection, record.run_dir, folder, ranks=len(record.layout))
    try:
        mirror.refresh()
        mirror.record_supervisor_end()
    finally:
        connection.close()


def copy_files(record: RunRecord, folder: Path, host: RunNode) -> None:
    """Copy a node's files of the run: the logs of its ranks, and from node0 also the results.

    Raises:
        ExecuteError: if the files cannot be read from the node or written to the folder.
    """
    connection = connection_to(host)
    if not isinstance(connection, Ssh):
        return
    mirror = Mirror(connection, record.run_dir, folder, ranks=len(record.layout))
    try:
        if host == record.node0:
            mirror.finish(record.output_dir)
            mirror.record_supervisor_end()
        mirror.copy_logs()
    finally:
        connection.close()
