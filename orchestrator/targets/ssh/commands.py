"""Run a user's commands on nodes in the environment of ranks, or open a shell there."""

from __future__ import annotations

import shlex
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import PurePosixPath

from orch_node.protocol.record import RunNode, RunRecord

from orchestrator import load
from orchestrator.errors import ConnectionLost, ExecuteError, RequestError
from orchestrator.files import TRAIN
from orchestrator.model.cluster import Node
from orchestrator.model.hosts import NodeCount, Nodes, expand, fold, split_list
from orchestrator.planning.launchers import choose_mpi
from orchestrator.targets.ssh.nodes import connection_to, node_program, write_ssh_config

UNREACHABLE_HINT = "Check that the node is on and reachable from this machine; --nodes selects others."


@dataclass(frozen=True, slots=True)
class SshCommands:
    """The program on each node that runs a user's command in the environment of ranks."""

    programs: Mapping[RunNode, tuple[str, ...]]

    @property
    def nodes(self) -> tuple[str, ...]:
        return tuple(host.node for host in self.programs)

    def run(
        self, command: tuple[str, ...], receive: Callable[[str, int, bytes], None]
    ) -> dict[str, int | ExecuteError]:
        stop = threading.Event()

        def run_on(host: RunNode) -> int | ExecuteError:
            argv = (*self.programs[host], "--", *command)
            try:
                with closing(connection_to(host)) as connection:
                    return connection.relay(argv, lambda stream, part: receive(host.node, stream, part), stop)
            except ExecuteError as error:
                unreachable = error.hint == ConnectionLost.default_hint
                return ExecuteError(error.message, hint=UNREACHABLE_HINT) if unreachable else error

        # On all nodes at the same time, because the command may wait for its counterparts there.
        with ThreadPoolExecutor(max_workers=len(self.programs)) as pool:
            futures = {host.node: pool.submit(run_on, host) for host in self.programs}
            try:
                return {node: future.result() for node, future in futures.items()}
            finally:
                stop.set()  # after Ctrl-C the pool waits for the end of the commands

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
    return SshCommands({node.run_node: cluster_program(node, implementation) for node in cluster.selected_nodes()})


def cluster_program(node: Node, implementation: str) -> tuple[str, ...]:
    """Return the program that runs commands on a node, outside of any run."""
    train = f"{node.root}/train" if node.root else str(TRAIN)
    launcher, interface = node.facts.mpi.get(implementation), node.facts.route
    return (
        *(node.python, f"{train}/node.py", "exec"),
        *([f"--path={PurePosixPath(launcher).parent}"] if launcher else []),
        *([f"--interface={interface}"] if interface else []),
    )


def on_run(record: RunRecord, nodes: Nodes | None) -> SshCommands:
    """Return the commands on the nodes of a run, or on those that a pattern names.

    Raises:
        RequestError: if the pattern names no node of the run.
    """
    names = [host.node for host in record.nodes]
    if isinstance(nodes, NodeCount):
        names = names[: nodes.number]
    elif nodes is not None:
        try:
            selected = [name for part in split_list(nodes.text) for name in expand(part.strip(), lambda group: False)]
        except ValueError as error:
            raise RequestError(f"--nodes {nodes.text}: {error}.", hint="Write ranges as node[1-3,7].") from None
        if unknown := [name for name in selected if name not in names]:
            raise RequestError(f"{record.run_id} has no node {unknown[0]!r:.80}.", hint=f"Its nodes: {fold(names)}.")
        names = selected
    programs = {
        host: node_program(record, "exec", f"--run={record.run_dir}", f"--node={host.node}")
        for host in record.nodes
        if host.node in names
    }
    return SshCommands(programs)
