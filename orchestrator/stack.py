"""A stack: a named, locked set of versions that fit together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from orchestrator.cluster import Node
from orchestrator.errors import PlanError, did_you_mean


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """`requirements`: distribution -> exact version; `without_dependencies` of those alone."""

    name: str
    summary: str
    python: str
    mpi: str
    backends: tuple[str, ...]
    requirements: Mapping[str, str]
    without_dependencies: tuple[str, ...]
    preload: tuple[str, ...]

    def backend(self, asked: str | None) -> str:
        """The backend to use: the one asked for, or the stack's first. Raises PlanError."""
        if asked is None:
            return self.backends[0]
        if asked not in self.backends:
            raise PlanError(
                f"--backend {asked}: stack '{self.name}' has {' and '.join(self.backends)}.",
                hint=did_you_mean(asked, self.backends),
            )
        return asked

    def check(self, node: Node) -> None:
        """Raises PlanError that lists what the node lacks or has in another version."""
        wrong = [
            f"{name} is {node.facts.packages.get(name, 'missing')}, should be {version}"
            for name, version in self.requirements.items()
            if not same_version(node.facts.packages.get(name), version)
        ]
        if wrong:
            raise PlanError(
                f"{node.name} does not have stack '{self.name}': {'; '.join(wrong)}.",
                hint=f"Looked at {node.python}. `make setup` installs the stack on this machine.",
            )


def same_version(found: str | None, wanted: str) -> bool:
    """PEP 440's rule for `==`: a local part (+cpu) counts only where it is asked for."""
    if found is None:
        return False
    return found == wanted if "+" in wanted else found.partition("+")[0] == wanted
