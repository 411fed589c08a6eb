"""What MPI and oneCCL talk over: asked for, or the fastest that was proved between all nodes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from orch_node.protocol.fabrics import FABRICS, RDMA, SHM, TCP, Device, Proof, rails

from orchestrator.errors import PlanError, did_you_mean
from orchestrator.model.cluster import Cluster, Node
from orchestrator.model.decision import Choice, Decision
from orchestrator.model.hostlist import fold
from orchestrator.model.links import LOOPBACK, LOOPBACK_ADDRESS, Link
from orchestrator.model.process_group import Backend

AUTO = "auto"
# Debian's packages of the libraries that providers of impi-rt want and do not bring.
BRINGS = {
    "libibverbs.so.1": "libibverbs1 ibverbs-providers",
    "librdmacm.so.1": "librdmacm1 ibverbs-providers",
    "libefa.so.1": "ibverbs-providers",
    "libucp.so.0": "libucx0",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Over:
    """What a fabric is asked to carry. `contained`: ranks in containers; `nodes`: with the spares;
    `spares`: how many of them, the last ones, are."""

    nodes: tuple[Node, ...]
    backend: Backend
    contained: bool = False
    spares: int = 0

    @property
    def transport(self) -> str:
        return dict(self.backend.env).get("CCL_ATL_TRANSPORT", "mpi")


def choose_fabric(
    links: Choice[tuple[Link, ...]], cluster: Cluster, asked: str | None, over: Over
) -> Choice[tuple[Link, ...]]:
    """The links with what carries their traffic. Raises PlanError for a fabric that was asked for,
    by the flag or else the inventory, and cannot be."""
    found = ((asked, "as asked"), (cluster.fabric, f"orch_fabric of {cluster.source}"))
    name, why = next(((one, why) for one, why in found if one), (AUTO, ""))
    if name != AUTO:
        check_name(name, why)
        return with_fabric(links, name, over, decision=asked_for(name, why, over))
    if len(over.nodes) == 1 or carries_nothing(over):
        return links
    return fastest(links, over)


def check_name(name: str, why: str) -> None:
    if name not in FABRICS:
        raise PlanError(
            f"There is no fabric '{name}' ({why}).",
            hint=did_you_mean(name, FABRICS) or f"Known are {', '.join((AUTO, *FABRICS))}.",
        )


def carries_nothing(over: Over) -> str:
    """Why no traffic would go over a fabric: none, if it would."""
    if over.contained:
        return "containers have neither the devices nor the libraries of their node"
    return "" if over.backend.name == "ccl" else f"it is for --backend ccl, not {over.backend.name}"


def asked_for(name: str, why: str, over: Over) -> Decision:
    """Raises PlanError that names the nodes that lack it, and what is missing there."""
    flag = f"--fabric {name}"
    if name != TCP and (reason := carries_nothing(over)):
        raise PlanError(f"{flag}: {reason}.", hint="Leave one of them out.")
    if name == SHM:
        check_shm(flag, over)
    if name != TCP and (missing := list(lacking(name, over))):
        raise PlanError(f"{flag}: {'; '.join(missing[:3])}.", hint=remedy(name, over.nodes))
    return Decision(topic="fabric", value=told(name, devices_of(name, over)), reason=why)


def check_shm(flag: str, over: Over) -> None:
    if len(over.nodes) > 1:
        names = fold([node.name for node in over.nodes])
        raise PlanError(
            f"{flag}: memory is not shared between {names}.",
            hint="Use --nodes 1, or another fabric; ranks of one node share memory anyway.",
        )
    if over.transport != "mpi":
        raise PlanError(
            f"{flag}: oneCCL finds no such provider where it talks over libfabric (ofi) itself.",
            hint="Use --launcher mpirun with --mpi intel or mpich.",
        )


def lacking(name: str, over: Over) -> Iterator[str]:
    """What keeps the fabric from these nodes, node by node."""
    for node in over.nodes:
        missing = node.facts.fabrics.get(name, "nobody has looked for it")
        if missing:
            yield f"{node.name}: {missing}"
    if over.spares and len({names_of(name, node) for node in over.nodes}) > 1:
        spares = fold([node.name for node in over.nodes[-over.spares :]])
        yield f"{spares} could not stand in: not all nodes have devices of the same names"


def names_of(name: str, node: Node) -> tuple[tuple[str, int | None], ...]:
    return tuple((one.name, one.numa) for one in rails(name, node.facts.devices))


def remedy(name: str, nodes: tuple[Node, ...]) -> str:
    said = {node.facts.fabrics.get(name) for node in nodes}
    if None in said:
        return "Run `orch provision`, which looks at what the nodes and the stack have."
    packages = [BRINGS[library] for one in said if one and (library := one[3:]) in BRINGS]
    if packages:
        then = "" if all(node.local for node in nodes) else " Then run `orch provision`."
        return f"Debian has it: apt-get install {' '.join(dict.fromkeys(packages))}.{then}"
    return "`orch nodes` shows what each node has; --fabric auto takes what all have."


def devices_of(name: str, over: Over, most: int = 0) -> dict[str, tuple[Device, ...]]:
    """Node -> its devices for the fabric: as many as every node has, and `most` at most."""
    found = {node.name: rails(name, node.facts.devices) for node in over.nodes}
    count = min(map(len, found.values()))
    return {node: devices[: min(count, most or count)] for node, devices in found.items()}


def with_fabric(
    links: Choice[tuple[Link, ...]], name: str, over: Over, *, decision: Decision, most: int = 0
) -> Choice[tuple[Link, ...]]:
    """A node alone needs no link for the run itself; its fabric is told by one to itself."""
    alone = over.nodes[0].name
    found = links.value or (Link(node=alone, interface=LOOPBACK, address=LOOPBACK_ADDRESS, reason="one node alone"),)
    devices = devices_of(name, over, most)
    chosen = tuple(replace(one, fabric=name, devices=devices[one.node]) for one in found)
    return Choice(chosen, (*links.decisions, decision))


def told(name: str, devices: dict[str, tuple[Device, ...]]) -> str:
    """With its devices: each set of them once, with the nodes that have it."""
    sets: dict[str, list[str]] = {}
    for node, its in devices.items():
        if its:
            sets.setdefault(" and ".join(one.name for one in its), []).append(node)
    where = "; ".join(f"{its} on {fold(nodes)}" for its, nodes in sets.items())
    return f"{name} over {where}" if where else name


def fastest(links: Choice[tuple[Link, ...]], over: Over) -> Choice[tuple[Link, ...]]:
    """Of what all nodes have and a ping-pong has proved between them; TCP where that is nothing.
    Nothing is told where no node has a device: then there is no choice."""
    there = [name for name in RDMA if any(rails(name, node.facts.devices) for node in over.nodes)]
    if not there:
        return links
    unfit = {name: why_not(name, over) for name in there}
    proved = {name: proof(name, over.nodes) for name in (*there, TCP) if not unfit.get(name)}
    best = max(proved, key=lambda name: measured(proved[name]))
    if best != TCP:
        why = f"the fastest of those proved between all nodes: {figures(proved)}"
        most = (proved[best] or Proof(together="")).rails
        value = told(best, devices_of(best, over, most))
        decision = Decision(topic="fabric", value=value, reason=why)
        return with_fabric(links, best, over, decision=decision, most=most)
    slower = {name: one for name, one in proved.items() if name == TCP or one}
    reasons = [f"{name}: {why}" for name, why in unfit.items() if why]
    if len(slower) > 1:
        reasons.append(f"the fastest of those proved: {figures(slower)}")
    decision = Decision(topic="fabric", value=TCP, reason="; ".join(reasons))
    return with_fabric(links, TCP, over, decision=decision)


def why_not(name: str, over: Over) -> str:
    """What keeps `auto` from the fabric: nothing, if it was proved between all of these nodes."""
    if missing := list(lacking(name, over)):
        return missing[0]
    without = [node.name for node in over.nodes if not rails(name, node.facts.devices)]
    if without:
        return f"{fold(without)}: no RDMA device"
    failed = [one.failed for node in over.nodes if (one := node.facts.proved.get(name))]
    if words := next(filter(None, failed), ""):
        return f"its ping-pong failed: {words}"
    return "" if proof(name, over.nodes) else "no ping-pong between all of these nodes is recorded"


def proof(name: str, nodes: tuple[Node, ...]) -> Proof | None:
    """That of a ping-pong in which all of these nodes took part."""
    found = [node.facts.proved.get(name) for node in nodes]
    first = found[0]
    together = {one.together if one else "" for one in found}
    return first if first and first.together and len(together) == 1 else None


def measured(found: Proof | None) -> float:
    return found.gbit if found else 0.0


def figures(proved: dict[str, Proof | None]) -> str:
    """The fastest first."""
    known = {name: one for name, one in proved.items() if one}
    by_speed = sorted(known.items(), key=lambda pair: -pair[1].gbit)
    return ", ".join(f"{name} {one.gbit:.3g} Gbit/s and {one.microseconds:.3g} us" for name, one in by_speed)
