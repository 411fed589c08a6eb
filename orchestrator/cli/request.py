"""Command-line options for the fields of a training request: panel -> field -> option.

The fields `on` and `options` depend on the targets, and `runs_dir` is an output option.
"""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator import load
from orchestrator.cli.groups import panels_of
from orchestrator.planning.request import TRAINING, TrainRequest, option


def complete_recipes(incomplete: str) -> list[str]:
    return [name for name in load.recipe_folders() if name.startswith(incomplete)]


def complete_stacks(incomplete: str) -> list[str]:
    return [name for name in load.stack_names() if name.startswith(incomplete)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """The virtual environment of the ranks."""

    venv: str | None = option(
        None,
        panel=TRAINING,
        metavar="FOLDER",
        help="Run the ranks in this virtual environment, which the nodes have already: --python FOLDER/bin/python.",
    )


PANELS = panels_of(TrainRequest, recipe=complete_recipes, stack=complete_stacks)
