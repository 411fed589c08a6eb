"""orchestrator/stacks/*.toml -> Stack."""

from __future__ import annotations

from pydantic import Field

from orchestrator.errors import RequestError, did_you_mean
from orchestrator.load.files import StrictModel, read_toml
from orchestrator.share import STACKS
from orchestrator.stack import Stack


class StackFile(StrictModel):
    """stacks/NAME.toml; the fields mean what orchestrator.stack.Stack says."""

    summary: str
    python: str
    mpi: str
    backends: list[str]
    preload: list[str] = Field(default_factory=list)
    without_dependencies: list[str] = Field(default_factory=list)
    requirements: dict[str, str]


def stack_names() -> list[str]:
    return sorted(path.stem for path in STACKS.glob("*.toml"))


def stack(name: str) -> Stack:
    """Raises RequestError for a name that is not there."""
    if name not in stack_names():
        raise RequestError(f"There is no stack '{name}'.", hint=did_you_mean(name, stack_names()))
    file = read_toml(STACKS / f"{name}.toml", StackFile)
    return Stack(
        name=name,
        summary=file.summary,
        python=file.python,
        mpi=file.mpi,
        backends=tuple(file.backends),
        preload=tuple(file.preload),
        without_dependencies=tuple(file.without_dependencies),
        requirements=file.requirements,
    )
