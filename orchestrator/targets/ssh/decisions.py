"""Decide the nodes of a training run, their network and what starts the ranks on them. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

from orchestrator.errors import PlanError
from orchestrator.launchers import DEFAULT
from orchestrator.model.cluster import Cluster
from orchestrator.model.decision import Choice, Decision
from orchestrator.model.hostlist import fold
from orchestrator.model.measurement import Measurement
from orchestrator.planning import fabrics, hosts, launch
from orchestrator.planning.accelerate_options import AccelerateOptions
from orchestrator.planning.containers import Docker
from orchestrator.planning.measured import valid_for
from orchestrator.planning.request import Resume, TrainRequest
from orchestrator.planning.resolve import Inputs, KnownNodes, Resolved, resolve

# The options of `docker run` that give access to the GPUs of a vendor.
GPU_DEVICES = {
    "nvidia": ("--gpus=all",),
    "amd": ("--device=/dev/kfd", "--device=/dev/dri"),
    "intel": ("--device=/dev/dri",),
}
NO_BACKEND = "gloo"  # of an image that starts its ranks and chooses their backend; gloo sets no variables


@dataclass(frozen=True, slots=True, kw_only=True)
class HostInputs:
    """The files and the cluster from which a run on hosts is planned.

    Attributes:
        loaded: the files that the request names.
        cluster: the hosts of the inventory.
        accelerate: the user's configuration of accelerate.
        docker: the containers of the ranks, or None.
        measurement: what `orch bench` has measured on the hosts, or None.
    """

    loaded: Inputs
    cluster: Cluster
    accelerate: AccelerateOptions | None = None
    docker: Docker | None = None
    measurement: Measurement | None = None


def resolve_hosts(request: TrainRequest, inputs: HostInputs, resume: Resume | None = None) -> Resolved:
    """Decide everything that a request leaves open.

    Raises:
        PlanError: if the nodes or the stack cannot do what is requested.
        RequestError: if the request contradicts itself or names something unknown.
    """
    cluster, docker, spares = inputs.cluster, inputs.docker, inputs.cluster.spare_nodes()
    replacing = Decision(topic="spare nodes", value=fold(node.name for node in spares), reason="to replace lost nodes")
    nodes = KnownNodes(
        nodes=hosts.choose_nodes(cluster),
        spares=Choice(spares, (replacing,) if spares else ()),
        measurement=inputs.measurement and valid_for(inputs.measurement, cluster.selected_nodes(), by_name=True),
    )
    links = hosts.choose_links(nodes.with_stack)
    launcher = request.launcher or DEFAULT
    launch.check_launcher(launcher, inputs.accelerate, request.mpi)
    mpi = launch.choose_mpi(cluster, inputs.loaded.stack, request.mpi)
    if docker:
        check_docker(request, launcher, docker)
    starts_ranks = docker is not None and docker.starts_ranks
    resolved = resolve(
        replace(request, ppn=1, backend=NO_BACKEND) if starts_ranks else request,
        inputs.loaded,
        nodes,
        resume,
        launcher=launcher,
        mpi=mpi,
        contained=docker is not None,
    )
    if starts_ranks:
        resolved = without_choices_of_image(resolved, request)
    use = fabrics.FabricUse(
        nodes=nodes.with_stack,
        backend=resolved.backend.value,
        contained=docker is not None,
        spares=len(nodes.spares.value),
    )
    return replace(resolved, links=fabrics.choose_fabric(links, cluster, request.fabric, use))


def without_choices_of_image(resolved: Resolved, request: TrainRequest) -> Resolved:
    """Return the request without the choices of an image that starts its ranks and chooses their backend itself."""
    default = "one for each GPU" if all(node.facts.gpus for node in resolved.nodes.value) else "one for each NUMA node"
    value = f"{request.ppn} on each node" if request.ppn else default
    ranks = Decision(topic="ranks", value=value, reason="NPROC_PER_NODE, for the image")
    return replace(
        resolved,
        layout=Choice(resolved.layout.value, (ranks,)),
        backend=Choice(resolved.backend.value),
        preload=Choice(()),
    )


def check_docker(request: TrainRequest, launcher: str, docker: Docker) -> None:
    """Raise PlanError if the settings are invalid, or conflict with an image that starts its ranks."""
    docker.check()
    flags_in_use = {
        f"--launcher {launcher}": launcher != DEFAULT,
        f"--backend {request.backend}": request.backend,
        f"--ccl-workers {request.ccl_workers}": request.ccl_workers,
        "--ipex": request.ipex,
    }
    flags = [flag for flag, is_used in flags_in_use.items() if is_used]
    if docker.starts_ranks and flags:
        raise PlanError(
            f"{flags[0]}: with start=node the entrypoint of {docker.image} starts the ranks.",
            hint=f"Leave {' and '.join(flags)} out. Arguments for the image go after --.",
        )


def with_devices(docker: Docker, resolved: Resolved) -> Docker:
    """Return the settings with access to the GPUs and RDMA devices of the nodes, if the ranks may use GPUs."""
    facts = [node.facts for node in resolved.all_nodes]
    may_use_gpus = resolved.backend.value.gpu or docker.starts_ranks
    if not may_use_gpus or not all(node.gpus for node in facts):
        return docker
    vendors = {gpu.vendor for node in facts for gpu in node.gpus}
    devices = [option for vendor in sorted(vendors) for option in GPU_DEVICES.get(vendor, ())]
    if all(node.devices for node in facts):
        devices.append("--device=/dev/infiniband")
    names = {word.partition("=")[0] for word in docker.arguments}
    missing = [word for word in devices if word not in docker.arguments and not ("--gpus" in names and "gpus" in word)]
    return replace(docker, arguments=(*missing, *docker.arguments))
