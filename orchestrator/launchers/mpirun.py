"""mpiexec.hydra of Intel MPI. Never its `mpirun`: that shell wrapper swallows signals."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.cluster import Node
from orchestrator.command import Command
from orchestrator.errors import PlanError
from orchestrator.layout import Layout
from orchestrator.network import interface

# Pinning belongs to rank.py alone.
ENVIRONMENT = (("I_MPI_PIN", "0"),)
SSH_CONFIG = "ssh/config"  # below the node's root; `orch provision` writes it


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """The launcher's command and its hostfile, one `address:ranks` a line."""

    command: Command
    hostfile: str


def launch(
    nodes: tuple[Node, ...], layout: Layout, hostfile: str, ranks: tuple[str, ...]
) -> Launch:
    """Start `ranks` once for each place of the layout. Raises PlanError without an mpiexec."""
    mpiexec = nodes[0].facts.mpiexec
    if mpiexec is None:
        raise PlanError(
            f"{nodes[0].name} has no mpiexec.hydra beside {nodes[0].python}.",
            hint="The wheel impi-rt brings it: `make setup`.",
        )
    counts = [len(layout.on(node.name)) for node in nodes]
    argv = (mpiexec, "-f", hostfile, "-n", str(layout.world_size), "-ppn", str(counts[0]), *ranks)
    hosts = "".join(f"{node.address}:{n}\n" for node, n in zip(nodes, counts, strict=True))
    return Launch(
        command=Command(argv=argv, env=(*ENVIRONMENT, *between_nodes(nodes))), hostfile=hosts
    )


def between_nodes(nodes: tuple[Node, ...]) -> tuple[tuple[str, str], ...]:
    """How hydra reaches the other nodes: with the cluster's own key and known hosts."""
    if len(nodes) == 1:
        return ()
    return (
        ("I_MPI_HYDRA_BOOTSTRAP", "ssh"),
        ("I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS", f"-F {nodes[0].root}/{SSH_CONFIG}"),
        ("I_MPI_HYDRA_IFACE", interface(nodes[0])),
    )
