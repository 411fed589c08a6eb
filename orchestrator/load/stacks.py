"""Loads stacks from orchestrator/stacks/data/*.toml."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Literal

from pydantic import Field

from orchestrator.errors import RequestError, did_you_mean
from orchestrator.load.backends import BackendTable
from orchestrator.load.files import StrictModel, read_toml
from orchestrator.paths import STACKS
from orchestrator.stacks.stack import BINDINGS, Bindings, EndOfLife, Index, Stack

LISTING = "`orch stacks` lists them; the default is current."


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
    settled: dict[str, str] = Field(default_factory=dict)
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
        settled=file.settled,
        plugins=tuple(table.backend(f"stack '{path.stem}'") for table in file.plugins),
    )
