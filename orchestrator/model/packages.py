"""The user's Python packages, which ranks have in addition to those of the stack, and their platform."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from orchestrator.model.decision import Decision

MAX_NAMED_PACKAGES = 4  # in a decision


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirements:
    """The packages that a script, a project or a file requires.

    Attributes:
        source: the file that names them.
        lines: the lines of a requirements file, without comments.
        constraints: the lines of constraint files.
        preferred: versions of a lock, as NAME==VERSION, that are used if they fit the stack.
        python: the versions of Python that are supported, such as >=3.11; empty for all.
        uv_sources: the names of packages that have a source in [tool.uv.sources], with the file that has the table.
    """

    source: str
    lines: tuple[str, ...]
    constraints: tuple[str, ...] = ()
    preferred: tuple[str, ...] = ()
    python: str = ""
    uv_sources: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Packages:
    """A folder of installed packages that the stack does not have.

    Attributes:
        source: the file that requires them.
        digest: a hash of their versions, their contents and the platform, hexadecimal.
        folder: the folder on this machine, an absolute path.
        versions: the version of each package.
    """

    source: str
    digest: str
    folder: str
    versions: dict[str, str] = field(default_factory=dict)

    def decision(self) -> Decision:
        """Return the decision that names the packages and where they are required."""
        value = f"{describe_versions(self.versions)}, {self.digest[:12]}"
        return Decision("packages", value, f"{self.source}; --requirements none adds only those of --with")


def describe_versions(versions: Mapping[str, str]) -> str:
    """Return the first packages with their versions, and the number of all others."""
    first = [f"{name} {version}" for name, version in sorted(versions.items())[:MAX_NAMED_PACKAGES]]
    more = len(versions) - len(first)
    return ", ".join([*first, *([f"{more} more"] if more else [])])


@dataclass(frozen=True, slots=True, kw_only=True)
class Platform:
    """A version of CPython on Linux, with the machine and the C library."""

    python: str  # version of CPython, such as 3.11
    machine: str  # such as x86_64
    libc: str  # version of glibc

    @property
    def key(self) -> str:
        """Return a name for files, such as cp311-x86_64-glibc2.36."""
        return f"cp{self.python.replace('.', '')}-{self.machine}-glibc{self.libc}"

    @property
    def markers(self) -> dict[str, str]:
        """Return the variables of environment markers (PEP 508) on this platform."""
        return {
            "python_version": self.python,
            "python_full_version": f"{self.python}.0",
            "platform_machine": self.machine,
            "sys_platform": "linux",
            "platform_system": "Linux",
            "os_name": "posix",
            "implementation_name": "cpython",
            "platform_python_implementation": "CPython",
        }
