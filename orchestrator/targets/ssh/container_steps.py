"""Plan the containers of a training run. Pure."""

from __future__ import annotations

from dataclasses import replace
from pathlib import PurePosixPath

from orch_node.protocol.cores import default_ranks

from orchestrator.errors import PlanError
from orchestrator.launchers import DEFAULT
from orchestrator.model.cluster import Node
from orchestrator.model.decision import Decision
from orchestrator.model.recipe import Recipe
from orchestrator.planning.containers import Docker, shared_folders
from orchestrator.planning.request import TrainRequest
from orchestrator.planning.resolve import Resolved
from orchestrator.planning.sent_files import Files
from orchestrator.planning.site import Site

# An image that starts its ranks also chooses their backend. gloo sets no environment variables.
NO_BACKEND = "gloo"
# The options of `docker run` that give access to the GPUs of a vendor.
GPU_DEVICES = {
    "nvidia": ("--gpus=all",),
    "amd": ("--device=/dev/kfd", "--device=/dev/dri"),
    "intel": ("--device=/dev/dri",),
}


def check_docker(request: TrainRequest, launcher: str, docker: Docker) -> None:
    """Raise PlanError if the settings are invalid, or conflict with an image that starts its ranks."""
    docker.check()
    if docker.starts_ranks:
        check_options_without_effect(request, launcher, docker)


def check_options_without_effect(request: TrainRequest, launcher: str, docker: Docker) -> None:
    """Raise PlanError for options that have no effect on an image that starts its ranks."""
    flags_in_use = {
        f"--launcher {launcher}": launcher != DEFAULT,
        f"--backend {request.backend}": request.backend,
        f"--ccl-workers {request.ccl_workers}": request.ccl_workers,
        "--ipex": request.ipex,
    }
    flags = [flag for flag, is_used in flags_in_use.items() if is_used]
    if flags:
        raise PlanError(
            f"{flags[0]}: with start=node the entrypoint of {docker.image} starts the ranks.",
            hint=f"Leave {' and '.join(flags)} out. Arguments for the image go after --.",
        )


def with_devices(docker: Docker | None, resolved: Resolved) -> Docker | None:
    """Return the settings with access to the GPUs and RDMA devices of the nodes, if the ranks may use GPUs."""
    facts = [node.facts for node in resolved.all_nodes]
    may_use_gpus = docker is not None and (resolved.backend.value.gpu or docker.starts_ranks)
    if docker is None or not may_use_gpus or not all(node.gpus for node in facts):
        return docker
    vendors = {gpu.vendor for node in facts for gpu in node.gpus}
    devices = [option for vendor in sorted(vendors) for option in GPU_DEVICES.get(vendor, ())]
    if all(node.devices for node in facts):
        devices.append("--device=/dev/infiniband")
    names = {word.partition("=")[0] for word in docker.arguments}
    missing = [word for word in devices if word not in docker.arguments and not ("--gpus" in names and "gpus" in word)]
    return replace(docker, arguments=(*missing, *docker.arguments))


def explain_image_ranks(request: TrainRequest, nodes: tuple[Node, ...]) -> tuple[Decision, ...]:
    """Return the decision on how many ranks the image is to start."""
    default = "one for each GPU" if all(node.facts.gpus for node in nodes) else "one for each NUMA node"
    value = f"{request.ppn} on each node" if request.ppn else default
    return (Decision(topic="ranks", value=value, reason="NPROC_PER_NODE, for the image"),)


def ranks_per_node(nodes: tuple[Node, ...], ppn: int | None) -> dict[str, int]:
    """Return the number of ranks per node that the image itself is to start: one for each GPU or NUMA node."""
    return {node.name: ppn or len(node.facts.gpus) or default_ranks(node.facts.cores) for node in nodes}


def mounted_folders(files: Files, recipe: Recipe, site: Site) -> tuple[str, ...]:
    """Return the folders of the node that a container mounts at the same paths.

    They hold the runs, orch's programs, models and data; on this machine also the script, its recipe
    and its data. orch's whole folder is not mounted: as /opt/orch it would hide the image's stack.
    """
    base = str(PurePosixPath(site.run_dir).parent)
    if site.root:
        return (base, site.train, *(f"{site.root}/{name}" for name in ("data", "models", "hub")))
    return shared_folders(base, site.train, files.paths.get(recipe.script, ""), files.paths.values())
