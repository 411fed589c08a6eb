"""Keep the local folder of a run up to date with its nodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from orch_node.protocol import files
from orch_node.protocol.record import RunNode, RunRecord

from orchestrator.errors import ConnectionLost, ExecuteError
from orchestrator.runs.follow import LocalRun, Source
from orchestrator.runs.state_files import outcome_in
from orchestrator.targets.connections.connection import CONNECT_SECONDS, Ssh
from orchestrator.targets.connections.local import Local
from orchestrator.targets.connections.mirror import Mirror, ReconnectingMirror
from orchestrator.targets.interface import Notify
from orchestrator.targets.ssh.nodes import connection_to, on_each

BUSY_CONNECT_SECONDS = 60


def event_source(record: RunRecord, folder: Path, notify: Notify) -> Source:
    """Return the source of a run's events; `notify` is called when its connection is lost or restored."""
    node0 = connection_to(record.node0)
    if not isinstance(node0, Ssh):
        return LocalRun(folder)
    mirror = Mirror(node0, record.run_dir, folder, ranks=len(record.layout))
    return ReconnectingMirror(mirror, record.node0.node, notify)


def copy_state(connection: Local | Ssh, record: RunRecord, folder: Path) -> None:
    """Copy the events and the state of the run from node0.

    Raises:
        ExecuteError: if the files cannot be read from the node or written to the folder.
    """
    if isinstance(connection, Ssh):
        mirror = Mirror(connection, record.run_dir, folder, ranks=len(record.layout))
        mirror.refresh()
        mirror.record_supervisor_end()


def copy_all_files(record: RunRecord, folder: Path) -> dict[str, str]:
    """Copy the files of the run from all its nodes in parallel, and once more from nodes that do not answer.

    A node may be too busy to answer while the ranks of a large run end.

    Returns:
        The messages of the nodes whose files are incomplete.
    """
    errors = copy_from(record.nodes, record, folder, CONNECT_SECONDS)
    ended = outcome_in(folder)
    lost = {node for node, end in ended.nodes.items() if end.lost} if ended else set()
    busy = [
        host for host in record.nodes if host.node not in lost and isinstance(errors.get(host.node), ConnectionLost)
    ]
    for host in busy:
        del errors[host.node]
    errors |= copy_from(busy, record, folder, BUSY_CONNECT_SECONDS)
    return {node: error.message for node, error in errors.items()}


def copy_from(
    hosts: Sequence[RunNode], record: RunRecord, folder: Path, connect_seconds: int
) -> dict[str, ExecuteError]:
    """Copy the logs of ranks from some nodes in parallel, and from node0 the results; return the errors by node."""

    def copy(host: RunNode, mirror: Mirror) -> None:
        if host == record.node0:
            mirror.finish(record.output_dir)
            mirror.record_supervisor_end()
        mirror.copy_logs(moved=moved_ranks(record, host))

    return on_mirrors(hosts, record, folder, copy, connect_seconds)


def copy_logs(record: RunRecord, folder: Path, rank: int | None) -> dict[str, ExecuteError]:
    """Copy the logs of one rank or of all ranks from all nodes; return the errors by node."""

    def copy(host: RunNode, mirror: Mirror) -> None:
        if not mirror.remote.list(record.run_dir):
            raise ExecuteError(f"{record.run_dir} does not exist.", hint="The run's folder on the node was deleted.")
        mirror.copy_logs(rank, moved_ranks(record, host))

    return on_mirrors(record.nodes, record, folder, copy)


def moved_ranks(record: RunRecord, host: RunNode) -> dict[int, str]:
    """Return the local folder for the logs of ranks that have run on a node, although the record has them on others."""
    folder = files.moved_logs(host.node)
    return {placement.rank: folder for placement in record.layout if placement.node != host.node}


def on_mirrors(
    hosts: Sequence[RunNode],
    record: RunRecord,
    folder: Path,
    copy: Callable[[RunNode, Mirror], None],
    connect_seconds: int = CONNECT_SECONDS,
) -> dict[str, ExecuteError]:
    """Call a function with the mirror of the run on each of some nodes in parallel; return the errors by node."""

    def call(host: RunNode) -> ExecuteError | None:
        connection = connection_to(host, connect_seconds)
        if not isinstance(connection, Ssh):
            return None
        try:
            copy(host, Mirror(connection, record.run_dir, folder, ranks=len(record.layout)))
        except ExecuteError as error:
            return error
        finally:
            connection.close()
        return None

    errors = dict(zip(hosts, on_each(hosts, call), strict=True))
    return {host.node: error for host, error in errors.items() if error is not None}
