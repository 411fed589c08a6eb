"""Decides the nodes of a run, the interfaces between them, and the ranks on their cores."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from orchestrator.model.cluster import Cluster, Node, describe_gpus
from orchestrator.model.decision import GPUS, Choice, Decision
from orchestrator.model.hostlist import fold
from orchestrator.model.layout import Layout, lay_out, unused_cores
from orchestrator.model.links import Link, links
from orchestrator.model.printable import counted
from orchestrator.model.process_group import Backend
from orchestrator.stacks.stack import TORCH

V = TypeVar("V", int, str)
# Measured on 16 cores of one Xeon with AMX, with the same samples per step of all ranks together, by gloo:
# docs/explanation/performance.md. The number of ranks also decides how many samples a step has, so it stays the user's
# choice. Other machines were not measured.
MEASURED_CORES, MEASURED_FLAG = 16, "amx_bf16"
MEASURED_SPLIT = (
    "4 ranks of 4 cores trained BERT-base in BF16 1.46 times as fast as 1 of 16 on a node of this kind: --ppn 4"
)


def choose_nodes(cluster: Cluster) -> Choice[tuple[Node, ...]]:
    """Return the selected nodes; raise PlanError if one is not provisioned."""
    selection = cluster.selection
    decision = Decision(topic="nodes", value=fold(selection.hosts), reason=selection.reason)
    return Choice(cluster.selected_nodes(), (decision,))


def choose_links(nodes: tuple[Node, ...]) -> Choice[tuple[Link, ...]]:
    """Return the interface of every node; raise PlanError if it cannot be determined."""
    node_links = links(nodes)
    # One decision per reason, with the interfaces and the nodes that have each.
    reasons: dict[str, dict[str, list[str]]] = {}
    for link in node_links:
        reasons.setdefault(link.reason, {}).setdefault(link.interface, []).append(link.node)
    decisions = (
        Decision(
            topic="network",
            value="; ".join(f"{name} on {fold(names)}" for name, names in interfaces.items()),
            reason=reason,
        )
        for reason, interfaces in reasons.items()
    )
    return Choice(node_links, tuple(decisions))


def choose_layout(
    nodes: tuple[Node, ...], ppn: int | None, workers: int, *, on_gpus: bool, measured: str | None = None
) -> Choice[Layout]:
    """Assign ranks to the nodes' cores, near their GPUs; raise PlanError if there are more ranks than cores.

    Args:
        nodes: the nodes.
        ppn: ranks per node, or None for one per GPU or NUMA node.
        workers: cores of each rank that are reserved for oneCCL.
        on_gpus: whether the ranks use GPUs.
        measured: how fast this number was measured to be on these nodes; empty if that did not decide it, None if
            nothing was measured.
    """
    layout = lay_out(nodes, ppn, workers, on_gpus=on_gpus)
    advises = ppn is None and measured is None and not on_gpus and all(map(is_measured_kind, nodes))
    advice = f"; {MEASURED_SPLIT}" if advises else ""
    default = "one for each GPU" if on_gpus else "one for each NUMA node"
    reason = f"{ppn} on each node, {measured or 'as requested'}" if ppn else default
    places_by_node = layout.by_node()
    counts = {node: len(rank_places) for node, rank_places in places_by_node.items()}
    if len(set(counts.values())) > 1:
        reason = f"{reason}: {describe_values(counts)}"
    decisions = [Decision(topic="ranks", value=str(layout.world_size), reason=f"{reason}{advice}")]
    threads = {node: rank_places[0].threads for node, rank_places in places_by_node.items()}
    if len(set(threads.values())) > 1:
        slowest = fold(by_value(threads)[min(threads.values())])
        cost = f"the nodes' cores differ; every step waits for {slowest}, --exclude leaves it out"
        decisions.append(Decision(topic="threads of a rank", value=describe_values(threads), reason=cost))
    return Choice(layout, tuple(decisions))


def is_measured_kind(node: Node) -> bool:
    """Return whether a node is like the one on which splits of its cores were measured."""
    facts = node.facts
    return len(facts.cores) == MEASURED_CORES and len(facts.numa_nodes) == 1 and MEASURED_FLAG in facts.flags


def describe_values(values: Mapping[str, int]) -> str:
    return ", ".join(f"{value} on {fold(names)}" for value, names in by_value(values).items())


def explain_gpus(nodes: tuple[Node, ...], backend: Backend) -> tuple[Decision, ...]:
    """Return the GPUs of the nodes that have some, and whether the backend connects them."""
    kinds = by_value({node.name: describe_gpus(node.facts.gpus) for node in nodes if node.facts.gpus})
    drivers = {gpu.driver for node in nodes for gpu in node.facts.gpus if gpu.driver}
    listing = "; ".join(f"{kind} on {'each of ' * (len(names) > 1)}{fold(names)}" for kind, names in kinds.items())
    use = "each rank runs on cores near its GPU" if backend.gpu else "--backend nccl connects ranks on GPUs"
    reason = "; ".join([*(f"driver {driver}" for driver in sorted(drivers)), use])
    return (Decision(topic=GPUS, value=listing, reason=reason),) if kinds else ()


def explain_torch(nodes: tuple[Node, ...]) -> tuple[Decision, ...]:
    """Return the nodes with each build of torch, if there are several builds of one version."""
    builds = by_value({node.name: node.facts.packages.get(TORCH, "none") for node in nodes})
    if len(builds) < 2:
        return ()
    listing = "; ".join(f"{build} on {fold(names)}" for build, names in sorted(builds.items()))
    reason = "different builds of one version: they can train together, but may round differently"
    return (Decision(topic="torch", value=listing, reason=reason),)


def explain_python(node0: Node) -> tuple[Decision, ...]:
    """Return the user's interpreter, its versions, what orch adds to it, and warnings about its packages."""
    python = node0.user_python
    if python is None:
        return ()
    reason = f"--python: Python {node0.facts.python}, torch {node0.facts.packages[TORCH]}"
    added = "; the stack's bindings for ccl are added" if python.bindings else ""
    return (
        Decision(topic="python", value=python.path, reason=f"{reason}{added}"),
        *(
            Decision(topic="warning", value=item.message, reason=f"{item.evidence}; {item.hint}")
            for item in python.mismatches
        ),
    )


def explain_damaged(cluster: Cluster) -> tuple[Decision, ...]:
    """Return warnings for hosts outside the run whose records cannot be read."""
    return tuple(
        Decision(topic="warning", value=f"{name} is not known", reason=problem)
        for name, problem in cluster.damaged.items()
    )


def by_value(values: Mapping[str, V]) -> dict[V, list[str]]:
    """Return the names that have each value."""
    names: dict[V, list[str]] = {}
    for name, value in values.items():
        names.setdefault(value, []).append(name)
    return names


def explain_idle_cores(nodes: tuple[Node, ...], layout: Layout) -> tuple[Decision, ...]:
    """Return how many cores no rank uses, if there are any."""
    rank_places = layout.by_node()
    idle = {node.name: unused_cores(node, rank_places[node.name]) for node in nodes}
    return tuple(
        Decision(
            topic="idle", value=f"{counted(count, 'core')} of {fold(names)}", reason="no equal share of a NUMA node"
        )
        for count, names in by_value(idle).items()
        if count
    )
