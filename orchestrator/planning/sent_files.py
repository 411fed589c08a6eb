"""Files of this machine that the ranks need on other machines, and where they are there. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Protocol

from orch_node.protocol.record import RunNode

from orchestrator.model.recipe import Recipe, Value
from orchestrator.planning.plan import SendFile


class Folders(Protocol):
    """Absolute: of the run on its nodes, of train/ there, and of train/ on this machine."""

    @property
    def run_dir(self) -> str: ...
    @property
    def train(self) -> str: ...
    @property
    def train_here(self) -> str: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Files:
    """Where files of this machine are found by the ranks, and the copies that this takes."""

    paths: Mapping[str, str]
    sent: tuple[SendFile, ...]


def named_files(recipe: Recipe, settings: Mapping[str, Value]) -> list[str]:
    """The script, what lies beside it, and the data that settings name."""
    data = [str(settings[name]) for name in recipe.paths if name in settings]
    script = [recipe.script_file] if recipe.script_file else []
    return list(dict.fromkeys([*script, *recipe.files, *data]))


def in_train(path: str, folders: Folders) -> str | None:
    """Where a file of train/ is found on the nodes; None for one that is none."""
    if not PurePosixPath(path).is_relative_to(folders.train_here):
        return None
    return f"{folders.train}/{PurePosixPath(path).relative_to(folders.train_here)}"


def sent_files(recipe: Recipe, settings: Mapping[str, Value], at: tuple[RunNode, ...], folders: Folders) -> Files:
    """As the ranks of other machines see them: what lies in train/ is there, the rest is sent.

    The files of a plug-in recipe stay as they are to each other.
    """
    paths: dict[str, str] = {}
    sent: list[SendFile] = []
    for path in named_files(recipe, settings):
        place = in_train(path, folders)
        if place is None:
            place = f"{folders.run_dir}/files/{recipe.sent_path(path, len(paths))}"
            sent.append(SendFile(at=at, source=path, path=place))
        paths[path] = place
    return Files(paths=paths, sent=tuple(sent))
