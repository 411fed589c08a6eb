"""Find and end the processes of a run on this node, from /proc alone.

A process belongs to a run if its environment names the run (ORCH_RUN_DIR), if it is one of orch's
programs with the run's folder as an argument, or if it is a launcher's daemon above such a process.
A pager or an editor that has a file of the run open does not belong to it.
"""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

from orch_node import machine
from orch_node.program import MARK, PROGRAM
from orch_node.protocol.environment import STACK_SIGNAL
from orch_node.protocol.outcome import ProcessRecord
from orch_node.standalone.facts import read_text

PROC = Path("/proc")
PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
# Subcommand of node.py -> the role of its process in a run, and the index of the run's folder.
ROLES = {
    "supervise": ("supervisor", 1),
    "agent": ("agent", 1),
    "job": ("supervisor", 1),
    "job-agent": ("agent", 1),
    "rank": ("wrapper", 2),
    "contained-rank": ("wrapper", 1),
    "run-script": ("rank", None),
}
WATCHERS = ("supervisor", "agent")
LAUNCHERS = (
    *("mpiexec", "mpirun", "prte", "hydra_", "ssh", "srun", "docker"),
    *("apptainer", "Apptainer", "singularity", "Singularity"),
)
# Daemons that launchers start on other nodes; their environment names no run.
PROXIES = ("hydra_", "prted")
SCAN_SECONDS = 0.05
# Launchers end after the ranks, so that they still pass on what the ranks report.
LAUNCHER_DELAY_SECONDS = 1.5


def run_processes(run_dir: str) -> list[ProcessRecord]:
    """Return the living processes of a run on this node, except this process and its ancestors."""
    names = {os.fsencode(run_dir), os.fsencode(os.path.realpath(run_dir))}
    return with_proxies([process for runs, process in processes_with_runs() if names & runs])


def processes_with_runs() -> list[tuple[set[bytes], ProcessRecord]]:
    """Return each living process that names a run, except this one and its ancestors, with the folders of the runs."""
    result = []
    for pid in set(all_pids()).difference(ancestors(os.getpid())):
        environ, argv = read_environment(pid), read_argv(pid)
        runs = {value for name, value in environ.items() if name == b"ORCH_RUN_DIR"}
        arguments = node_program_arguments(argv, pid) if environ else []  # not of another user's process
        index = ROLES[arguments[0]][1] if arguments and arguments[0] in ROLES else None
        if index and len(arguments) > index:
            runs.add(os.fsencode(arguments[index]))
        if runs and (process := read_process(pid, argv)) and process.state not in "ZX":
            result.append((runs, process))
    return result


def all_pids() -> list[int]:
    """Return the numbers of all processes."""
    return [int(folder.name) for folder in PROC.iterdir() if folder.name.isdigit()]


def role_of(argv: list[bytes], pid: int) -> str:
    """Return the role of a process in a run, according to its command line."""
    if arguments := node_program_arguments(argv, pid):
        return ROLES[arguments[0]][0] if arguments[0] in ROLES else "other"
    program = os.path.basename(os.fsdecode(argv[0])) if argv else ""
    return "launcher" if program.startswith(LAUNCHERS) else "other"


def node_program_arguments(argv: list[bytes], pid: int) -> list[str]:
    """Return the subcommand and arguments of a process of node.py, of any installation of orch.

    Empty for any other process, even if its script has the same name.
    """
    for index in (1, 2):  # the interpreter has at most one option, -u
        if len(argv) > index + 1 and is_node_program(os.fsdecode(argv[index]), pid):
            return list(map(os.fsdecode, argv[index + 1 :]))
    return []


def is_node_program(path: str, pid: int) -> bool:
    """Return whether a path is node.py of an installation of orch.

    The files next to it decide, as the process sees them: it may be in a container.
    """
    if not os.path.isabs(path) or os.path.basename(path) != PROGRAM.name:
        return False
    roots = ("", f"{PROC}/{pid}/root")
    marker = os.path.join(os.path.dirname(path), MARK)
    return (
        os.path.realpath(path) == str(PROGRAM)
        or any(os.path.isfile(root + marker) for root in roots)
        # The installation was removed during the run.
        or not any(os.path.exists(root + path) for root in roots)
    )


def read_process(pid: int, argv: list[bytes]) -> ProcessRecord | None:
    """Return a process, or None if it has ended; its role follows from `argv`."""
    name, fields = machine.read_stat(pid)
    environ = read_environment(pid)
    if not fields or not environ:
        return None
    role, rank = role_of(argv, pid), environ.get(b"RANK", b"")
    number = int(rank) if rank.isdigit() else None
    parent, start = int(fields[1]), int(fields[19])
    return ProcessRecord(pid=pid, role=role, name=name, state=fields[0], rank=number, parent=parent, start=start)


def with_proxies(processes: list[ProcessRecord]) -> list[ProcessRecord]:
    """Return the processes and the launchers' daemons that started them."""
    by_pid = {process.pid: process for process in processes}
    for process in processes:
        pid = process.parent
        while pid > 1 and pid not in by_pid:
            parent = read_process(pid, read_argv(pid))
            if parent is None or not parent.name.startswith(PROXIES):
                break
            by_pid[pid] = parent
            pid = parent.parent
    return list(by_pid.values())


def read_texts(pid: int, name: str) -> list[bytes]:
    """Return the texts in `cmdline` or `environ` of a process; none if it has ended or belongs to another user."""
    try:
        return (PROC / str(pid) / name).read_bytes().split(b"\0")
    except OSError:
        return []


def read_argv(pid: int) -> list[bytes]:
    """Return a process' command line; empty if it has ended."""
    return read_texts(pid, "cmdline")


def read_environment(pid: int) -> dict[bytes, bytes]:
    """Return a process' environment; empty if it has ended or belongs to another user."""
    return dict(entry.partition(b"=")[::2] for entry in read_texts(pid, "environ"))


def ancestors(pid: int) -> list[int]:
    """Return the pids of the process, its parent, and so on."""
    pids = []
    while pid > 0:
        pids.append(pid)
        _, fields = machine.read_stat(pid)
        pid = int(fields[1]) if fields else 0
    return pids


def keep_descendants() -> None:
    """Become the parent of orphans below this process, so that descendants() finds them."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)


def descendants() -> list[ProcessRecord]:
    """Return the living processes that this one has started, directly or not."""
    living = [process for pid in all_pids() if (process := read_process(pid, []))]
    return [process for process in living if process.state not in "ZX" and os.getpid() in ancestors(process.parent)]


def has_children(pid: int) -> bool:
    """Return whether a process has living children."""
    stats = (fields for _, fields in map(machine.read_stat, all_pids()) if fields)
    return any(int(parent) == pid and state not in "ZX" for state, parent, *_ in stats)


def terminate(
    find: Callable[[], list[ProcessRecord]], *, term_seconds: float, seconds: float
) -> tuple[list[ProcessRecord], list[ProcessRecord]]:
    """End processes with SIGTERM, then SIGKILL; return those that have ended, and those that remain.

    Args:
        find: returns the living ones of these processes; called repeatedly.
        term_seconds: after so many seconds, SIGKILL follows SIGTERM.
        seconds: the time limit.
    """
    began = time.monotonic()
    scanned: dict[tuple[int, int], ProcessRecord] = {}
    signaled: set[tuple[int, int]] = set()
    while True:
        living, passed = find(), time.monotonic() - began
        if not living or passed > seconds:
            break
        for process in living:
            scanned[process.key] = process
            delay = LAUNCHER_DELAY_SECONDS if process.role == "launcher" else 0.0
            if passed >= term_seconds:
                machine.send_signal(*process.key, signal.SIGKILL)
            elif process.key not in signaled and passed >= delay:
                signaled.add(process.key)
                machine.send_signal(*process.key, signal.SIGTERM)
        time.sleep(SCAN_SECONDS)
    remaining = {process.key for process in living}
    return [process for key, process in scanned.items() if key not in remaining], living


def kernel_state(pid: int) -> dict[str, str]:
    """Return a process' state, and where it waits in the kernel as far as it may be read."""
    fields = {name: read_text(PROC / str(pid) / name) for name in ("wchan", "syscall", "stack")}
    _, stat = machine.read_stat(pid)
    return {
        "state": stat[0] if stat else "gone",
        **{name: text for name, text in fields.items() if text not in ("", "0")},
    }


def handles_signal(pid: int, number: int) -> bool:
    """Return whether the process has a handler for the signal; otherwise it would die of it."""
    lines = read_text(PROC / str(pid) / "status").splitlines()
    mask = next((line.split()[1] for line in lines if line.startswith("SigCgt")), "0")
    return bool(int(mask, 16) >> (number - 1) & 1)


def signal_of_process(pid: int, variable: str = STACK_SIGNAL) -> int:
    """Return the signal in the environment of a rank's training process; 0 for none."""
    number = read_environment(pid).get(os.fsencode(variable), b"0")
    return int(number) if number.isdigit() else 0
