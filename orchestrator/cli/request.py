"""Command-line options for the fields of a training request: panel -> field -> option.

The fields `on` and `options` depend on the targets, and `runs_dir` is an output option.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import typer
from typer.models import ParameterInfo

from orchestrator.planning.request import parse_nodes, parse_ppn

LAUNCHER_NAMES = ("mpirun", "torchrun", "accelerate", "mpirun-accelerate")  # copied: importing LAUNCHERS is slow


def complete_recipes(incomplete: str) -> list[str]:
    from orchestrator import load

    return [name for name in load.recipe_folders() if name.startswith(incomplete)]


def complete_stacks(incomplete: str) -> list[str]:
    from orchestrator import load

    return [name for name in load.stack_names() if name.startswith(incomplete)]


ARGUMENTS: Mapping[str, ParameterInfo] = {
    "recipe": typer.Argument(
        metavar="RECIPE_OR_SCRIPT",
        help="Name of a recipe (`orch recipes` lists them) or path of a script.",
        autocompletion=lambda incomplete: complete_recipes(incomplete),
    ),
    "script_args": typer.Argument(metavar="-- SCRIPT ARGS", help="Arguments for the script."),
}
TRAINING_OPTIONS: Mapping[str, ParameterInfo] = {
    "module": typer.Option("--module", "-m", help="Run RECIPE_OR_SCRIPT as a Python module, like `python -m`."),
    "name": typer.Option(
        metavar="NAME", help="Name of the run, which `orch runs` shows and other commands take in place of its ID."
    ),
    "preset": typer.Option(
        metavar="NAME", help="Named set of settings; `orch recipes` lists the presets of each recipe."
    ),
    "settings": typer.Option(
        metavar="KEY=VALUE",
        help="Setting of the recipe, such as learning_rate=1e-4; may be repeated. `orch recipes show NAME` lists them.",
    ),
    "array": typer.Option(
        metavar="KEY=VALUE,VALUE",
        help="Start one run per value, or (@FILE) per line of a file; repeat to run all combinations. Append %N "
        "to run at most N at a time.",
    ),
    "array_sample": typer.Option(metavar="N", help="Start only N combinations of --array, drawn at random."),
    "recipe_path": typer.Option(
        envvar="ORCH_RECIPE_PATH",
        metavar="FOLDER",
        help="Folder with a recipe.toml, or with several recipe folders; may be repeated.",
    ),
    "project": typer.Option(
        metavar="FOLDER|none",
        help="Folder to send to the nodes with your own script; the ranks work in a copy of it. Default: the script's "
        "git repository without ignored files, or its folder; none: only the script.",
    ),
    "project_limit": typer.Option(metavar="MB", help="Maximum size of the project."),
    "requirements": typer.Option(
        metavar="FILE|none",
        help="Packages to add to the stack: a requirements file or a pyproject.toml. Default: those of the script's "
        "`# /// script` block, or of the project's pyproject.toml; none: no packages.",
    ),
    "extra": typer.Option(metavar="NAME", help="Optional dependencies of the pyproject.toml; may be repeated."),
    "packages": typer.Option(
        "--with",
        metavar="PACKAGE",
        help="Package to add to the stack and to the packages of --requirements or its default, such as einops>=0.8; "
        "may be repeated.",
    ),
    "env": typer.Option(
        metavar="NAME|NAME=VALUE",
        help="Environment variable of the ranks; without a value, that of this shell; may be repeated. For all "
        "runs: orch_env in the inventory.",
    ),
    "env_file": typer.Option(metavar="FILE", help="File with such variables, one in each line."),
    "stack": typer.Option(
        metavar="NAME",
        help="Stack (set of versions) to use; `orch stacks` lists them.",
        autocompletion=lambda incomplete: complete_stacks(incomplete),
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Interpreter:
    """The Python of the ranks: a path, or the folder of its virtual environment."""

    python: str | None = None
    venv: str | None = None


INTERPRETER_OPTIONS: Mapping[str, ParameterInfo] = {
    "python": typer.Option(
        metavar="PATH",
        help="Run the ranks on this Python, which the nodes have already (conda, uv, venv), instead of that of the "
        "stack. It needs torch; the stack's bindings for ccl are added if they fit.",
    ),
    "venv": typer.Option(
        metavar="FOLDER",
        help="Run the ranks in this virtual environment, which the nodes have already: --python FOLDER/bin/python.",
    ),
}
HOST_OPTIONS: Mapping[str, ParameterInfo] = {
    "inventory": typer.Option(
        envvar="ORCH_INVENTORY",
        metavar="INVENTORY",
        help="Ansible inventory of the cluster; `orch init` creates one. local: this machine.",
    ),
    "nodes": typer.Option(
        metavar="N|PATTERN",
        parser=parse_nodes,
        help="Number of nodes, taken from the start of the inventory, or an Ansible pattern such as "
        "node[1-3],node7 or a group. Default: all.",
    ),
    "exclude": typer.Option(metavar="PATTERN", help="Nodes to exclude: a pattern as for --nodes."),
    "wait_for_cores": typer.Option(help="Wait until other runs have released their cores."),
}
RANKS: Mapping[str, ParameterInfo] = {
    "ppn": typer.Option(
        metavar="N|auto",
        parser=parse_ppn,
        help="Ranks per node. Default: auto, one rank per NUMA node; in jobs one per known socket, in pods one.",
    ),
    "launcher": typer.Option(
        metavar="NAME",
        help=f"Program that starts the ranks: {', '.join(LAUNCHER_NAMES)}. Default: {LAUNCHER_NAMES[0]}.",
    ),
    "mpi": typer.Option(
        metavar="FLAVOUR",
        help="intel, mpich or openmpi. Default: orch_mpi in the inventory, otherwise the stack's MPI.",
    ),
    "accelerate_config": typer.Option(
        metavar="FILE", help="Configuration file of accelerate; settings that have no effect are reported."
    ),
    "backend": typer.Option(
        metavar="NAME",
        help="Process-group backend: ccl, gloo or the backend of a plug-in. Default: the stack's first backend.",
    ),
    "ccl_workers": typer.Option(metavar="N", help="Cores per rank that oneCCL uses for communication only."),
    "fabric": typer.Option(
        metavar="NAME",
        help="Network for MPI and oneCCL: tcp, psm3, verbs, efa, mlx or shm. Default: auto, the fastest one "
        "that `orch provision` has verified between all nodes, otherwise tcp. For all runs: orch_fabric "
        "in the inventory.",
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
    "ipex": typer.Option(help="Use the Intel Extension for PyTorch (IPEX), on stacks that have it."),
}
RESTARTS: Mapping[str, ParameterInfo] = {
    "stall_timeout": typer.Option(
        metavar="SECONDS",
        help="Stop a run that makes no progress for this long (no event, collective, optimizer step or "
        "log line); 0: never.",
    ),
    "max_restarts": typer.Option(
        metavar="N", help="Restart up to N times after a failure, from the newest checkpoint."
    ),
    "spare_nodes": typer.Option(
        metavar="K",
        help="Reserve K spare nodes that replace failed nodes at a restart: the next ones of the "
        "inventory, or the last ones of the nodes that --nodes names.",
    ),
    "min_nodes": typer.Option(
        metavar="K",
        help="Restart with as few as K nodes after node failures; also works for your own scripts. With "
        "torchrun, sets --nnodes K:N.",
    ),
    "stop_on_nan": typer.Option(help="Stop the run when the loss has been NaN in 10 backward passes in a row."),
}
IMAGE: Mapping[str, ParameterInfo] = {
    "image": typer.Option(
        metavar="IMAGE",
        help="Run the ranks in this image: of Docker on nodes, of the pods, or in batch jobs a .sif file or a folder "
        "with Apptainer or Singularity.",
    ),
    "image_options": typer.Option(
        "--image-option",
        metavar="KEY=VALUE",
        help="Setting of the containers on nodes and in batch jobs: python, mounts, env_file or arguments, on nodes "
        "also shm, memlock and others; may be repeated. For all runs: orch_docker in the inventory.",
    ),
}
PANELS: Mapping[str, Mapping[str, ParameterInfo]] = {
    "Arguments": ARGUMENTS,
    "What": TRAINING_OPTIONS,
    "Where": HOST_OPTIONS,
    "Ranks": RANKS,
    "Precision": PRECISION,
    "Restarts": RESTARTS,
    "Image": IMAGE,
}
