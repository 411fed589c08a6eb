"""An environment as it was found: packages, and what a shell would give to ranks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from packaging.version import InvalidVersion, Version

from orchestrator.stacks.matrix import XPU_ONLY_BINDINGS


@dataclass(frozen=True, slots=True, kw_only=True)
class Shell:
    """What ranks started by hand would find: variables, and the paths of mpirun and libmpi."""

    variables: Mapping[str, str]
    mpirun: str | None
    libmpi: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """The packages beside an interpreter; `shell` where ranks are started without orch."""

    name: str
    python: str
    packages: Mapping[str, str]
    shell: Shell | None = None

    def version(self, package: str) -> Version | None:
        """None also for what is no version (an unpacked source tree)."""
        try:
            return Version(self.packages[package])
        except (KeyError, InvalidVersion):
            return None


def is_ours(bindings: Version) -> bool:
    """Built from bindings/ of this repository: 2.13.0+orch.10."""
    return (bindings.local or "").startswith("orch")


def gpu_wheel(bindings: Version) -> bool:
    """Also where the name does not say so: some numbers were given to GPU wheels alone."""
    if bindings.local == "cpu" or is_ours(bindings):
        return False
    return bindings.local in ("xpu", "gpu") or bindings.public in XPU_ONLY_BINDINGS
