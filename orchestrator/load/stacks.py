"""Loads stacks from orchestrator/stacks/data/*.toml."""

from __future__ import annotations

import datetime as dt
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError

from orchestrator.errors import RequestError, did_you_mean
from orchestrator.files import STACKS, entry_points
from orchestrator.load.files import StrictModel, read_toml
from orchestrator.model.process_group import Backend
from orchestrator.stacks.stack import BINDINGS, Bindings, EndOfLife, Index, Stack

GROUP = "orch.backends"
LISTING = "`orch stacks` lists them; the default is current."


class BackendTable(StrictModel):
    """A plug-in backend as data; orchestrator.model.process_group.Backend describes the fields."""

    name: str
    summary: str
    module: str = ""
    env: dict[str, str] = Field(default_factory=dict)
    requirements: dict[str, str] = Field(default_factory=dict)
    gpu: bool = False
    hint: str = ""

    def backend(self, source: str) -> Backend:
        values = {**self.model_dump(), "env": tuple(self.env.items()), "source": source}
        return Backend(**values)


def plugins() -> dict[str, Backend]:
    """Return the backends of installed distributions by name.

    Raises:
        RequestError: if one is invalid.
    """
    backends = map(load_entry_point, entry_points().select(group=GROUP))
    return {backend.name: backend for backend in backends}


def load_entry_point(entry: EntryPoint) -> Backend:
    """Return the backend of an entry point, which names a dict so that a plug-in need not import orch.

    Raises:
        RequestError: if it is invalid.
    """
    source = f"entry point {entry.name} = {entry.value}"
    try:
        table = BackendTable.model_validate(entry.load())
    except (ImportError, AttributeError, ValidationError) as error:
        raise RequestError(
            f"The backend plug-in {entry.name} ({entry.value}) cannot be read: {error}",
            hint="Fix or uninstall the package that has it.",
        ) from None
    return table.backend(source)


class BindingsTable(StrictModel):
    version: str
    built_by: Literal["orch", "Intel"]
    module: str
    setvars: str
    oneccl: str


class IndexTable(StrictModel):
    name: str
    option: Literal["extra-index-url", "find-links"]
    url: str
    serves: list[str]
    only_there: bool


class EndOfLifeTable(StrictModel):
    since: dt.date
    reason: str


class StackFile(StrictModel):
    """The keys of stacks/NAME.toml; orchestrator.stacks.stack.Stack describes them."""

    summary: str
    python: str
    mpi: Literal["intel", "mpich", "openmpi"]
    backends: list[str]
    flags: list[str] = Field(default_factory=list)
    ipex_precisions: list[Literal["fp32", "bf16"]] = Field(default=["fp32"])
    preload: list[str] = Field(default_factory=list)
    without_dependencies: list[str] = Field(default_factory=list)
    requirements: dict[str, str]
    bindings: BindingsTable | None = None
    indexes: list[IndexTable] = Field(default_factory=list)
    end_of_life: EndOfLifeTable | None = None
    plugins: list[BackendTable] = Field(default_factory=list)
    resolved_conflicts: dict[str, str] = Field(default_factory=dict)
    sources: dict[str, str]


def stack_names() -> list[str]:
    return sorted(path.stem for path in STACKS.glob("*.toml"))


def all_stacks() -> tuple[Stack, ...]:
    """Return all stacks: `current` first, then from the newest torch to the oldest."""
    return tuple(sorted(map(stack, stack_names()), key=age, reverse=True))


def age(stack: Stack) -> tuple[bool, list[int]]:
    return stack.name == "current", [int(part) for part in stack.torch.split(".")]


def stack(name: str) -> Stack:
    """Load a stack.

    Raises:
        RequestError: if there is no such stack.
    """
    if name not in stack_names():
        raise RequestError(f"There is no stack '{name}'.", hint=did_you_mean(name, stack_names(), listing=LISTING))
    return stack_from(STACKS / f"{name}.toml")


def stack_from(path: Path) -> Stack:
    """Load a stack file.

    Raises:
        RequestError: naming the file, the line and the key that is wrong.
    """
    file = read_toml(path, StackFile)
    bindings = Bindings(**file.bindings.model_dump()) if file.bindings else None
    with_bindings = {BINDINGS: bindings.version} if bindings and "ccl" in file.backends else {}
    end = EndOfLife(**file.end_of_life.model_dump()) if file.end_of_life else None
    return Stack(
        name=path.stem,
        summary=file.summary,
        python=file.python,
        mpi=file.mpi,
        backends=tuple(file.backends),
        requirements={**file.requirements, **with_bindings},
        without_dependencies=tuple(file.without_dependencies),
        preload=tuple(file.preload),
        flags=tuple(file.flags),
        ipex_precisions=tuple(file.ipex_precisions),
        bindings=bindings,
        indexes=tuple(Index(**{**table.model_dump(), "serves": tuple(table.serves)}) for table in file.indexes),
        end_of_life=end,
        sources=file.sources,
        resolved_conflicts=file.resolved_conflicts,
        plugins=tuple(table.backend(f"stack '{path.stem}'") for table in file.plugins),
    )
