"""Fabrics between ranks: their devices, and the variables that select them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from orch_node.standalone import facts

TCP, SHM = "tcp", "shm"
# Fabrics of RDMA devices, each a provider of libfabric; `auto` tries only these.
RDMA = tuple(facts.RDMA)
FABRICS = (TCP, *RDMA, SHM)
# The variable that restricts a rank to one device.
DEVICE_VARIABLES = {"psm3": "PSM3_NIC", "verbs": "FI_VERBS_DEVICE_NAME", "efa": "FI_EFA_IFACE"}


@dataclass(frozen=True)
class Device:
    """An RDMA device."""

    name: str
    driver: str
    link: str  # InfiniBand or Ethernet
    interface: str  # the network interface of the same hardware, or empty
    speed: int  # Mbit/s
    numa: int | None  # the nearest NUMA node, if there is one
    active: bool


@dataclass(frozen=True)
class Proof:
    """The result of a fabric check: a ping-pong between nodes."""

    together: str  # the same on all nodes that reached each other; empty if the check failed
    rails: int = 1  # devices of each node
    gbit: float = 0.0  # Gbit/s of one pair of ranks with messages of 4 MiB
    microseconds: float = 0.0  # latency of 8 bytes, one way
    failed: str = ""  # why the check failed


def rails(fabric: str, devices: Sequence[Device]) -> tuple[Device, ...]:
    """Return the devices of a node that carry the fabric: the active ones of the fastest kind.

    A second, slower network (storage, management) need not reach the same peers.
    """
    supported = [device for device in devices if fabric in RDMA and facts.supports_driver(fabric, device.driver)]
    active = [device for device in supported if device.active]
    best = max(((device.link == "InfiniBand", device.speed) for device in active), default=None)
    return tuple(device for device in active if (device.link == "InfiniBand", device.speed) == best)


def share_devices(devices: Sequence[Device], numa: Sequence[int | None]) -> tuple[tuple[str, ...], ...]:
    """Return the devices of each rank of a node.

    Devices are divided among the ranks near them, so that no device is idle and no rank uses a
    distant device if one is near.

    Args:
        devices: of the node.
        numa: the NUMA node of each rank.
    """
    near = [tuple(device.name for device in devices if device.numa == node) for node in numa]
    all_names = tuple(device.name for device in devices)
    groups = [names or all_names for names in near]
    shares = [(group, groups[:rank].count(group), groups.count(group)) for rank, group in enumerate(groups)]
    # Of a group of ranks that share devices, each gets every n-th device, or one if there are fewer devices.
    return tuple(names[index::ranks] or (names[index % len(names)],) for names, index, ranks in shares)


def node_variables(fabric: str, interface: str, devices: Sequence[Device]) -> dict[str, str]:
    """Return the variables of all ranks of a node.

    psm3 without devices uses sockets of the interface, but never of loopback. Ranks fork workers
    that load data. Before Linux 5.12, a first write of such a worker moves memory that a device
    has registered away from the rank, unless ibv_fork_init(3) was called; RDMAV_FORK_SAFE does so.
    """
    variables = {"FI_PROVIDER": fabric, **({"RDMAV_FORK_SAFE": "1"} if devices else {})}
    if fabric == "psm3" and not devices:
        variables["PSM3_HAL"] = "sockets"
        if interface != "lo":
            variables["PSM3_NIC"] = interface
    return variables


def rank_variables(fabric: str, names: Sequence[str], transport: str) -> dict[str, str]:
    """Return the variables that restrict a rank to these devices.

    If a provider uses only one device at a time, MPI or oneCCL spreads the traffic over several.

    Args:
        fabric: the fabric.
        names: of the devices.
        transport: of oneCCL, mpi or ofi.
    """
    if not names:
        return {}
    if fabric == "mlx":
        return {"UCX_NET_DEVICES": ",".join(f"{name}:1" for name in names)}
    all_names = ",".join(names)
    if len(names) == 1:
        return {DEVICE_VARIABLES[fabric]: all_names}
    if fabric == "psm3":
        return {"PSM3_MULTIRAIL": "1", "PSM3_MULTIRAIL_MAP": all_names}
    provider = {"FI_EFA_IFACE": all_names} if fabric == "efa" else {}
    if transport == "mpi":
        return {**provider, "I_MPI_MULTIRAIL": "1"}
    return {**provider, "CCL_MNIC": "global", "CCL_MNIC_NAME": all_names, "CCL_MNIC_COUNT": str(len(names))}
