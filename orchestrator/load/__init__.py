"""Loads clusters, stacks and recipes from files; unknown keys are errors that name their place."""

from __future__ import annotations

from orchestrator.load.accelerate import accelerate_config
from orchestrator.load.backends import plugins
from orchestrator.load.clusters import cluster
from orchestrator.load.docker import common_docker_variable, docker
from orchestrator.load.environment import environment
from orchestrator.load.image_file import image_file
from orchestrator.load.inputs import RankSoftware, inputs
from orchestrator.load.limits import limits
from orchestrator.load.packages import packages_for
from orchestrator.load.projects import is_local_module, largest_files, project_of
from orchestrator.load.recipes import recipe, recipe_folders, settings
from orchestrator.load.requirements import requirements_of, shared_requirements, source_folder
from orchestrator.load.run_variables import common_requirements, mpi_flavours
from orchestrator.load.scripts import check_script
from orchestrator.load.stacks import all_stacks, stack, stack_names

__all__ = [
    "RankSoftware",
    "accelerate_config",
    "all_stacks",
    "check_script",
    "cluster",
    "common_docker_variable",
    "common_requirements",
    "docker",
    "environment",
    "image_file",
    "inputs",
    "is_local_module",
    "largest_files",
    "limits",
    "mpi_flavours",
    "packages_for",
    "plugins",
    "project_of",
    "recipe",
    "recipe_folders",
    "requirements_of",
    "settings",
    "shared_requirements",
    "source_folder",
    "stack",
    "stack_names",
]
