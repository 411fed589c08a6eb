"""Files -> Cluster, Stack, Recipe. Strict: what is unknown is an error that names its place."""

from __future__ import annotations

from orchestrator.load.accelerate import accelerate_config
from orchestrator.load.backends import plugins
from orchestrator.load.clusters import cluster
from orchestrator.load.docker import agreed as agreed_docker
from orchestrator.load.docker import docker
from orchestrator.load.image_file import image_file
from orchestrator.load.limits import limits
from orchestrator.load.mpi import mpi_flavours
from orchestrator.load.recipes import recipe, recipe_folders, settings
from orchestrator.load.scripts import RanksPython, check_script
from orchestrator.load.stacks import all_stacks, stack, stack_names

__all__ = [
    "RanksPython",
    "accelerate_config",
    "agreed_docker",
    "all_stacks",
    "check_script",
    "cluster",
    "docker",
    "image_file",
    "limits",
    "mpi_flavours",
    "plugins",
    "recipe",
    "recipe_folders",
    "settings",
    "stack",
    "stack_names",
]
