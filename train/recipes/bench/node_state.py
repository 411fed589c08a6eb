"""What limits the cores and the network of this node: quotas, frequency, other programs, the interface."""

from __future__ import annotations

import ctypes
import fcntl
import os
import re
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path

from orch_node.standalone import facts

CGROUPS = Path("/sys/fs/cgroup")
SIOCETHTOOL, ETHTOOL_GSET = 0x8946, 1  # linux/sockios.h, linux/ethtool.h
SPEED_LOW, SPEED_HIGH, COMMAND_BYTES = 12, 28, 44  # offsets in struct ethtool_cmd, and its size
UNKNOWN_SPEED = 0xFFFFFFFF
TICKS = os.sysconf("SC_CLK_TCK")


class Watch:
    """Observes how much of its cores' time this process gets."""

    def __init__(self) -> None:
        self.wall, self.processor, self.busy = time.perf_counter(), time.process_time(), busy_seconds()

    def usage(self, threads: int) -> dict[str, float]:
        """Return the share of its cores' time that this process got, and how many of them other programs used."""
        wall, used = time.perf_counter() - self.wall, time.process_time() - self.processor
        used_by_others = max(0.0, busy_seconds() - self.busy - used) / wall
        return {"cpu": min(1.0, used / wall / threads), "used_by_others": used_by_others}


def busy_seconds() -> float:
    """Return the seconds for which the CPUs of this process have been busy, from /proc/stat."""
    cpus = {f"cpu{cpu}" for cpu in os.sched_getaffinity(0)}
    lines = [line.split() for line in Path("/proc/stat").read_text().splitlines() if line.startswith("cpu")]
    # The columns are user, nice, system, idle, iowait, irq, softirq and steal.
    ticks = sum(sum(map(int, line[1:9])) - sum(map(int, line[4:6])) for line in lines if line[0] in cpus)
    return ticks / TICKS


def description() -> dict[str, object]:
    """Return the facts of this node that explain its rates."""
    interface = local_interface(local_address())
    speed = interface_speed(interface) if interface else 0
    speeds = {name: nic["speed"] or 0 for name, nic in facts.nics().items()}
    fastest = max(speeds, key=lambda name: speeds[name], default="")
    return {
        "quota": cpu_quota(),
        "megahertz": megahertz(),
        "flags": facts.cpu_flags(),
        "interface": interface,
        "speed": speed,
        "faster": fastest if speed and fastest and speeds[fastest] > speed else "",
    }


def local_address() -> str:
    """Return the address of this node that reaches the first rank; empty if it is unknown."""
    target = (os.environ.get("MASTER_ADDR", ""), 9)
    try:
        family, kind, _, _, address = socket.getaddrinfo(*target, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(address)  # a UDP socket sends nothing here
            return str(probe.getsockname()[0])
    except OSError:
        return ""


def local_interface(address: str) -> str:
    """Return the interface that has an address, or an empty text."""
    return next((name for name, addresses in facts.interfaces().items() if address in addresses), "")


def interface_speed(name: str) -> int:
    """Return the speed of an interface in Mbit/s, 0 if it is unknown.

    The folder /sys/class/net shows the interfaces of another network namespace in some containers.
    """
    command = ctypes.create_string_buffer(struct.pack("I", ETHTOOL_GSET), COMMAND_BYTES)
    request = struct.pack("16sP", name.encode(), ctypes.addressof(command))
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            fcntl.ioctl(probe, SIOCETHTOOL, request)
    except OSError:
        return 0
    low, high = (struct.unpack_from("H", command.raw, offset)[0] for offset in (SPEED_LOW, SPEED_HIGH))
    speed = high << 16 | low
    return 0 if speed in (0xFFFF, UNKNOWN_SPEED) else int(speed)


def megahertz() -> float:
    """Return the mean frequency of this process's CPUs in MHz, 0 if it is unknown."""
    values = re.findall(r"^cpu MHz\s*:\s*([0-9.]+)", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    frequencies = [float(values[cpu]) for cpu in os.sched_getaffinity(0) if cpu < len(values)]
    return sum(frequencies) / len(frequencies) if frequencies else 0.0


def cpu_quota() -> float:
    """Return the number of cores to which a cgroup limits this process, 0 without a limit."""
    return min(filter(None, map(quota_of, cgroup_folders())), default=0.0)


def cgroup_folders() -> Iterator[Path]:
    """Yield the cgroups of this process that can have a quota, of both versions of cgroups, with their parents."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        top = CGROUPS / controllers
        folder = top / path.lstrip("/")
        yield from (parent for parent in (folder, *folder.parents) if parent.is_relative_to(top))


def quota_of(folder: Path) -> float:
    """Return the quota of one cgroup in cores, 0 without one."""
    text = facts.read_line(folder / "cpu.max") or " ".join(
        facts.read_line(folder / f"cpu.cfs_{name}_us") for name in ("quota", "period")
    )
    numbers = re.fullmatch(r"([0-9]+) ([0-9]+)", text)
    return int(numbers[1]) / int(numbers[2]) if numbers else 0.0
