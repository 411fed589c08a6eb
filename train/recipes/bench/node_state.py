"""What limits the cores and the network of this node: quotas, frequency, other programs, the interface."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
from orch_node.standalone import facts

CGROUPS = Path("/sys/fs/cgroup")


def clocks() -> tuple[float, float, float]:
    """Return the time, the processor time of this process, and the seconds for which its CPUs have been busy."""
    return time.perf_counter(), time.process_time(), busy_seconds()


def busy_seconds() -> float:
    """Return the seconds for which the CPUs of this process have been busy."""
    cpus = os.sched_getaffinity(0)
    times = [cpu for number, cpu in enumerate(psutil.cpu_times(percpu=True)) if number in cpus]
    return sum(cpu.user + cpu.nice + cpu.system + cpu.irq + cpu.softirq + cpu.steal for cpu in times)


def description() -> dict[str, object]:
    """Return the facts of this node that explain its rates."""
    address = ""
    with contextlib.suppress(OSError):
        address = facts.address_towards(os.environ.get("MASTER_ADDR", ""))  # of this node, on the way to the first rank
    interface = next((name for name, addresses in facts.interfaces().items() if address in addresses), "")
    # /sys/class/net, which facts.nics() reads, shows another network namespace in some containers.
    statistics = psutil.net_if_stats().get(interface)
    speed = statistics.speed if statistics else 0
    speeds = {name: nic["speed"] or 0 for name, nic in facts.nics().items()}
    fastest = max(speeds, key=lambda name: speeds[name], default="")
    frequencies = [cpu.current for cpu in psutil.cpu_freq(percpu=True) or ()]
    frequencies = [value for cpu, value in enumerate(frequencies) if cpu in os.sched_getaffinity(0)]
    return {
        "quota": min(filter(None, map(quota_of, cgroup_folders())), default=0.0),
        "megahertz": sum(frequencies) / max(1, len(frequencies)),
        "flags": facts.cpu_flags(),
        "interface": interface,
        "speed": speed,
        "faster": fastest if speed and fastest and speeds[fastest] > speed else "",
    }


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
    text = facts.read_text(folder / "cpu.max") or " ".join(
        facts.read_text(folder / f"cpu.cfs_{name}_us") for name in ("quota", "period")
    )
    numbers = re.fullmatch(r"([0-9]+) ([0-9]+)", text)
    return int(numbers[1]) / int(numbers[2]) if numbers else 0.0
