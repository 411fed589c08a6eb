"""The fabric of MPI and oneCCL: the requested one, or the fastest that was verified between all nodes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from orch_node.protocol.fabrics import FABRICS, RDMA, SHM, TCP, Device, Proof, rails
from orch_node.protocol.node_names import fold_by_text

from orchestrator.errors import PlanError, did_you_mean
from orchestrator.model.cluster import LOOPBACK, LOOPBACK_ADDRESS, Cluster, Link, Node
from orchestrator.model.decision import Choice, Decision
from orchestrator.model.hosts import fold
from orchestrator.model.process_group import Backend

AUTO = "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class FabricUse:
    """The traffic of a run that a fabric would carry.

    Attributes:
        nodes: the nodes, including the spares, which are last.
        contained: the ranks run in containers.
        spares: the number of spares.
    """

    nodes: tuple[Node, ...]
    backend: Backend
    contained: bool = False
    spares: int = 0


def choose_fabric(
    links: Choice[tuple[Link, ...]], cluster: Cluster, requested: str | None, use: FabricUse
) -> Choice[tuple[Link, ...]]:
    """Add the fabric that carries the traffic to the links.

    Raises:
        PlanError: if the fabric that the option or the inventory requests cannot be used.
    """
    sources = ((requested, "requested"), (cluster.fabric, f"orch_fabric of {cluster.source}"))
    name, reason = next(((fabric, source) for fabric, source in sources if fabric), (AUTO, ""))
    if name != AUTO:
        if name not in FABRICS:
            raise PlanError(f"There is no fabric '{name}' ({reason}).", hint=did_you_mean(name, (AUTO, *FABRICS)))
        return with_fabric(links, name, use, decision=use_requested(name, reason, use))
    return links if len(use.nodes) == 1 or why_unused(use) else fastest(links, use)


def why_unused(use: FabricUse) -> str:
    """Return why the run could not use a fabric; empty if it can."""
    if use.contained:
        return "containers lack the devices and libraries of their node"
    return "" if use.backend.name == "ccl" else f"only --backend ccl uses fabrics, not {use.backend.name}"


def use_requested(name: str, source: str, use: FabricUse) -> Decision:
    """Return the decision for a requested fabric.

    Raises:
        PlanError: naming the nodes that cannot use it, and what they lack.
    """
    flag = f"--fabric {name}"
    if name != TCP and (reason := why_unused(use)):
        raise PlanError(f"{flag}: {reason}.", hint="Omit one of them.")
    if name == SHM and len(use.nodes) > 1:
        raise PlanError.about("no-shared-memory", flag=flag, nodes=fold([node.name for node in use.nodes]))
    if name == SHM and use.backend.env.get("CCL_ATL_TRANSPORT", "mpi") != "mpi":
        raise PlanError.about("shm-over-ofi", flag=flag)
    if name != TCP and (problems := list(fabric_problems(name, use))):
        raise PlanError(f"{flag}: {'; '.join(problems[:3])}.", hint=fabric_hint(name, use.nodes))
    return Decision(topic="fabric", value=describe_fabric(name, devices_of(name, use)), reason=source)


def fabric_problems(name: str, use: FabricUse) -> Iterator[str]:
    """Yield why the nodes cannot use the fabric."""
    for node in use.nodes:
        if missing := node.facts.fabrics.get(name, "not checked yet"):
            yield f"{node.name}: {missing}"
    devices = [rails(name, node.facts.devices) for node in use.nodes]
    if use.spares and len({tuple((device.name, device.numa) for device in of_node) for of_node in devices}) > 1:
        spares = fold([node.name for node in use.nodes[-use.spares :]])
        yield f"{spares} cannot replace a node: the device names of the nodes differ"


def fabric_hint(name: str, nodes: tuple[Node, ...]) -> str:
    problems = {node.facts.fabrics.get(name) for node in nodes}
    if None in problems:
        return "Run `orch provision`, which checks the nodes and the stack."
    if any(problem and ".so." in problem for problem in problems):
        return "docs/reference/fabrics.md names the packages with these libraries. Then run `orch provision`."
    return "`orch nodes` shows the fabrics of each node; --fabric auto uses one that all have."


def devices_of(name: str, use: FabricUse, most: int = 0) -> dict[str, tuple[Device, ...]]:
    """Return each node's devices for the fabric: as many as every node has, and at most `most`."""
    available = {node.name: rails(name, node.facts.devices) for node in use.nodes}
    count = min(map(len, available.values()))
    return {node: devices[: min(count, most or count)] for node, devices in available.items()}


def with_fabric(
    links: Choice[tuple[Link, ...]], name: str, use: FabricUse, *, decision: Decision, most: int = 0
) -> Choice[tuple[Link, ...]]:
    """Return the links with the fabric; a single node gets a link to itself that holds the fabric."""
    node = use.nodes[0].name
    own_link = Link(node=node, interface=LOOPBACK, address=LOOPBACK_ADDRESS, reason="a single node")
    devices = devices_of(name, use, most)
    updated = tuple(replace(link, fabric=name, devices=devices[link.node]) for link in links.value or (own_link,))
    return Choice(updated, (*links.decisions, decision))


def describe_fabric(name: str, devices: dict[str, tuple[Device, ...]]) -> str:
    """Return the fabric's name with each set of devices and the nodes that have it."""
    sets = {node: " and ".join(device.name for device in used) for node, used in devices.items() if used}
    listing = "; ".join(f"{names} on {nodes}" for nodes, names in fold_by_text(sets))
    return f"{name} over {listing}" if listing else name


def fastest(links: Choice[tuple[Link, ...]], use: FabricUse) -> Choice[tuple[Link, ...]]:
    """Return the links with the fastest fabric that was verified between all nodes; TCP if there is none.

    There is no decision if no node has a device.
    """
    available = [name for name in RDMA if any(rails(name, node.facts.devices) for node in use.nodes)]
    if not available:
        return links
    problems = {name: why_unverified(name, use) for name in available}
    results = {name: common_result(name, use.nodes) for name in (*available, TCP) if not problems.get(name)}
    best = max(results, key=lambda name: result.gbit if (result := results[name]) else 0.0)
    if best != TCP:
        reason = f"the fastest one that was verified between all nodes: {describe_speeds(results)}"
        most = (results[best] or Proof(together="")).rails
        value = describe_fabric(best, devices_of(best, use, most))
        return with_fabric(links, best, use, decision=Decision("fabric", value, reason), most=most)
    slower = {name: result for name, result in results.items() if name == TCP or result}
    reasons = [f"{name}: {problem}" for name, problem in problems.items() if problem]
    if len(slower) > 1:
        reasons.append(f"the fastest one that was verified: {describe_speeds(slower)}")
    return with_fabric(links, TCP, use, decision=Decision("fabric", TCP, "; ".join(reasons)))


def why_unverified(name: str, use: FabricUse) -> str:
    """Return why `auto` does not use the fabric; empty if it was verified between all of the nodes."""
    if problem := next(fabric_problems(name, use), ""):
        return problem
    if without := [node.name for node in use.nodes if not rails(name, node.facts.devices)]:
        return f"{fold(without)}: no RDMA device"
    failures = (result.failed for node in use.nodes if (result := node.facts.proved.get(name)))
    if reason := next(filter(None, failures), ""):
        return f"its ping-pong failed: {reason}"
    return "" if common_result(name, use.nodes) else "no ping-pong between all of these nodes is recorded"


def common_result(name: str, nodes: tuple[Node, ...]) -> Proof | None:
    """Return the result of a ping-pong between all of these nodes, if there was one."""
    results = [node.facts.proved.get(name) for node in nodes]
    first = results[0]
    ping_pongs = {result.together if result else "" for result in results}
    return first if first and first.together and len(ping_pongs) == 1 else None


def describe_speeds(results: dict[str, Proof | None]) -> str:
    """Return the bandwidth and latency of each fabric, the fastest first."""
    measured = [(result.gbit, result.microseconds, name) for name, result in results.items() if result]
    measured.sort(key=lambda result: -result[0])
    return ", ".join(f"{name} {gbit:.3g} Gbit/s and {latency:.3g} us" for gbit, latency, name in measured)
