"""Fabrics: what ranks talk over, the devices that carry it, and the variables that say so."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from orch_node.standalone import facts

T = TypeVar("T")

TCP, SHM = "tcp", "shm"
# Those of RDMA devices, each one of libfabric's providers; `auto` looks for no other.
RDMA = tuple(facts.RDMA)
FABRICS = (TCP, *RDMA, SHM)


@dataclass(frozen=True)
class Device:
    """An RDMA device. `link`: InfiniBand or Ethernet; `interface`: of the same hardware, if it has
    one; `speed`: Mbit/s; `numa`: the node it is near, if it is near any."""

    name: str
    driver: str
    link: str
    interface: str
    speed: int
    numa: int | None
    active: bool


@dataclass(frozen=True)
class Proof:
    """What came of a ping-pong over a fabric. `together`: equal on nodes that talked to each other,
    and empty where it failed, for which `failed` has the words; `rails`: devices of each node;
    `gbit`: Gbit/s of one pair of ranks with 4 MiB; `microseconds`: of 8 bytes, one way."""

    together: str
    rails: int = 1
    gbit: float = 0.0
    microseconds: float = 0.0
    failed: str = ""


def rails(fabric: str, devices: Sequence[Device]) -> tuple[Device, ...]:
    """The devices of a node that carry the fabric: those that are active, of the fastest kind. A
    second, slower network beside them (storage, management) need not reach the same peers."""
    carried = [one for one in devices if fabric in RDMA and facts.supports_driver(fabric, one.driver)]
    fitting = [one for one in carried if one.active]
    if not fitting:
        return ()
    link, speed = max((one.link == "InfiniBand", one.speed) for one in fitting)
    return tuple(one for one in fitting if (one.link == "InfiniBand", one.speed) == (link, speed))


def shares(devices: Sequence[Device], numa: Sequence[int | None]) -> tuple[tuple[str, ...], ...]:
    """The devices of each rank of a node, whose NUMA nodes are `numa`: those near it are dealt out
    among the ranks that they are near to, so that none idles and none is far where one is near."""
    near = [tuple(one.name for one in devices if one.numa == place) for place in numa]
    every = tuple(one.name for one in devices)
    groups = [found or every for found in near]
    return tuple(dealt(group, groups[:rank].count(group), groups.count(group)) for rank, group in enumerate(groups))


def dealt(group: Sequence[T], position: int, of: int) -> tuple[T, ...]:
    """What the one at `position` of so many gets: every one in turn, or one of a few."""
    return tuple(group[position::of]) or tuple(group[position % len(group) :][:1])


def node_variables(fabric: str, interface: str, devices: Sequence[Device]) -> dict[str, str]:
    """Of all ranks of a node. `devices`: those of the fabric; psm3 without any runs over sockets of
    the interface, which it does not do unasked, and never over the loopback one.

    Ranks fork workers that load data: before Linux 5.12 their first write takes the memory that a
    device knows away from the rank, unless ibv_fork_init(3) was called, as the variable has it.
    """
    found = {"FI_PROVIDER": fabric, **({"RDMAV_FORK_SAFE": "1"} if devices else {})}
    if fabric == "psm3" and not devices:
        found["PSM3_HAL"] = "sockets"
        if interface != "lo":
            found["PSM3_NIC"] = interface
    return found


def rank_variables(fabric: str, names: Sequence[str], transport: str) -> dict[str, str]:
    """What holds a rank to these devices; with several, where its provider takes but one at a time,
    MPI or oneCCL spreads its traffic. `transport`: of oneCCL, mpi or ofi."""
    if not names:
        return {}
    if len(names) == 1:
        return one_device(fabric, names[0])
    several = ",".join(names)
    if fabric == "psm3":
        return {"PSM3_MULTIRAIL": "1", "PSM3_MULTIRAIL_MAP": several}
    if fabric == "mlx":
        return {"UCX_NET_DEVICES": ",".join(f"{name}:1" for name in names)}
    own = {"FI_EFA_IFACE": several} if fabric == "efa" else {}
    if transport == "mpi":
        return {**own, "I_MPI_MULTIRAIL": "1"}
    count = str(len(names))
    return {**own, "CCL_MNIC": "global", "CCL_MNIC_NAME": several, "CCL_MNIC_COUNT": count}


def one_device(fabric: str, name: str) -> dict[str, str]:
    variable = {
        "psm3": ("PSM3_NIC", name),
        "verbs": ("FI_VERBS_DEVICE_NAME", name),
        "efa": ("FI_EFA_IFACE", name),
        "mlx": ("UCX_NET_DEVICES", f"{name}:1"),
    }
    return dict([variable[fabric]])
