"""Installed packages, and the variables and programs that a shell would pass to ranks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from packaging.version import InvalidVersion, Version

from orchestrator.stacks.matrix import XPU_ONLY_BINDINGS


@dataclass(frozen=True, slots=True, kw_only=True)
class Shell:
    """The part of a shell's environment that ranks started by hand inherit."""

    variables: Mapping[str, str]
    mpirun: str | None  # path
    libmpi: str | None  # path


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """The packages that an interpreter can import."""

    name: str
    python: str  # version
    packages: Mapping[str, str]  # distribution -> version
    shell: Shell | None = None  # if ranks are started without orch
    for_gpus: bool = False  # whether ranks may use GPUs

    def version(self, package: str) -> Version | None:
        """Return a package's version, None if it is missing or has none (an unpacked source tree)."""
        try:
            return Version(self.packages[package])
        except (KeyError, InvalidVersion):
            return None


def built_by_orch(bindings: Version) -> bool:
    """Return whether these bindings were built from bindings/ of this repository (2.13.0+orch.10)."""
    return (bindings.local or "").startswith("orch")


def is_gpu_wheel(bindings: Version) -> bool:
    """Return whether these bindings are a GPU wheel; some versions exist as such without a local part."""
    if bindings.local == "cpu" or built_by_orch(bindings):
        return False
    return bindings.local in ("xpu", "gpu") or bindings.public in XPU_ONLY_BINDINGS
