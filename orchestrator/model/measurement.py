"""What `orch bench` has measured: the rates of nodes, links, collectives and training steps."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class RankRates:
    """The rates of one rank's cores while all ranks of its node compute, and what explains them.

    Attributes:
        fp32: TFLOP/s of matrix products.
        bf16: the same in BF16; 0 on CPUs without its instructions.
        memory: GB/s that copies read and write.
        cpu: the share of its cores' time that the rank got.
        used_by_others: the number of its cores that other programs used.
        quota: the number of cores to which a cgroup limits the node; 0 without a limit.
        megahertz: the frequency of the cores; 0 if it is unknown.
        flags: the CPU flags that planning uses.
        interface: the network interface of runs.
        speed: its speed in Mbit/s; 0 if it is unknown.
        faster: an interface of the node that is faster, if there is one.
    """

    fp32: float
    bf16: float
    memory: float
    cpu: float
    used_by_others: float
    quota: float
    megahertz: float
    flags: tuple[str, ...]
    interface: str
    speed: int
    faster: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRates:
    """The rates of a node: those of its ranks added up, or their mean; and the number of their cores."""

    node: str
    cores: int
    rates: RankRates


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkRate:
    """The bandwidth from one node to another in Gbit/s, and the latency in microseconds."""

    source: str
    destination: str
    gbit: float
    microseconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRates:
    """The rates of collectives and of a training step in one run.

    Attributes:
        run: the id of the run.
        fabric: the fabric that was requested; empty for the default.
        ppn: ranks per node.
        threads: the threads of each rank.
        samples: the samples per second of the step; 0 if it was not measured.
        reductions: the microseconds of an all-reduce, by the size of the message in bytes.
    """

    run: str
    backend: str
    fabric: str
    ppn: int
    threads: int
    precision: str
    samples: float
    reductions: dict[str, float]

    @property
    def ranks(self) -> str:
        """Return the ranks of a node and their cores as text."""
        return f"{self.ppn} rank{'s' * (self.ppn != 1)} of {self.threads} core{'s' * (self.threads != 1)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedPort:
    """A port of a node that another node cannot reach, and the error."""

    source: str
    destination: str
    port: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """The results of one `orch bench`.

    Attributes:
        date: the day, such as 2026-11-26.
        stack: the stack whose packages were used.
        fingerprint: a hash of these packages; empty if they differed between nodes.
    """

    date: str
    stack: str
    fingerprint: str
    nodes: tuple[NodeRates, ...] = ()
    links: tuple[LinkRate, ...] = ()
    runs: tuple[RunRates, ...] = ()
    closed_ports: tuple[ClosedPort, ...] = ()


def merge_ranks(rates: Iterable[RankRates]) -> RankRates:
    """Return the rates of a node from those of its ranks."""
    ranks = list(rates)
    first = ranks[0]
    return replace(
        first,
        **{name: sum(getattr(rank, name) for rank in ranks) for name in ("fp32", "bf16", "memory", "used_by_others")},
        **{name: sum(getattr(rank, name) for rank in ranks) / len(ranks) for name in ("cpu", "megahertz")},
    )
