"""Plan the containers of a training run. Pure."""

from __future__ import annotations

from pathlib import PurePosixPath

from orch_node.protocol.cores import default_ranks

from orchestrator.errors import PlanError
from orchestrator.launchers import DEFAULT
from orchestrator.model.cluster import Node
from orchestrator.model.decision import Decision
from orchestrator.model.recipe import Recipe
from orchestrator.planning.containers import Docker, shared_folders
from orchestrator.planning.request import TrainRequest
from orchestrator.planning.sent_files import Files
from orchestrator.planning.site import Site

# An image that starts its ranks also chooses their backend. gloo sets no environment variables.
NO_BACKEND = "gloo"


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


def explain_image_ranks(request: TrainRequest) -> tuple[Decision, ...]:
    """Return the decision on how many ranks the image is to start."""
    value = f"{request.ppn} on each node" if request.ppn else "one for each NUMA node"
    return (Decision(topic="ranks", value=value, reason="NPROC_PER_NODE, for the image"),)


def ranks_per_node(nodes: tuple[Node, ...], ppn: int | None) -> dict[str, int]:
    """Return the number of ranks per node that the image itself is to start."""
    return {node.name: ppn or default_ranks(node.facts.cores) for node in nodes}


def mounted_folders(files: Files, recipe: Recipe, site: Site) -> tuple[str, ...]:
    """Return the folders of the node that a container mounts at the same paths.

    They hold the runs, orch's programs, models and data; on this machine also the script, its recipe
    and its data. orch's whole folder is not mounted: as /opt/orch it would hide the image's stack.
    """
    base = str(PurePosixPath(site.run_dir).parent)
    if site.root:
        return (base, site.train, *(f"{site.root}/{name}" for name in ("data", "models", "hub")))
    return shared_folders(base, site.train, files.paths.get(recipe.script, ""), files.paths.values())
