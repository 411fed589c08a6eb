"""Connect to the nodes of an inventory or a run, and query them in parallel."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from orch_node.protocol import values
from orch_node.protocol.node_reports import NodeUsage
from orch_node.protocol.record import RunNode, RunRecord
from orch_node.protocol.values import ProtocolError

from orchestrator import load
from orchestrator.errors import ExecuteError
from orchestrator.files import TRAIN, state_home, write_private
from orchestrator.load.records import state_of
from orchestrator.model.cluster import Cluster, Node
from orchestrator.planning.plan import PutFile
from orchestrator.planning.run_files import claims_folder
from orchestrator.targets.connections.connection import CONNECT_SECONDS, Ssh
from orchestrator.targets.connections.local import Local
from orchestrator.targets.connections.program_output import last_line
from orchestrator.targets.interface import LiveNode

MAX_PARALLEL_QUERIES = 64  # nodes that are queried in parallel
Result = TypeVar("Result")
Value = TypeVar("Value")
USAGE_SECONDS = 10.0  # time limit of a node's response
USAGE_CONNECT_SECONDS = 5


def connection_to(host: RunNode, connect_seconds: int = CONNECT_SECONDS) -> Local | Ssh:
    """Return a connection to a node that is opened when it is first used.

    A record holds the command `ssh -F CONFIG -- NODE`; fabric reads the same CONFIG.
    """
    return Ssh(host.node, host.via[2], connect_seconds) if host.via else Local()


def ssh_config(cluster: Cluster) -> PutFile:
    """Return the step that writes the ssh configuration of all nodes of an inventory, which is not current."""
    return PutFile(path=str(state_of(Path(cluster.source)).ssh_config), content=cluster.ssh_config or "")


def write_ssh_config(cluster: Cluster) -> None:
    """Write the ssh configuration of an inventory if it is missing."""
    if cluster.ssh_config:
        write_private(state_of(Path(cluster.source)).ssh_config, cluster.ssh_config)


def node_program(record: RunRecord, name: str, *arguments: str) -> tuple[str, ...]:
    """Return the command of one of the node's programs, which are subcommands of train/node.py."""
    return (record.python, f"{record.train}/node.py", name, *arguments)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeResponse(Generic[Value]):
    """The response of a node's program.

    Attributes:
        value: what the program printed, or None if it failed.
        problem: why it failed, or why its output cannot be read.
    """

    node: str
    value: Value | None
    problem: str = ""


def query_all(
    commands: Mapping[RunNode, tuple[str, ...]],
    kind: type[Value],
    *,
    seconds: float,
    connect_seconds: int = CONNECT_SECONDS,
) -> list[NodeResponse[Value]]:
    """Run a program that prints one JSON object on all nodes in parallel.

    Args:
        commands: the command for each node.
        kind: the class of the object.
        seconds: the time limit of the program on each node.
        connect_seconds: the time limit of each connection attempt.

    Returns:
        One response for each node, in their order.
    """

    def query(host: RunNode) -> NodeResponse[Value]:
        try:
            with closing(connection_to(host, connect_seconds)) as connection:
                result = connection.capture(commands[host], seconds=seconds)
            if result.code != 0:
                problem = last_line(result.err) or "it failed without an error message"
                return NodeResponse(node=host.node, value=None, problem=problem)
            content = values.check_object(values.loads(result.out, "its response"), "its response")
            values.check_schema(content, "its response")
            return NodeResponse(node=host.node, value=values.read_known(kind, content, "its response"))
        except ExecuteError as error:
            return NodeResponse(node=host.node, value=None, problem=error.message)
        except ProtocolError as error:
            return NodeResponse(node=host.node, value=None, problem=str(error))

    return on_each(commands, query)


def on_each(hosts: Iterable[RunNode], action: Callable[[RunNode], Result]) -> list[Result]:
    """Call an action for all nodes in parallel; return its results in the order of `hosts`."""
    with ThreadPoolExecutor(max_workers=MAX_PARALLEL_QUERIES) as pool:
        return list(pool.map(action, hosts))


def query_inventory(inventory: str, names: Collection[str] | None) -> list[LiveNode]:
    """Query the nodes of an inventory, or those with these names, and return who uses them, in its order."""
    cluster = load.cluster(inventory)
    write_ssh_config(cluster)
    selected = [name for name in cluster.selection.hosts if names is None or name in names]
    responses = {node.name: node for node in query_usage([node for node in cluster.nodes if node.name in selected])}
    problems = {name: cluster.damaged.get(name, "not provisioned yet") for name in selected}
    return [
        responses.get(name) or LiveNode(name=name, cores=0, usage=None, problem=problems[name], queried=False)
        for name in selected
    ]


def query_usage(nodes: Sequence[Node]) -> list[LiveNode]:
    """Query nodes in parallel, and return who uses them, in their order."""
    commands = {node.run_node: usage_command(node) for node in nodes}
    responses = query_all(commands, NodeUsage, seconds=USAGE_SECONDS, connect_seconds=USAGE_CONNECT_SECONDS)
    return [
        LiveNode(name=node.name, cores=len(node.facts.cores), usage=response.value, problem=response.problem)
        for node, response in zip(nodes, responses, strict=True)
    ]


def usage_command(node: Node) -> tuple[str, ...]:
    """Return the command that prints the usage of a node."""
    if node.local:
        return (sys.executable, f"{TRAIN}/node.py", "usage", claims_folder(str(state_home() / "store")))
    return (node.python, f"{node.root}/train/node.py", "usage", claims_folder(f"{node.root}/store"))
