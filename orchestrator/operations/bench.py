"""Measure the nodes of a cluster, their links, collectives and a training step: several short runs of one recipe."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path

from orch_node.protocol import values
from orch_node.protocol.events import Event, event_fields, event_name
from orch_node.protocol.outcome import DONE
from orch_node.protocol.record import RunRecord
from orch_node.protocol.values import ProtocolError

from orchestrator import load
from orchestrator.errors import ExecuteError, OrchError, PlanError
from orchestrator.load.records import write_measurement
from orchestrator.model.cluster import Cluster
from orchestrator.model.hostlist import NodePattern, fold
from orchestrator.model.layout import Layout
from orchestrator.model.measurement import (
    ClosedPort,
    LinkRate,
    Measurement,
    NodeRates,
    RankRates,
    RunRates,
    merge_ranks,
)
from orchestrator.model.printable import counted, one_line
from orchestrator.model.slowness import BUSY_PART
from orchestrator.operations import train
from orchestrator.operations.output import describe_end
from orchestrator.paths import STANDALONE
from orchestrator.planning.measured import BENCH_RECIPE
from orchestrator.planning.plan import Plan
from orchestrator.planning.request import TrainRequest
from orchestrator.planning.run_files import master_port
from orchestrator.runs import store
from orchestrator.targets import registry

MAX_SECONDS = 240.0  # after which no further run is started
MEASURED_BACKENDS = ("gloo", "ccl")
MIN_CORES, MAX_SPLITS = 2, 4  # of each rank, for other numbers of ranks than the default; numbers of ranks to try
COLLECTIVES = "collectives"  # the preset of the recipe for all runs but the first, which measures everything
# Within these seconds, and more for each node, the program that checks ports starts on all nodes.
PORT_SECONDS, PORT_SECONDS_OF_NODE = 15.0, 0.25
HIGH_PORT = 45_000  # among the ephemeral ports of Linux
Notify = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """The values of the events of one run."""

    ranks: dict[int, RankRates] = field(default_factory=dict)
    links: list[tuple[int, LinkEvent]] = field(default_factory=list)
    reductions: dict[str, float] = field(default_factory=dict)
    steps: list[StepEvent] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkEvent:
    """The links of one node: its peers' first ranks, Gbit/s from each to this node, and microseconds or 0."""

    peers: tuple[int, ...]
    gbit: tuple[float, ...]
    microseconds: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReduceEvent:
    """The microseconds of an all-reduce by the bytes of its message."""

    microseconds: dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepEvent:
    """The samples per second of a training step."""

    samples: float
    threads: int
    precision: str


def measure(request: TrainRequest, notify: Notify) -> tuple[Measurement, Path]:
    """Measure the nodes that a request selects, and store the results with the facts of their cluster.

    Args:
        request: a request for the recipe; --ppn and --backend restrict what is measured.
        notify: called with a line about each run.

    Returns:
        The measurement, and the folder of its first run.

    Raises:
        OrchError: if nothing can be measured.
    """
    began = time.monotonic()
    plans = list(usable_plans(request, notify))
    first = plans[0]
    measurement = Measurement(
        date=time.strftime("%Y-%m-%d"), stack=request.stack, fingerprint=common_fingerprint(first)
    )
    cluster = ssh_cluster(request)
    if cluster and len(first.layout.nodes) > 1:
        notify("bench: the ports that runs use, between all pairs of nodes")
        measurement = replace(measurement, closed_ports=closed_ports(request, cluster, first, notify))
    folder = Path(request.runs_dir).absolute() / first.run.run_id
    if measurement.closed_ports:
        return measurement, folder  # runs would wait for connections in vain
    plans += list(further_plans(request, plans, cluster))
    for number, plan in enumerate(plans, start=1):
        if number > len(MEASURED_BACKENDS) and time.monotonic() - began > MAX_SECONDS:
            notify(f"bench: {len(plans) - number + 1} of {len(plans)} runs are left out, because the time is over")
            break
        notify(f"bench: {number} of {len(plans)}: {describe(plan)}")
        measurement = add_run(measurement, plan, *execute(plan, folder.parent, notify, is_first=plan is first))
    busy = [node.node for node in measurement.nodes if node.rates.used_by_others > BUSY_PART * node.cores]
    if busy:
        notify(
            f"bench: later runs do not follow this measurement, because other programs used the cores of {fold(busy)}"
        )
    elif file := first.target.measurement_file(first.origin.request):  # a plug-in has replaced the inventory
        write_measurement(file, measurement)
    return measurement, folder


def ssh_cluster(request: TrainRequest) -> Cluster | None:
    """Return the cluster of the request's inventory; None if a batch system or Kubernetes chooses the nodes."""
    if request.on:
        return None
    return load.cluster(request.inventory, request.stack, nodes=request.nodes, exclude=request.exclude)


def usable_plans(request: TrainRequest, notify: Notify) -> Iterator[Plan]:
    """Yield the plan of a run on each backend that the nodes can use; the first measures the nodes and links, too.

    Raises:
        PlanError: if they can use none.
    """
    problem: OrchError | None = None
    preset = None
    for name in backends_of(request):
        try:
            plan = train.plan(replace(request, backend=name, preset=preset))
        except PlanError as error:
            problem = problem or error
            notify(f"bench: without {name}: {error.message}")
            continue
        yield plan
        if plan.layout.world_size == 1:  # which needs no backend
            return
        preset = COLLECTIVES
    if problem and preset is None:
        raise problem


def further_plans(request: TrainRequest, plans: Sequence[Plan], cluster: Cluster | None) -> Iterator[Plan]:
    """Yield plans with other fabrics and other numbers of ranks, as far as the nodes are known."""
    if cluster is None:
        return
    proved = [node.facts.proved for node in cluster.selected_nodes()]
    fabrics = [name for name in proved[0] if all(facts.get(name) and facts[name].together for facts in proved)]
    for plan in plans:
        if plan.run.backend == "ccl" and request.fabric is None and len(proved) > 1:
            for fabric in fabrics:
                yield train.plan(replace(request, preset=COLLECTIVES, backend="ccl", fabric=fabric))
    if request.ppn is None:
        layout = plans[0].layout
        ppn = ranks_per_node(layout)
        cores = sum(rank_place.threads for rank_place in layout.by_node()[layout.nodes[0]])
        splits = [ppn << power for power in range(1, MAX_SPLITS) if cores // (ppn << power) >= MIN_CORES]
        for split, backend in product(splits, backends_of(request)):
            with suppress(PlanError):  # a node has fewer cores, or lacks the backend
                yield train.plan(replace(request, preset=COLLECTIVES, backend=backend, ppn=split))


def backends_of(request: TrainRequest) -> list[str]:
    """Return the backends to measure: the requested one, or those of the stack."""
    if request.backend:
        return [request.backend]
    return [name for name in MEASURED_BACKENDS if name in load.stack(request.stack).backends]


def ranks_per_node(layout: Layout) -> int:
    return layout.rank_places[0].local_world_size


def common_fingerprint(plan: Plan) -> str:
    """Return the fingerprint of the packages of all nodes, or an empty text if they differ."""
    fingerprints = list(plan.origin.fingerprints)
    return fingerprints[0] if len(fingerprints) == 1 else ""


def describe(plan: Plan) -> str:
    """Return what a run measures."""
    request = plan.origin.request
    fabric = f" over {request.fabric}" if request.fabric else ""
    parts = "all-reduce and step" if request.preset == COLLECTIVES else "nodes, links, all-reduce and step"
    return f"{plan.run.backend}{fabric}, {counted(ranks_per_node(plan.layout), 'rank')} per node: {parts}"


def execute(plan: Plan, base: Path, notify: Notify, *, is_first: bool) -> tuple[Figures, RunRecord]:
    """Run a plan to its end and return its figures, and the record with the nodes that it had.

    Raises:
        ExecuteError: if the first run fails; others are left out.
    """
    handle = train.start(plan, base / plan.run.run_id)
    handle.notify = notify
    try:
        figures = read_figures(handle.events(), notify)
    except KeyboardInterrupt:
        handle.stop()
        raise
    outcome = handle.finish()
    if outcome.state != DONE:
        problem, hint = describe_end(outcome), f"Its output: orch logs {outcome.run_id}."
        if is_first:
            hints = " ".join(explanation.hint for explanation in outcome.explanations)
            raise ExecuteError(problem, hint=f"{hints} {hint}".strip())
        notify(f"bench: {problem}. {hint}")
    return figures, store.load(handle.folder).record


def read_figures(events: Iterator[Event], notify: Notify) -> Figures:
    """Return the figures that the ranks of a run report until it ends, and notify of those that are invalid."""
    figures = Figures()
    for event in events:
        fields = event_fields(event)
        if event_name(event) != BENCH_RECIPE:
            continue
        part = fields.pop("part", "")
        try:
            if part == "rank":
                figures.ranks[event.rank] = values.read(RankRates, fields, "rates")
            elif part == "links":
                figures.links.append((event.rank, values.read(LinkEvent, fields, "links")))
            elif part == "reduce":
                figures.reductions.update(values.read(ReduceEvent, fields, "durations").microseconds)
            elif part == "step":
                figures.steps.append(values.read(StepEvent, fields, "step"))
        except ProtocolError as error:
            problem = one_line(str(error))
            notify(f"bench: a figure of rank {event.rank} is left out, `orch sync` updates the nodes: {problem}")
    return figures


def add_run(measurement: Measurement, plan: Plan, figures: Figures, record: RunRecord) -> Measurement:
    """Return the measurement with the figures of a run."""
    node_of = {rank_place.rank: rank_place.node for rank_place in record.layout}
    threads_of = {rank_place.rank: rank_place.threads for rank_place in record.layout}
    step = figures.steps[-1] if figures.steps else StepEvent(samples=0.0, threads=0, precision="")
    run = RunRates(
        run=record.run_id,
        backend=record.backend,
        fabric=plan.origin.request.fabric or "",
        ppn=ranks_per_node(plan.layout),
        threads=step.threads,
        precision=step.precision,
        samples=step.samples,
        reductions=figures.reductions,
    )
    ranks_of: dict[str, list[int]] = {}
    for rank in sorted(figures.ranks.keys() & node_of.keys()):
        ranks_of.setdefault(node_of[rank], []).append(rank)
    nodes = tuple(
        NodeRates(
            node=name,
            cores=sum(threads_of[rank] or max(step.threads, 1) for rank in ranks),  # 0 if the batch system decides
            rates=merge_ranks(figures.ranks[rank] for rank in ranks),
        )
        for name, ranks in ranks_of.items()
    )
    return replace(
        measurement,
        nodes=measurement.nodes or nodes,
        links=measurement.links or tuple(link_rates(figures.links, node_of)),
        runs=(*measurement.runs, run),
    )


def link_rates(events: Sequence[tuple[int, LinkEvent]], node_of: dict[int, str]) -> Iterator[LinkRate]:
    """Yield the rate of each link in both directions; one of its ends reports the latency."""
    rows = [
        (peer, rank, gbit, latency)
        for rank, event in events
        for peer, gbit, latency in zip(event.peers, event.gbit, event.microseconds, strict=False)
        if peer in node_of and rank in node_of
    ]
    latencies = {frozenset((peer, rank)): latency for peer, rank, _, latency in rows if latency}
    for peer, rank, gbit, _ in sorted(rows):
        latency = latencies.get(frozenset((peer, rank)), 0.0)
        yield LinkRate(source=node_of[peer], destination=node_of[rank], gbit=gbit, microseconds=latency)


def closed_ports(request: TrainRequest, cluster: Cluster, plan: Plan, notify: Notify) -> tuple[ClosedPort, ...]:
    """Return the ports that a node cannot reach on another: one where ranks meet, and one of MPI and collectives."""
    nodes = {node.address: node.name for node in cluster.selected_nodes()}
    ports = (master_port(plan.run.run_id), HIGH_PORT + master_port(plan.run.run_id) % 10_000)
    seconds = PORT_SECONDS + PORT_SECONDS_OF_NODE * len(nodes)
    program = ("python", "-c", (STANDALONE / "ports.py").read_text(), str(seconds), ",".join(map(str, ports)), *nodes)
    commands = registry.target_at(request.inventory).commands(
        request.inventory, NodePattern(",".join(nodes.values())), request.stack
    )
    output: dict[str, bytearray] = {name: bytearray() for name in commands.nodes}

    def receive(node: str, stream: int, part: bytes) -> None:
        if stream == 1 and len(output[node]) < 1 << 20:
            output[node].extend(part)

    ends = commands.run(program, receive)
    if failed := [end.node for end in ends if end.code != 0]:
        notify(f"bench: the ports were not checked, because {fold(failed)} cannot run the check")
        return ()
    closed = []
    for text in output.values():
        for line in text.splitlines():
            with suppress(ProtocolError):
                closed.append(values.parse(ClosedPort, bytes(line), "a closed port"))
    return tuple(
        replace(port, source=nodes[port.source], destination=nodes[port.destination])
        for port in closed
        if port.source in nodes and port.destination in nodes
    )
