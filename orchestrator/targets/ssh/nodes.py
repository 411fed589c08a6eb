"""Connect to the nodes of an inventory or a run, query them in parallel, and run a user's commands there."""

from __future__ import annotations

import shlex
import sys
import threading
from collections.abc import Callable, Collection, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from orch_node.protocol.node_reports import NodeUsage
from orch_node.protocol.record import RunNode, RunRecord

from orchestrator import load
from orchestrator.errors import ConnectionLost, ExecuteError, RequestError
from orchestrator.files import TRAIN, State, state_home, write_private
from orchestrator.model.cluster import Cluster, Node
from orchestrator.model.hosts import Nodes, expand, fold, split_list
from orchestrator.planning.launchers import choose_mpi
from orchestrator.planning.run_files import claims_folder
from orchestrator.targets.connections.connection import CONNECT_SECONDS, Ssh
from orchestrator.targets.connections.local import Local
from orchestrator.targets.connections.program_output import Value, read_response
from orchestrator.targets.execute import on_each
from orchestrator.targets.interface import LiveNode

USAGE_SECONDS = 10.0  # time limit of a node's response
QUERY_CONNECT_SECONDS = 5


def connection_to(host: RunNode, connect_seconds: int = CONNECT_SECONDS) -> Local | Ssh:
    """Return a connection to a node that is opened when it is first used.

    A record holds the command `ssh -F CONFIG -- NODE`; fabric reads the same CONFIG.
    """
    return Ssh(host.node, host.via[2], connect_seconds) if host.via else Local()


def write_ssh_config(cluster: Cluster) -> None:
    """Write the ssh configuration of an inventory if it is missing."""
    if cluster.ssh_config:
        write_private(State.of(Path(cluster.source)).ssh_config, cluster.ssh_config)


def node_program(record: RunRecord, name: str, *arguments: str) -> tuple[str, ...]:
    """Return the command of one of the node's programs, which are subcommands of train/node.py."""
    return (record.python, f"{record.train}/node.py", name, *arguments)


def query_all(
    commands: Mapping[RunNode, tuple[str, ...]], kind: type[Value], *, seconds: float
) -> dict[str, Value | ExecuteError]:
    """Run a program that prints one JSON object on all nodes in parallel.

    Args:
        commands: the command for each node.
        kind: the class of the object.
        seconds: the time limit of the program on each node.

    Returns:
        The object of each node in their order, or why the program failed or its output cannot be read.
    """

    def query(host: RunNode) -> Value:
        with closing(connection_to(host, QUERY_CONNECT_SECONDS)) as connection:
            return read_response(connection.capture(commands[host], seconds=seconds), kind)

    return on_each(commands, query)


def query_inventory(inventory: str, names: Collection[str] | None) -> list[LiveNode]:
    """Query the nodes of an inventory, or those with these names, and return who uses them, in its order."""
    cluster = load.cluster(inventory)
    write_ssh_config(cluster)
    nodes = {node.name: node for node in cluster.nodes if names is None or node.name in names}
    commands = {node.run_node: usage_command(node) for node in nodes.values()}
    responses = query_all(commands, NodeUsage, seconds=USAGE_SECONDS)
    live = []
    for name in [name for name in cluster.selection.hosts if names is None or name in names]:
        if name not in nodes:
            problem = cluster.damaged.get(name, "not provisioned yet")
            live.append(LiveNode(name=name, cores=0, usage=None, problem=problem, queried=False))
            continue
        response, cores = responses[name], len(nodes[name].facts.cores)
        usage, problem = (None, response.message) if isinstance(response, ExecuteError) else (response, "")
        live.append(LiveNode(name=name, cores=cores, usage=usage, problem=problem))
    return live


def usage_command(node: Node) -> tuple[str, ...]:
    """Return the command that prints the usage of a node."""
    if node.local:
        return (sys.executable, f"{TRAIN}/node.py", "usage", claims_folder(str(state_home() / "store")))
    return (node.python, f"{node.root}/train/node.py", "usage", claims_folder(f"{node.root}/store"))


UNREACHABLE_HINT = "Check that the node is on and reachable from this machine; --nodes selects others."


@dataclass(frozen=True, slots=True)
class SshCommands:
    """The program on each node that runs a user's command in the environment of ranks."""

    programs: Mapping[RunNode, tuple[str, ...]]

    @property
    def nodes(self) -> tuple[str, ...]:
        return tuple(host.node for host in self.programs)

    def run(self, argv: tuple[str, ...], receive: Callable[[str, int, bytes], None]) -> dict[str, int | ExecuteError]:
        stop = threading.Event()

        def run_on(host: RunNode) -> int:
            remote = (*self.programs[host], "--", *argv)
            try:
                with closing(connection_to(host)) as connection:
                    return connection.relay(remote, lambda stream, part: receive(host.node, stream, part), stop)
            except ConnectionLost as error:
                hint = UNREACHABLE_HINT if error.hint == ConnectionLost.default_hint else error.hint
                raise ExecuteError(error.message, hint=hint) from None

        # On all nodes at the same time, because the command may wait for its counterparts there.
        return on_each(self.programs, run_on, threads=len(self.programs), interrupt=stop.set)

    def shell(self) -> tuple[str, ...]:
        host, program = next(iter(self.programs.items()))
        if not host.via:
            return program
        ssh, *options = host.via
        return (ssh, "-tt", *options, shlex.join(program))


def on_cluster(inventory: str, nodes: Nodes | None, stack_name: str) -> SshCommands:
    """Return the commands on the selected nodes of an inventory.

    Raises:
        RequestError: if no node is selected, or one has not been provisioned.
    """
    cluster, stack = load.cluster(inventory, stack_name, nodes=nodes), load.stack(stack_name)
    implementation = choose_mpi(cluster, stack, None).value
    write_ssh_config(cluster)
    programs: dict[RunNode, tuple[str, ...]] = {}
    for node in cluster.selected_nodes():
        train = f"{node.root}/train" if node.root else str(TRAIN)
        launcher, interface = node.facts.mpi.get(implementation), node.facts.route
        path = [f"--path={PurePosixPath(launcher).parent}"] if launcher else []
        route = [f"--interface={interface}"] if interface else []
        programs[node.run_node] = (node.python, f"{train}/node.py", "exec", *path, *route)
    return SshCommands(programs)


def on_run(record: RunRecord, nodes: Nodes | None) -> SshCommands:
    """Return the commands on the nodes of a run, or on those that a pattern names.

    Raises:
        RequestError: if the pattern names no node of the run.
    """
    names = [host.node for host in record.nodes]
    if isinstance(nodes, int):
        names = names[:nodes]
    elif nodes is not None:
        try:
            selected = [name for part in split_list(nodes) for name in expand(part.strip(), lambda group: False)]
        except ValueError as error:
            raise RequestError(f"--nodes {nodes}: {error}.", hint="Write ranges as node[1-3,7].") from None
        if missing := [name for name in selected if name not in names]:
            raise RequestError(f"{record.run_id} has no node {missing[0]!r:.80}.", hint=f"Its nodes: {fold(names)}.")
        names = selected
    command, hosts = node_program(record, "exec", f"--run={record.run_dir}"), record.nodes
    return SshCommands({host: (*command, f"--node={host.node}") for host in hosts if host.node in names})
