"""The nodes of a run, the interfaces between them, and the ranks on their cores."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from orchestrator.model.cluster import Cluster, Node
from orchestrator.model.decision import Choice, Decision
from orchestrator.model.hostlist import fold
from orchestrator.model.layout import Layout, lay_out, unused_cores
from orchestrator.model.links import Link, links
from orchestrator.stacks.stack import TORCH

V = TypeVar("V", int, str)


def choose_nodes(cluster: Cluster) -> Choice[tuple[Node, ...]]:
    """Raises PlanError for chosen nodes of which nothing is known."""
    hosts, why = cluster.selection.hosts, cluster.selection.reason
    return Choice(cluster.selected_nodes(), (Decision(topic="nodes", value=fold(hosts), reason=why),))


def choose_spares(cluster: Cluster) -> Choice[tuple[Node, ...]]:
    """Raises PlanError for a spare node that could not stand in."""
    spares = cluster.spare_nodes()
    if not spares:
        return Choice(())
    names = fold([node.name for node in spares])
    return Choice(spares, (Decision(topic="spare nodes", value=names, reason="for nodes that are lost"),))


def choose_links(nodes: tuple[Node, ...]) -> Choice[tuple[Link, ...]]:
    """The interface of every node. Raises PlanError where none can be told."""
    found = links(nodes)
    return Choice(found, tell_network(found))


def choose_layout(nodes: tuple[Node, ...], ppn: int | None, workers: int) -> Choice[Layout]:
    """The ranks on the nodes' cores. Raises PlanError for more ranks than cores."""
    layout = lay_out(nodes, ppn, workers)
    return Choice(layout, (*tell_ranks(layout, ppn), *tell_threads(layout)))


def tell_ranks(layout: Layout, ppn: int | None) -> tuple[Decision, ...]:
    """How many ranks; where nodes differ, which of them have how many."""
    counts = {node: len(places) for node, places in layout.by_node().items()}
    why = f"{ppn} on each node, as asked" if ppn else "one for each NUMA node"
    if len(set(counts.values())) > 1:
        why = f"{why}: {on_nodes(counts)}"
    return (Decision(topic="ranks", value=str(layout.world_size), reason=why),)


def tell_threads(layout: Layout) -> tuple[Decision, ...]:
    """Where nodes differ in the threads of a rank: on which, and what that costs."""
    threads = {node: places[0].threads for node, places in layout.by_node().items()}
    if len(set(threads.values())) == 1:
        return ()
    slowest = fold(by_value(threads)[min(threads.values())])
    why = f"the nodes' cores differ; every step waits for {slowest}, --exclude leaves it out"
    return (Decision(topic="threads of a rank", value=on_nodes(threads), reason=why),)


def on_nodes(values: Mapping[str, int]) -> str:
    return ", ".join(f"{value} on {fold(names)}" for value, names in by_value(values).items())


def tell_torch(nodes: tuple[Node, ...]) -> tuple[Decision, ...]:
    """The builds of torch, where nodes have different ones of the same version."""
    builds = by_value({node.name: node.facts.packages.get(TORCH, "none") for node in nodes})
    if len(builds) < 2:
        return ()
    told = "; ".join(f"{build} on {fold(names)}" for build, names in sorted(builds.items()))
    why = "other builds of one version: they train together, and may round differently"
    return (Decision(topic="torch", value=told, reason=why),)


def tell_damaged(cluster: Cluster) -> tuple[Decision, ...]:
    """Hosts that the run can do without, and whose records cannot be read."""
    return tuple(
        Decision(topic="warning", value=f"{name} is not known", reason=words) for name, words in cluster.damaged.items()
    )


def by_value(values: Mapping[str, V]) -> dict[V, list[str]]:
    """Value -> the names that have it."""
    found: dict[V, list[str]] = {}
    for name, value in values.items():
        found.setdefault(value, []).append(name)
    return found


def tell_idle(nodes: tuple[Node, ...], layout: Layout) -> tuple[Decision, ...]:
    """Cores that no rank uses, if there are any."""
    places = layout.by_node()
    idle = {node.name: unused_cores(node, places[node.name]) for node in nodes}
    return tuple(
        Decision(
            topic="idle", value=f"{count} core{'s' * (count != 1)} of {fold(names)}", reason="they do not divide evenly"
        )
        for count, names in by_value(idle).items()
        if count
    )


def tell_network(found: tuple[Link, ...]) -> tuple[Decision, ...]:
    """One decision for each reason: the interfaces, and the nodes that have each."""
    reasons: dict[str, dict[str, list[str]]] = {}
    for one in found:
        reasons.setdefault(one.reason, {}).setdefault(one.interface, []).append(one.node)
    return tuple(
        Decision(topic="network", value=spread(interfaces), reason=reason) for reason, interfaces in reasons.items()
    )


def spread(interfaces: Mapping[str, list[str]]) -> str:
    return "; ".join(f"{name} on {fold(nodes)}" for name, nodes in interfaces.items())
