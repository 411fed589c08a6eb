"""Identify a machine, a container and a process, also for readers on other machines; send signals to a process.

A process number means nothing to a host or a container that shares only a folder with its writer.
Such a reader must not conclude that the process has ended: its condition is unknown there.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
from dataclasses import dataclass, replace
from pathlib import Path

from orch_node.standalone.facts import read_text

ALIVE, DEAD, UNKNOWN = "alive", "dead", "unknown"
PR_SET_PDEATHSIG = 1  # linux/prctl.h


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
        machine_id=read_text(Path("/etc/machine-id")),
        boot=read_text(Path("/proc/sys/kernel/random/boot_id")),
        pid_namespace=namespace,
    )


def this_process() -> ProcessIdentity:
    """Return the identity of this process."""
    return ProcessIdentity(machine=this_machine(), pid=os.getpid(), start=start_time(os.getpid()) or 0)


def condition_of(process: ProcessIdentity) -> str:
    """Return whether the process is ALIVE or DEAD, as seen from here, or UNKNOWN."""
    current, machine = this_machine(), process.machine
    is_visible = (machine.boot, machine.pid_namespace) == (current.boot, current.pid_namespace)
    if current.boot and is_visible:
        return ALIVE if is_alive(process.pid, process.start) else DEAD
    return DEAD if was_rebooted(machine, current) else UNKNOWN


def was_rebooted(machine: Machine, current: Machine) -> bool:
    """Return whether this is the same machine after a reboot, so that its processes are gone.

    Containers of one image may have the same names on several hosts. The number of their process
    namespace differs, whereas that of a host is the same after each boot.
    """
    is_known = machine.host and machine.machine_id and machine.pid_namespace
    is_rebooted = machine.boot != current.boot and current == replace(machine, boot=current.boot)
    return bool(is_known) and is_rebooted


def send_signal(pid: int, start: int | None, number: int) -> bool:
    """Send a signal to the process with this start time, never to a later one; return whether it received it.

    Args:
        pid: its number.
        start: clock ticks since boot; None for a process that had ended.
        number: of the signal.
    """
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if start is not None and start_time(pid) == start:
            os.kill(pid, number)
            return True
    return False


def read_stat(pid: int) -> tuple[str, list[str]]:
    """Return a process' name, and its state, parent and further fields of proc(5); no fields if it has ended."""
    name, _, fields = read_text(Path("/proc", str(pid), "stat")).partition("(")[2].rpartition(")")
    return name, fields.split()


def start_time(pid: int) -> int | None:
    """Return the start time of a process, or None if there is none."""
    _, fields = read_stat(pid)
    return int(fields[19]) if fields else None


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def is_alive(pid: int, start: int) -> bool:
    """Return whether the process with this start time exists and is not a zombie."""
    _, fields = read_stat(pid)
    return bool(fields) and int(fields[19]) == start and fields[0] not in "ZX"
