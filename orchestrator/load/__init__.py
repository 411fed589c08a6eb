"""Loads clusters, stacks and recipes from files; unknown keys are errors that name their place."""

from __future__ import annotations

from orchestrator.load.clusters import cluster, common_requirements, hosts_outside, limits, mpi_implementations
from orchestrator.load.definitions import all_stacks, incompatibilities, recipe, recipe_folders, settings, stack
from orchestrator.load.docker import common_docker_variable, docker, image_file
from orchestrator.load.inputs import accelerate_config, array_members, environment, inputs
from orchestrator.load.projects import largest_files, project_of
from orchestrator.load.requirements import shared_requirements
