"""Run pip, and read the lock of a stack: exact versions and hashes of its packages, in stacks/data/locks.

`make locks` writes it with `uv pip compile`, for each stack whose bindings orch builds. It lists every package that
comes from PyPI: the stack's requirements, their dependencies, and the tools that install and build them. It does not
list torch, whose CPU build comes from PyTorch's own index, nor the bindings.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from orchestrator.errors import ExecuteError
from orchestrator.files import STACKS
from orchestrator.load.packages import parse_lock
from orchestrator.model.packages import Platform
from orchestrator.stacks.stack import MPI_WHEELS, TORCH, Stack

LOCKS = STACKS / "locks"
DOWNLOAD_PROBLEM = "pip cannot download the wheels of the stack"


@dataclass(frozen=True, slots=True, kw_only=True)
class LockedPackage:
    """A package version, and the environments that its marker selects."""

    requirement: Requirement
    hashes: tuple[str, ...]  # of its wheels and its sdist, such as sha256:HEXADECIMAL

    @property
    def name(self) -> str:
        """Return the normalized name (PEP 503)."""
        return canonicalize_name(self.requirement.name)

    @property
    def pin(self) -> str:
        """Return the package and its version without the marker, for example `numpy==2.4.6`."""
        return f"{self.requirement.name}{self.requirement.specifier}"

    @property
    def line(self) -> str:
        """Return the line of a requirements file for pip --require-hashes."""
        return " ".join([self.pin, *(f"--hash={digest}" for digest in self.hashes)])


def local_platform() -> Platform:
    """Return the platform of this machine."""
    major_and_minor = ".".join(platform.python_version_tuple()[:2])
    return Platform(python=major_and_minor, machine=platform.machine(), libc=platform.libc_ver()[1])


def locked_packages(stack: Stack, platform: Platform) -> tuple[LockedPackage, ...]:
    """Return the packages of a stack for a platform; none if the stack has no lock."""
    path = LOCKS / f"{stack.name}.txt"
    if not path.exists():
        return ()
    text = path.read_text()
    if text.startswith("-r "):  # the lock of another stack
        text = path.with_name(text.removeprefix("-r ").strip()).read_text()
    packages = [
        LockedPackage(requirement=requirement, hashes=tuple(hashes))
        for requirement, hashes in parse_lock(text)
        if requirement.marker is None or requirement.marker.evaluate({**platform.markers})
    ]
    unused = {name for name in MPI_WHEELS if name not in stack.requirements}
    if TORCH not in stack.requirements:  # MPI alone, whose wheels require no others
        unused = {package.name for package in packages} - {"uv", *stack.requirements}
    return tuple(package for package in packages if package.name not in unused)


def check_hashes(hashes: Mapping[str, str], packages: tuple[LockedPackage, ...]) -> None:
    """Check downloaded files against the lock.

    A later call of pip may replace a verified file: pip trusts the hashes of an index if it has no others.

    Args:
        hashes: the SHA-256 of each wheel, by its name.
        packages: the locked packages.

    Raises:
        ExecuteError: if a wheel of a locked package has another content.
    """
    locked = {package.name: package.hashes for package in packages}
    for file, digest in hashes.items():
        hashes_of_package = locked.get(canonicalize_name(file.partition("-")[0]))
        if hashes_of_package is not None and f"sha256:{digest}" not in hashes_of_package:
            raise ExecuteError.about("wheel-with-another-hash", file=file, digest=digest)


@contextmanager
def pip_options(packages: tuple[LockedPackage, ...]) -> Iterator[tuple[list[str], list[str]]]:
    """Yield pip's options that install the locked packages, and those that constrain other packages to them."""
    with TemporaryDirectory(prefix="orch-lock-") as folder:
        hashed, constraints = Path(folder, "requirements.txt"), Path(folder, "constraints.txt")
        hashed.write_text("".join(f"{package.line}\n" for package in packages))
        constraints.write_text("".join(f"{package.pin}\n" for package in packages))
        yield (["--no-deps", "--require-hashes", "--requirement", str(hashed)], ["--constraint", str(constraints)])


def command(*arguments: str) -> list[str]:
    """Return the command line of pip, for the Python that runs orch."""
    # -I: `python -m pip` would import a pip.py, or a folder pip, of the current folder.
    return [sys.executable, "-I", "-m", "pip", "--disable-pip-version-check", *arguments]


def run_pip(*arguments: str, variables: Mapping[str, str] | None = None, problem: str = DOWNLOAD_PROBLEM) -> None:
    """Run pip.

    Raises:
        ExecuteError: with the errors that pip printed.
    """
    env = os.environ | (variables or {})
    done = subprocess.run(command(*arguments), capture_output=True, text=True, stdin=subprocess.DEVNULL, env=env)
    if done.returncode == 0:
        return
    errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
    reason = " ".join(errors or done.stderr.strip().splitlines()[-3:])
    raise ExecuteError.about("pip", problem=problem, reason=reason)


def index_options(stack: Stack) -> list[str]:
    """Return the options for a stack's indexes, if one of them has packages that no index else has."""
    options = [option for index in stack.indexes for option in (f"--{index.option}", index.url)]
    return options if any(index.only_there for index in stack.indexes) else []


def platform_options(platform: Platform) -> list[str]:
    """Return the options that make pip select what it would select on the nodes."""
    options = ["--only-binary", ":all:", "--implementation", "cp", "--python-version", platform.python]
    for abi in (f"cp{platform.python.replace('.', '')}", "abi3", "none"):
        options += ["--abi", abi]
    return options + [word for tag in platform_tags(platform) for word in ("--platform", tag)]


def platform_tags(platform: Platform) -> Iterator[str]:
    """Yield the platform tags of wheels that run on a platform, the best first (PEP 600).

    `packaging.tags` lists those of this machine's C library only.
    """
    _, _, minor = platform.libc.partition(".")
    for older in range(int(minor), 4, -1):
        yield f"manylinux_2_{older}_{platform.machine}"
        legacy = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}.get(older)
        if legacy:
            yield f"{legacy}_{platform.machine}"
    yield f"linux_{platform.machine}"
