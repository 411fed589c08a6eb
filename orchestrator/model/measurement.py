"""What `orch bench` has measured: the rates of nodes, links and training steps, and which of them are slow."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from statistics import median_high, median_low

from orchestrator.model.printable import counted, one_line


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

    @classmethod
    def of_node(cls, ranks: Sequence[RankRates]) -> RankRates:
        """Return the rates of a node from those of its ranks."""
        sums = {
            name: sum(getattr(rank, name) for rank in ranks) for name in ("fp32", "bf16", "memory", "used_by_others")
        }
        means = {name: sum(getattr(rank, name) for rank in ranks) / len(ranks) for name in ("cpu", "megahertz")}
        return replace(ranks[0], **sums, **means)


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
    """The rates of collectives and of a training step in one run; rank 0 reports those below `ppn`.

    Attributes:
        run: the id of the run.
        fabric: the fabric that was requested; empty for the default.
        ppn: ranks per node.
        threads: the threads of each rank.
        samples: the samples per second of the step; 0 if it was not measured.
        reductions: the microseconds of an all-reduce, by the size of the message in bytes.
    """

    run: str = ""
    backend: str = ""
    fabric: str = ""
    ppn: int = 0
    threads: int = 0
    precision: str = ""
    samples: float = 0.0
    reductions: dict[str, float] = field(default_factory=dict)

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


# Parts of the median below which a node, the frequency of its cores and a link count as slow. Links differ more,
# because pairs of nodes share switches while they are measured.
SLOW_NODE, SLOW_FREQUENCY, SLOW_LINK = 0.85, 0.9, 0.5
SLOW_END = 0.25  # applied to what is expected of the links of slow nodes
FULL_SHARE = 0.9  # of the cores' time
BUSY_PART = 0.1  # cores that other programs use, per core of the ranks
FIGURES = {"FP32 TFLOP/s": "fp32", "BF16 TFLOP/s": "bf16", "memory GB/s": "memory"}  # of RankRates
SLOW_LATENCY, LATENCY_NOISE = 3.0, 30.0  # times the median, and microseconds above it
# One TCP connection of one core reaches this part of an interface's speed, of at most 10 Gbit/s.
SPEED_SHARE, MAX_SINGLE_GBIT = 0.3, 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Slow:
    """A node or a link that is slow.

    Attributes:
        subject: the name of the node, or the names of the link's nodes.
        figure: what was measured, with its unit.
        value: its value.
        median: the median of all, or 0 without others to compare with.
        cause: the likely cause; empty if it is unknown.
    """

    subject: str
    figure: str
    value: float
    median: float
    cause: str

    def describe(self) -> str:
        """Return the finding as one line."""
        compared = f", {self.value / self.median:.2f} of the median {self.median:.3g}" if self.median else ""
        return f"{self.subject}: {self.figure} {self.value:.3g}{compared}; likely cause: {self.cause or 'unknown'}"


def find_slow(measurement: Measurement) -> tuple[Slow, ...]:
    """Return the slow nodes and links."""
    nodes = tuple(slow_nodes(measurement.nodes))
    return (*nodes, *slow_links(measurement, {node.subject for node in nodes}))


def slow_nodes(nodes: Sequence[NodeRates]) -> Iterator[Slow]:
    """Yield each node with a rate far below the median, or whose ranks do not get all of their cores' time.

    Of two nodes, the faster one counts as the median.
    """
    columns = {name: [getattr(node.rates, field) for node in nodes] for name, field in FIGURES.items()}
    medians = {name: median_high(column) if len(nodes) > 1 else 0.0 for name, column in columns.items()}
    for index, node in enumerate(nodes):
        rates = [(column[index], medians[name], name) for name, column in columns.items() if medians[name]]
        rate, middle, name = min(rates, key=lambda row: row[0] / row[1], default=(1.0, 1.0, ""))
        cause = cause_of_node(node, nodes)
        if rate < SLOW_NODE * middle:
            yield Slow(subject=node.node, figure=name, value=rate, median=middle, cause=cause)
        elif is_limited(node) or node.rates.cpu < FULL_SHARE:
            yield Slow(subject=node.node, figure="FP32 TFLOP/s", value=node.rates.fp32, median=0.0, cause=cause)


def is_limited(node: NodeRates) -> bool:
    return 0 < node.rates.quota < node.cores


def cause_of_node(node: NodeRates, nodes: Sequence[NodeRates]) -> str:
    """Return why a node is slower than others."""
    rates, causes = node.rates, []
    if is_limited(node):
        limit = f"{rates.quota:g} of {counted(node.cores, 'core')}"
        causes.append(f"its cgroup limits it to the time of {limit} (CPU quota)")
    elif rates.cpu < FULL_SHARE:
        causes.append(f"its ranks got {rates.cpu:.0%} of the time of their {counted(node.cores, 'core')}")
        if rates.used_by_others > BUSY_PART * node.cores:
            causes.append(f"other programs used {rates.used_by_others:.1f} of them")
    counts = Counter(flag for peer in nodes for flag in peer.rates.flags)
    if missing := sorted(flag for flag in counts.keys() - {*rates.flags} if 2 * counts[flag] >= len(nodes)):
        causes.append(f"its CPU lacks {', '.join(map(one_line, missing))}")
    frequency = median_high(peer.rates.megahertz for peer in nodes)
    if rates.megahertz < SLOW_FREQUENCY * frequency:
        causes.append(f"its cores run at {rates.megahertz:.0f} MHz, not at {frequency:.0f}")
    cores = median_high(peer.cores for peer in nodes)
    if node.cores < cores:
        causes.append(f"it has {counted(node.cores, 'core')}, not {cores}")
    return "; ".join(causes)


def slow_links(measurement: Measurement, slow_names: set[str]) -> Iterator[Slow]:
    """Yield each direction of a link that is slow, or that does not work."""
    links = measurement.links
    if not links:
        return
    nodes = {node.node: node for node in measurement.nodes}
    middle = median_high(link.gbit for link in links)
    latency = median_low(link.microseconds for link in links)
    limit = SLOW_LATENCY * latency + LATENCY_NOISE
    for link in links:
        subject, names = f"{link.source} to {link.destination}", (link.source, link.destination)
        ends = [nodes[name] for name in names if name in nodes]
        cause = cause_of_link(link, ends, measurement)
        slow_end = not slow_names.isdisjoint(names)
        # A node that gets half of its cores' time also sends more slowly.
        allowed = SLOW_END if slow_end else 1.0
        if link.gbit < allowed * max(SLOW_LINK * middle, expected_gbit(ends)):
            yield Slow(subject=subject, figure="Gbit/s", value=link.gbit, median=middle, cause=cause)
        elif link.microseconds > limit and not slow_end and link.source < link.destination:
            yield Slow(subject=subject, figure="microseconds", value=link.microseconds, median=latency, cause=cause)


def expected_gbit(ends: Sequence[NodeRates]) -> float:
    """Return what a connection reaches at least by the speed of its interfaces; 0 if that is unknown."""
    speeds = [end.rates.speed / 1000 for end in ends]
    return SPEED_SHARE * min(*speeds, MAX_SINGLE_GBIT) if len(speeds) > 1 else 0.0


def cause_of_link(link: LinkRate, ends: Sequence[NodeRates], measurement: Measurement) -> str:
    """Return why a link is slower than others."""
    speed = median_high([node.rates.speed for node in measurement.nodes] or [0])
    causes = []
    for end in ends:
        rates, name = end.rates, one_line(end.rates.interface)
        if 0 < rates.speed < speed:
            causes.append(f"{name} of {end.node} has {rates.speed / 1000:g} Gbit/s, not {speed / 1000:g}")
        if rates.faster:
            causes.append(f"{end.node} has a faster interface, {one_line(rates.faster)}: orch_address selects it")
    if not causes and expected_gbit(ends):
        share = link.gbit / min(end.rates.speed / 1000 for end in ends)
        causes.append(f"{share:.1%} of the speed of the interfaces: traffic shaping, a bad cable or other traffic")
    return "; ".join(causes)
