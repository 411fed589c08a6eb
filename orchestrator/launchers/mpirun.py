"""mpiexec.hydra of Intel MPI. Never its `mpirun`: that shell wrapper swallows signals."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.cluster import Node
from orchestrator.command import Command
from orchestrator.errors import PlanError
from orchestrator.layout import Layout
from orchestrator.network import Link

# Pinning belongs to rank.py alone.
ENVIRONMENT = (("I_MPI_PIN", "0"),)
TREE_WIDTH = 16
SSH_CONFIG = "ssh/config"  # below the node's root; `orch provision` writes it


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """The launcher's command and its hostfile, one `address:ranks` a line."""

    command: Command
    hostfile: str


def launch(
    nodes: tuple[Node, ...],
    *,
    layout: Layout,
    links: tuple[Link, ...],
    hostfile: str,
    ranks: tuple[str, ...],
) -> Launch:
    """Start `ranks` once for each place of the layout. Raises PlanError without an mpiexec.

    With -f, and with -ppn, hydra gives every host the same number of ranks whatever the file says
    (Intel MPI 2021.18); -machinefile honours the number behind each host.
    """
    mpiexec = nodes[0].facts.mpiexec
    if mpiexec is None:
        raise PlanError(
            f"{nodes[0].name} has no mpiexec.hydra beside {nodes[0].python}.",
            hint="The wheel impi-rt brings it: `make setup`.",
        )
    places = layout.by_node()
    argv = (mpiexec, "-machinefile", hostfile, "-n", str(layout.world_size), *ranks)
    return Launch(
        command=Command(argv=argv, env=(*ENVIRONMENT, *between_nodes(nodes, links))),
        hostfile="".join(f"{node.address}:{len(places[node.name])}\n" for node in nodes),
    )


def between_nodes(nodes: tuple[Node, ...], links: tuple[Link, ...]) -> tuple[tuple[str, str], ...]:
    """How hydra reaches the other nodes: with the cluster's own key and known hosts.

    The proxies of a tree look up node0's interface by its name on their own node; where that has
    another name, all of them have to be started from node0 (16 is hydra's own width).
    """
    if len(nodes) == 1:
        return ()
    uneven = len({link.interface for link in links}) > 1 and len(nodes) > TREE_WIDTH
    return (
        ("I_MPI_HYDRA_BOOTSTRAP", "ssh"),
        ("I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS", f"-F {nodes[0].root}/{SSH_CONFIG}"),
        ("I_MPI_HYDRA_IFACE", links[0].interface),
        *([("I_MPI_HYDRA_BRANCH_COUNT", str(len(nodes)))] if uneven else []),
    )
