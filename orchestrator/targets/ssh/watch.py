"""Keep the local folder of a run up to date with its nodes."""

from __future__ import annotations

from collections.abc import Sequence
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


def event_source(record: RunRecord, folder: Path, node0: Local | Ssh, notify: Notify) -> Source:
    """Return the source of a run's events; `notify` is called when its connection is lost or restored."""
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


def copy_all_files(record: RunRecord, folder: Path, node0: Local | Ssh) -> dict[str, str]:
    """Copy the results of a run from node0, and the logs of all ranks; return the messages of incomplete nodes.

    A node may be too busy to answer while the ranks of a large run end, so nodes that do not answer are asked again.
    """
    errors = copy_logs(record, folder, None, node0=node0, with_results=True)
    ended = outcome_in(folder)
    lost = {node for node, end in ended.nodes.items() if end.lost} if ended else set()
    busy = [
        host for host in record.nodes if host.node not in lost and isinstance(errors.get(host.node), ConnectionLost)
    ]
    for host in busy:
        del errors[host.node]
    errors |= copy_logs(record, folder, None, hosts=busy, with_results=True, connect_seconds=BUSY_CONNECT_SECONDS)
    return {node: error.message for node, error in errors.items()}


def copy_logs(
    record: RunRecord,
    folder: Path,
    rank: int | None,
    *,
    hosts: Sequence[RunNode] | None = None,
    node0: Local | Ssh | None = None,
    with_results: bool = False,
    connect_seconds: int = CONNECT_SECONDS,
) -> dict[str, ExecuteError]:
    """Copy the logs of ranks from node0, and in parallel from the nodes that have not handed theirs to node0.

    Args:
        record: the run.
        folder: its local folder.
        rank: the rank; None for all ranks.
        hosts: the nodes; by default all of the run.
        node0: a connection to node0, which stays open; by default a new one is used.
        with_results: whether to copy the results, too. A node may lack the folder then; otherwise this is an error.
        connect_seconds: the time limit of each new connection.

    Returns:
        The errors by node.
    """
    recorded = {placement.rank: placement.node for placement in record.layout}
    nodes, handed = {host.node for host in record.nodes}, set[str]()

    def folder_of(number: int, node: str) -> str:
        return files.RANKS if recorded.get(number) == node else files.moved_logs(node) if node in nodes else ""

    def copy(host: RunNode) -> ExecuteError | None:
        connection = node0 if node0 and host == record.node0 else connection_to(host, connect_seconds)
        if not isinstance(connection, Ssh):
            return None
        mirror = Mirror(connection, record.run_dir, folder, ranks=len(record.layout))
        try:
            if not with_results and not connection.list(record.run_dir):
                raise ExecuteError(
                    f"{record.run_dir} does not exist.", hint="The run's folder on the node was deleted."
                )
            if host == record.node0:
                if with_results:
                    mirror.finish(record.output_dir)
                    mirror.record_supervisor_end()
                handed.update(mirror.copy_handed_logs(folder_of))
            mirror.copy_logs(rank, lambda number: folder_of(number, host.node))
        except ExecuteError as error:
            return error
        finally:
            if connection is not node0:
                connection.close()
        return None

    errors: dict[str, ExecuteError] = {}
    hosts = record.nodes if hosts is None else hosts
    first = [host for host in hosts if host == record.node0]
    for group in (first, [host for host in hosts if host not in first]):
        remaining = [host for host in group if host.node not in handed]
        errors |= {host.node: error for host, error in zip(remaining, on_each(remaining, copy), strict=True) if error}
    return errors
