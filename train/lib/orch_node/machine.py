"""Identify a machine, a container and a process, also for readers on other machines.

A process number means nothing to a host or a container that shares only a folder with its writer.
Such a reader must not conclude that the process has ended: its condition is unknown there.
"""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass

from orch_node import process_handle

ALIVE, DEAD, UNKNOWN = "alive", "dead", "unknown"


@dataclass(frozen=True)
class Machine:
    """A booted machine, or a container on it. Unknown values are empty.

    Attributes:
        host: the host name.
        machine_id: of the installation (machine-id(5)); the same after a reboot.
        boot: of this boot of the kernel.
        pid_namespace: containers that do not see each other's processes differ.
    """

    host: str = ""
    machine_id: str = ""
    boot: str = ""
    pid_namespace: str = ""


@dataclass(frozen=True)
class ProcessIdentity:
    """A process on a machine.

    Attributes:
        machine: the machine or container that runs it.
        pid: its number, which the kernel may reuse.
        start: its start time in clock ticks since boot.
    """

    machine: Machine
    pid: int
    start: int

    def describe(self) -> str:
        """Return the process number and the host as text."""
        return f"process {self.pid} on {self.machine.host or 'an unknown host'}"


def this_machine() -> Machine:
    """Return the machine, or the container, that this process runs in."""
    try:
        namespace = os.readlink("/proc/self/ns/pid")
    except OSError:
        namespace = ""
    return Machine(
        host=socket.gethostname(),
        machine_id=first_line("/etc/machine-id"),
        boot=first_line("/proc/sys/kernel/random/boot_id"),
        pid_namespace=namespace,
    )


def this_process() -> ProcessIdentity:
    """Return the identity of this process."""
    start = process_handle.start_time(os.getpid()) or 0
    return ProcessIdentity(machine=this_machine(), pid=os.getpid(), start=start)


def first_line(path: str) -> str:
    """Return the first line of a file, or '' if it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.readline().strip()
    except OSError:
        return ""


def condition_of(process: ProcessIdentity) -> str:
    """Return whether the process is ALIVE or DEAD, as seen from here, or UNKNOWN."""
    current = this_machine()
    if is_visible(process.machine, current):
        return ALIVE if process_handle.is_alive(process.pid, process.start) else DEAD
    return DEAD if was_rebooted(process.machine, current) else UNKNOWN


def is_visible(machine: Machine, current: Machine) -> bool:
    """Return whether processes of the machine are visible here."""
    return bool(current.boot) and (machine.boot, machine.pid_namespace) == (current.boot, current.pid_namespace)


def was_rebooted(machine: Machine, current: Machine) -> bool:
    """Return whether this is the same machine after a reboot, so that its processes are gone.

    Containers of one image may have the same names on several hosts. The number of their process
    namespace differs, whereas that of a host is the same after each boot.
    """
    names = (machine.host, machine.machine_id, machine.pid_namespace)
    current_names = (current.host, current.machine_id, current.pid_namespace)
    return all(names) and names == current_names and machine.boot != current.boot
