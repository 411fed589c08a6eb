"""The fields of a request for training, as the command line has them: panel -> field -> option.

Not here: `on` and `options`, which follow from the targets, and `runs_dir`.
"""

from __future__ import annotations

from collections.abc import Mapping

import typer
from typer.models import ParameterInfo

STARTERS = ("mpirun", "torchrun", "accelerate", "mpirun-accelerate")  # LAUNCHERS, not imported here


def number_or_auto(ppn: str) -> int | None:
    from orchestrator.errors import RequestError

    if ppn == "auto":
        return None
    try:
        number = int(ppn)
    except ValueError:
        raise RequestError(
            f"--ppn {ppn}: expected a number or auto.", hint="--ppn 4: four ranks on each node."
        ) from None
    if number < 1:
        raise RequestError(
            f"--ppn {ppn}: a node needs at least one rank.",
            hint="--ppn auto is one rank for each NUMA node. --exclude leaves a node out.",
        )
    return number


def complete_recipes(incomplete: str) -> list[str]:
    from orchestrator import load

    return [name for name in load.recipe_folders() if name.startswith(incomplete)]


def complete_stacks(incomplete: str) -> list[str]:
    from orchestrator import load

    return [name for name in load.stack_names() if name.startswith(incomplete)]


ARGUMENTS: Mapping[str, ParameterInfo] = {
    "recipe": typer.Argument(
        metavar="RECIPE_OR_SCRIPT",
        help="A recipe by its name (`orch recipes` lists them), or a script by its path.",
        autocompletion=lambda incomplete: complete_recipes(incomplete),
    ),
    "script_args": typer.Argument(metavar="-- SCRIPT ARGS", help="Arguments that go to the script as they are."),
}
WHAT: Mapping[str, ParameterInfo] = {
    "module": typer.Option(
        "--module", "-m", help="RECIPE_OR_SCRIPT is a Python module, which runs as with `python -m`."
    ),
    "preset": typer.Option(metavar="NAME", help="A named set of settings; `orch recipes` lists each recipe's."),
    "settings": typer.Option(
        metavar="KEY=VALUE", help="A setting of the recipe, such as learning_rate=1e-4; may be repeated."
    ),
    "recipe_path": typer.Option(
        envvar="ORCH_RECIPE_PATH",
        metavar="FOLDER",
        help="A folder with a recipe.toml, or of several such folders; may be repeated.",
    ),
    "stack": typer.Option(
        metavar="NAME",
        help="The stack (set of versions) to run on; `orch stacks` lists them.",
        autocompletion=lambda incomplete: complete_stacks(incomplete),
    ),
}
WHERE: Mapping[str, ParameterInfo] = {
    "inventory": typer.Option(
        metavar="INVENTORY", help="The cluster, as an Ansible inventory; `orch init` writes one. local is this machine."
    ),
    "nodes": typer.Option(
        metavar="N|PATTERN",
        help="How many nodes (the first ones), or which: node[1-3],node7, a group, any "
        "pattern of Ansible's; default: all.",
    ),
    "exclude": typer.Option(metavar="PATTERN", help="Nodes to leave out, written as with --nodes."),
    "queue": typer.Option(help="Wait until the cores that another run uses are free."),
}
RANKS: Mapping[str, ParameterInfo] = {
    "ppn": typer.Option(
        metavar="N|auto",
        parser=number_or_auto,
        help="Ranks on each node; auto, the default: one for each of its NUMA nodes.",
    ),
    "launcher": typer.Option(
        metavar="NAME", help=f"What starts the ranks: {', '.join(STARTERS)}. The default is the first of them."
    ),
    "mpi": typer.Option(
        metavar="FLAVOUR", help="intel, mpich or openmpi; default: orch_mpi of the inventory, else the stack's."
    ),
    "accelerate_config": typer.Option(
        metavar="FILE", help="Your configuration of accelerate; what of it is not used is told."
    ),
    "backend": typer.Option(
        metavar="NAME", help="Process-group backend: ccl, gloo or a plug-in's; default: the stack's first."
    ),
    "ccl_workers": typer.Option(metavar="N", help="Cores of each rank that oneCCL keeps for communication."),
    "fabric": typer.Option(
        metavar="NAME",
        help="What MPI and oneCCL talk over: tcp, psm3, verbs, efa, mlx, shm; auto, the default: "
        "the fastest that `orch provision` has proved between all nodes, else tcp. orch_fabric of "
        "the inventory says it for all runs.",
    ),
}
PRECISION: Mapping[str, ParameterInfo] = {
    "precision": typer.Option(
        metavar="auto|bf16|fp32",
        help="Precision of a recipe. Default: auto, which is bf16 if all nodes have BF16 "
        "instructions (avx512_bf16, amx_bf16, ARM's bf16), otherwise fp32.",
    ),
    "allow_slow_bf16": typer.Option(
        help="Emulate BF16 on CPUs without BF16 instructions; about 10 times slower than fp32."
    ),
    "ipex": typer.Option(help="Use Intel's extension (IPEX), on stacks that have it."),
}
RESTARTS: Mapping[str, ParameterInfo] = {
    "fresh": typer.Option(help="Start over. Without it, a recipe goes on from an unfinished run's checkpoint."),
    "stall_timeout": typer.Option(
        metavar="SECONDS",
        help="End a run without progress for so long (no event, collective, optimizer step or "
        "line of a log); 0: never.",
    ),
    "max_restarts": typer.Option(
        metavar="N", help="How often to start again after a failure, from the newest checkpoint."
    ),
    "spare_nodes": typer.Option(
        metavar="K",
        help="Keep K more nodes ready (the next of the inventory, or the last ones of those "
        "named by --nodes): a restart puts them in the place of nodes that were lost.",
    ),
    "min_nodes": typer.Option(
        metavar="K",
        help="Restart with as few as K nodes when others are lost, also a script that is no "
        "recipe; torchrun is started with --nnodes K:N.",
    ),
}
CONTAINERS: Mapping[str, ParameterInfo] = {
    "docker_image": typer.Option(metavar="NAME", help="Run the ranks in a container of this image on each node."),
    "docker": typer.Option(
        metavar="KEY=VALUE",
        help="A setting of these containers, such as shm, memlock, mounts, env_file, python; "
        "may be repeated. The inventory's orch_docker has them for all runs.",
    ),
}
PANELS: Mapping[str, Mapping[str, ParameterInfo]] = {
    "Arguments": ARGUMENTS,
    "What": WHAT,
    "Where": WHERE,
    "Ranks": RANKS,
    "Precision": PRECISION,
    "Restarts": RESTARTS,
    "Containers": CONTAINERS,
}
