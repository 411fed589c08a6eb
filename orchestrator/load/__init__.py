"""Loads clusters, stacks and recipes from files; unknown keys are errors that name their place."""

from __future__ import annotations

from orchestrator.load.accelerate import accelerate_config
from orchestrator.load.clusters import cluster, common_requirements, hosts_outside, mpi_flavours
from orchestrator.load.docker import common_docker_variable, docker
from orchestrator.load.environment import environment
from orchestrator.load.image_file import image_file
from orchestrator.load.inputs import RankSoftware, array_members, inputs
from orchestrator.load.limits import limits
from orchestrator.load.projects import largest_files, project_of
from orchestrator.load.recipes import recipe, recipe_folders, settings
from orchestrator.load.requirements import shared_requirements
from orchestrator.load.stacks import all_stacks, stack, stack_names

__all__ = [
    "RankSoftware",
    "accelerate_config",
    "all_stacks",
    "array_members",
    "cluster",
    "common_docker_variable",
    "common_requirements",
    "docker",
    "environment",
    "hosts_outside",
    "image_file",
    "inputs",
    "largest_files",
    "limits",
    "mpi_flavours",
    "project_of",
    "recipe",
    "recipe_folders",
    "settings",
    "shared_requirements",
    "stack",
    "stack_names",
]
