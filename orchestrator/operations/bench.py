"""Measure the nodes of a cluster, their links, collectives and a training step: several short runs of one recipe."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import product
from operator import attrgetter, itemgetter
from pathlib import Path

from orch_node.protocol import values
from orch_node.protocol.events import Event, event_fields, event_name
from orch_node.protocol.outcome import DONE
from orch_node.protocol.record import RunRecord

from orchestrator import load
from orchestrator.errors import ExecuteError, PlanError
from orchestrator.files import STANDALONE
from orchestrator.load.records import write_measurement
from orchestrator.model.cluster import Cluster
from orchestrator.model.hosts import fold
from orchestrator.model.measurement import BUSY_PART, ClosedPort, LinkRate, Measurement, NodeRates, RankRates, RunRates
from orchestrator.model.printable import counted, one_line
from orchestrator.operations import runs, train
from orchestrator.operations.output import describe_end
from orchestrator.planning.measured import BENCH_RECIPE
from orchestrator.planning.plan import Plan
from orchestrator.planning.request import TrainRequest
from orchestrator.planning.run_files import master_port
from orchestrator.runs import store
from orchestrator.targets import registry
from orchestrator.targets.interface import Notify

MAX_SECONDS = 240.0  # after which no further run is started
MEASURED_BACKENDS = ("gloo", "ccl")
MIN_CORES, MAX_SPLITS = 2, 4  # of each rank, for other numbers of ranks than the default; numbers of ranks to try
COLLECTIVES = "collectives"  # the preset of the recipe for all runs but the first, which measures everything
# Within these seconds, and more for each node, the program that checks ports starts on all nodes.
PORT_SECONDS, PORT_SECONDS_OF_NODE = 15.0, 0.25
HIGH_PORT = 45_000  # among the ephemeral ports of Linux


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkRow:
    """A link of a node: the peer's first rank, Gbit/s from it to this node, and the latency in microseconds."""

    peer: int
    gbit: float
    microseconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkFigures:
    """The links of one node."""

    rows: tuple[LinkRow, ...]


PARTS = {"rank": RankRates, "links": LinkFigures, "run": RunRates}
Figures = list[tuple[int, RankRates | LinkFigures | RunRates]]  # with the rank that reports them


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
    plans = usable_plans(request, notify)
    first = plans[0]
    # Packages may differ between nodes.
    fingerprint = next(iter(first.fingerprints)) if len(first.fingerprints) == 1 else ""
    measurement = Measurement(date=time.strftime("%Y-%m-%d"), stack=request.stack, fingerprint=fingerprint)
    cluster = None  # a batch system or Kubernetes chooses the nodes
    if not request.on:
        cluster = load.cluster(request.inventory, request.stack, nodes=request.nodes, exclude=request.exclude)
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
        reason = f"because other programs used the cores of {fold(busy)}"
        notify(f"bench: later runs do not follow this measurement, {reason}")
    elif file := first.target.measurement_file(first.request):  # a plug-in has replaced the inventory
        write_measurement(file, measurement)
    return measurement, folder


def usable_plans(request: TrainRequest, notify: Notify) -> list[Plan]:
    """Return the plan of a run on each backend that the nodes can use; the first measures the nodes and links, too.

    Raises:
        PlanError: if they can use none.
    """
    plans: list[Plan] = []
    problems: list[PlanError] = []
    for name in backends_of(request):
        try:
            plans.append(train.plan(replace(request, backend=name, preset=COLLECTIVES if plans else None)))
        except PlanError as error:
            problems.append(error)
            notify(f"bench: without {name}: {error.message}")
        if plans and plans[0].layout.world_size == 1:  # which needs no backend
            break
    if not plans:
        raise problems[0]
    return plans


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
        layout, ppn = plans[0].layout, ranks_per_node(plans[0])
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


def ranks_per_node(plan: Plan) -> int:
    return plan.layout.rank_places[0].local_world_size


def describe(plan: Plan) -> str:
    """Return what a run measures."""
    request = plan.request
    fabric = f" over {request.fabric}" if request.fabric else ""
    parts = "all-reduce and step" if request.preset == COLLECTIVES else "nodes, links, all-reduce and step"
    return f"{plan.run.backend}{fabric}, {counted(ranks_per_node(plan), 'rank')} per node: {parts}"


def execute(plan: Plan, base: Path, notify: Notify, *, is_first: bool) -> tuple[Figures, RunRecord]:
    """Run a plan to its end and return its figures, and the record with the nodes that it had.

    Raises:
        ExecuteError: if the first run fails; others are left out.
    """
    try:
        handle = train.start(plan, base)
        handle.notify = notify
        figures = read_figures(handle.events(), notify)
    except KeyboardInterrupt:
        for started in runs.handles_of(plan, base, notify):
            started.stop()
        raise
    outcome = handle.finish()
    if outcome.state != DONE:
        hints = [explanation.hint for explanation in outcome.explanations if is_first]
        hints.append(f"Its output: orch logs {store.cli_arguments(outcome.folder)}.")
        error = ExecuteError(describe_end(outcome), hint=" ".join(hints))
        if is_first:
            raise error
        notify(f"bench: {error.message}. {error.hint}")
    return figures, store.load(handle.folder).record


def read_figures(events: Iterator[Event], notify: Notify) -> Figures:
    """Return the figures that the ranks of a run report until it ends, and notify of those that are invalid."""
    figures: Figures = []
    for event in events:
        fields = event_fields(event)
        kind = PARTS.get(str(fields.pop("part", "")))
        if event_name(event) != BENCH_RECIPE or kind is None:
            continue
        try:
            figures.append((event.rank, values.read(kind, fields, "figures")))
        except values.ProtocolError as error:
            problem = one_line(str(error))
            notify(f"bench: a figure of rank {event.rank} is left out, `orch sync` updates the nodes: {problem}")
    return figures


def add_run(measurement: Measurement, plan: Plan, figures: Figures, record: RunRecord) -> Measurement:
    """Return the measurement with the figures of a run."""
    placements = {rank_place.rank: rank_place for rank_place in record.layout}
    reported = [(placements[rank], part) for rank, part in sorted(figures, key=itemgetter(0)) if rank in placements]
    run = next((part for _, part in reported if isinstance(part, RunRates)), RunRates())
    fabric, ppn = plan.request.fabric or "", ranks_per_node(plan)
    run = replace(run, run=record.run_id, backend=record.backend, fabric=fabric, ppn=ppn)
    ranks: dict[str, list[RankRates]] = {}
    cores: Counter[str] = Counter()
    links: list[LinkRate] = []
    for rank_place, part in reported:
        if isinstance(part, RankRates):
            ranks.setdefault(rank_place.node, []).append(part)
            cores[rank_place.node] += rank_place.threads or max(run.threads, 1)  # 0: the batch system decides
        elif isinstance(part, LinkFigures):
            for row in (row for row in part.rows if row.peer in placements):
                ends = {"source": placements[row.peer].node, "destination": rank_place.node}
                links.append(LinkRate(**ends, gbit=row.gbit, microseconds=row.microseconds))
    nodes = (NodeRates(node=node, cores=cores[node], rates=RankRates.of_node(parts)) for node, parts in ranks.items())
    return replace(
        measurement,
        nodes=measurement.nodes or tuple(nodes),
        links=measurement.links or tuple(sorted(links, key=attrgetter("source", "destination"))),
        runs=(*measurement.runs, run),
    )


def closed_ports(request: TrainRequest, cluster: Cluster, plan: Plan, notify: Notify) -> tuple[ClosedPort, ...]:
    """Return the ports that a node cannot reach on another: one where ranks meet, and one of MPI and collectives."""
    nodes = {node.address: node.name for node in cluster.selected_nodes()}
    ports = (master_port(plan.run.run_id), HIGH_PORT + master_port(plan.run.run_id) % 10_000)
    seconds = PORT_SECONDS + PORT_SECONDS_OF_NODE * len(nodes)
    program = ("python", "-c", (STANDALONE / "ports.py").read_text(), str(seconds), ",".join(map(str, ports)), *nodes)
    commands = registry.target_at(request.inventory).commands(
        request.inventory, ",".join(nodes.values()), request.stack
    )
    output: dict[str, bytearray] = {name: bytearray() for name in commands.nodes}

    def receive(node: str, stream: int, part: bytes) -> None:
        if stream == 1 and len(output[node]) < 1 << 20:
            output[node].extend(part)

    if failed := [node for node, end in commands.run(program, receive).items() if end != 0]:
        notify(f"bench: the ports were not checked, because {fold(failed)} cannot run the check")
        return ()
    closed = []
    for text in output.values():
        for line in text.splitlines():
            with suppress(values.ProtocolError):
                closed.append(values.parse(ClosedPort, bytes(line), "a closed port"))
    return tuple(
        replace(port, source=nodes[port.source], destination=nodes[port.destination])
        for port in closed
        if port.source in nodes and port.destination in nodes
    )
