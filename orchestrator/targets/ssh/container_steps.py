"""What containers change of a training run's plan, and the file that describes them. Pure."""

from __future__ import annotations

from pathlib import PurePosixPath

from orchestrator.errors import PlanError
from orchestrator.launchers import DEFAULT
from orchestrator.model.cluster import Node
from orchestrator.model.decision import Choice, Decision
from orchestrator.model.recipe import Recipe
from orchestrator.planning.containers import Docker, shared_folders
from orchestrator.planning.request import TrainRequest
from orchestrator.planning.sent_files import Files
from orchestrator.targets.ssh.steps import Site

# An image that starts its ranks chooses one itself; this one sets no variables.
NO_BACKEND = "gloo"


def choose_docker(request: TrainRequest, launcher: str, docker: Docker | None) -> Choice[Docker | None]:
    """Raises PlanError for settings that cannot be, and for what only orch's own ranks can do."""
    if docker is None:
        return Choice(None)
    docker.check()
    if docker.starts_ranks:
        check_own_start(request, launcher, docker)
    return Choice(docker, (docker.explain(),))


def starts_ranks(docker: Docker | None) -> bool:
    """Whether the image starts its ranks itself."""
    return docker is not None and docker.starts_ranks


def check_own_start(request: TrainRequest, launcher: str, docker: Docker) -> None:
    given = {
        f"--launcher {launcher}": launcher != DEFAULT,
        f"--backend {request.backend}": request.backend,
        f"--ccl-workers {request.ccl_workers}": request.ccl_workers,
        "--ipex": request.ipex,
    }
    flags = [flag for flag, there in given.items() if there]
    if flags:
        raise PlanError(
            f"{flags[0]}: with start=node the entrypoint of {docker.image} starts the ranks.",
            hint=f"Leave {' and '.join(flags)} out; what the image understands goes after --.",
        )


def tell_own_ranks(request: TrainRequest) -> tuple[Decision, ...]:
    value = f"{request.ppn} on each node" if request.ppn else "one for each NUMA node"
    return (Decision(topic="ranks", value=value, reason="NPROC_PER_NODE, for the image"),)


def processes(nodes: tuple[Node, ...], ppn: int | None) -> dict[str, int]:
    """Node -> how many ranks an image starts there that starts them itself."""
    return {node.name: ppn or len(node.facts.numa_nodes) for node in nodes}


def folders(files: Files, recipe: Recipe, site: Site) -> tuple[str, ...]:
    """What a container must have of its node, at the same paths: runs, programs and data; on this
    machine also the folder of the script, its recipe and its data.

    Not the whole folder of orch: where that is /opt/orch it would hide the image's own stack.
    """
    base = str(PurePosixPath(site.run_dir).parent)
    if site.root:
        return (base, site.train, f"{site.root}/data")
    return shared_folders(base, site.train, files.paths.get(recipe.script, ""), files.paths.values())
