"""Read the table [tool.orch] of a pyproject.toml: defaults for the options of `orch train`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_type_hints

from orch_node.protocol.values import ProtocolError

from orchestrator.errors import RequestError, did_you_mean
from orchestrator.files import other_owner
from orchestrator.load.requirements import PYPROJECT, read_table
from orchestrator.planning.recorded_request import value_of
from orchestrator.planning.request import TrainRequest, flag

TABLE = "[tool.orch]"
INVENTORY = "inventory"
# Options that suit all runs of a project, by their names on the command line.
KEYS = {
    flag(name).removeprefix("--"): name
    for name in (
        *(INVENTORY, "on", "nodes", "exclude", "wait_for_cores", "ppn", "launcher", "mpi", "backend", "ccl_workers"),
        *("fabric", "precision", "kernels", "stack", "python", "requirements", "packages", "env", "env_file"),
        *("project_limit", "stall_timeout", "max_restarts", "spare_nodes", "min_nodes", "stop_on_nan", "image"),
        *("image_options", "recipe_path", "runs_dir"),
    )
}
PATHS = (INVENTORY, "python", "requirements", "env_file", "recipe_path", "runs_dir")


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolOptions:
    """The defaults that a project sets.

    Attributes:
        path: the file, relative to the current folder; empty if there is none.
        values: the values by the fields of the request.
    """

    path: str = ""
    values: Mapping[str, Any] = field(default_factory=dict)


def tool_options() -> ToolOptions:
    """Return the options of the nearest pyproject.toml with the table, up to the root of the git repository.

    Outside of git only the current folder counts.

    Raises:
        RequestError: if the table has an unknown key or a wrong value, or the file belongs to another user.
    """
    folder = Path.cwd()
    in_repository = any((parent / ".git").exists() for parent in (folder, *folder.parents))
    for parent in (folder, *folder.parents):
        if (path := parent / PYPROJECT).is_file() and b"orch" in path.read_bytes():
            tool = read_table(path).get("tool", {})
            if isinstance(tool, dict) and "orch" in tool:
                return parse_table(path, tool["orch"])
        if not in_repository or (parent / ".git").exists():
            break
    return ToolOptions()


def parse_table(path: Path, table: object) -> ToolOptions:
    """Return the options of a table; paths become relative to the current folder.

    Raises:
        RequestError: if the table has an unknown key or a wrong value, or the file belongs to another user.
    """
    name = os.path.relpath(path)
    if owner := other_owner(path):
        raise RequestError(
            f"{name} belongs to another user ({owner}), so its {TABLE} is not trusted.",
            hint="Work in a copy of the project that belongs to you.",
        )
    if not isinstance(table, dict):
        raise RequestError(f"{name}: {TABLE} is not a table.", hint=f'Example: {TABLE}, then inventory = "prod".')
    kinds = get_type_hints(TrainRequest)
    values = {}
    for key, value in table.items():
        if key not in KEYS:
            raise RequestError(f"{name}: {TABLE} has the unknown key {key!r}.", hint=did_you_mean(key, KEYS))
        if key == "ppn" and value == "auto":
            continue
        value = str(value) if key == "nodes" and type(value) is int else value
        try:
            parsed = value_of(kinds[KEYS[key]], value, f"{name}: {TABLE} {key}")
        except ProtocolError as error:
            raise RequestError(f"{error}", hint=f"`orch train --help` explains {flag(KEYS[key])}.") from None
        values[KEYS[key]] = with_path(KEYS[key], parsed, path.parent)
    return ToolOptions(path=name, values=values)


def with_path(name: str, value: Any, folder: Path) -> Any:
    """Return the value of an option, with a path below the folder of the file relative to the current folder."""
    if name not in PATHS or folder == Path.cwd():
        return value
    if isinstance(value, tuple):
        return tuple(with_path(name, item, folder) for item in value)
    candidates = [folder / value, *([folder / "inventory" / value] if name == INVENTORY else [])]
    path = next((candidate for candidate in candidates if candidate.exists() or name == "runs_dir"), None)
    return type(value)(os.path.relpath(path)) if path else value
