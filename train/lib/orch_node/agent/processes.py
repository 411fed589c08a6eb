"""The processes of a run on this node, as /proc shows them: notes of our own are not believed.

A process belongs to a run if its environment says so (ORCH_RUN_DIR), or if it is one of orch's own
programs with the run's folder as an argument, or if it is a hydra proxy above such a process.
A pager or an editor that has a file of the run open does not.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from orch_node import process_handle
from orch_node.program import MARK, PROGRAM
from orch_node.protocol.outcome import ProcessRecord

PROC = Path("/proc")
# Subcommand of node.py -> what its process is to a run, and which of its words is the run's folder.
ROLES = {
    "supervise": ("supervisor", 1),
    "agent": ("agent", 1),
    "slurm": ("supervisor", 1),
    "slurm-agent": ("agent", 1),
    "rank": ("wrapper", 2),
    "contained-rank": ("wrapper", 1),
    "run-script": ("rank", None),
}
WATCHERS = ("supervisor", "agent")
LAUNCHERS = (
    *("mpiexec", "mpirun", "prte", "hydra_", "ssh", "srun", "docker"),
    *("apptainer", "Apptainer", "singularity", "Singularity"),
)
# Daemons of the launchers on other nodes, where their environment names no run.
PROXIES = ("hydra_", "prted")
SCAN_SECONDS = 0.05
# Ranks end first, so that the launcher can still pass on what they report.
LAUNCHER_LATER = 1.5


@dataclass(frozen=True)
class Process:
    """`start`: clock ticks since boot; with the pid it names a process for ever."""

    pid: int
    parent: int
    start: int
    state: str
    name: str
    role: str
    rank: int | None

    @property
    def key(self) -> tuple[int, int]:
        return self.pid, self.start


@dataclass(frozen=True)
class Ended:
    """What became of the processes that were to end; `left` are those that did not."""

    ended: tuple[Process, ...]
    left: tuple[Process, ...]
    seconds: float


def record(process: Process) -> ProcessRecord:
    return ProcessRecord(
        pid=process.pid,
        role=process.role,
        name=process.name,
        state=process.state,
        rank=process.rank,
        parent=process.parent,
        start=process.start,
    )


def of_run(run_dir: str) -> list[Process]:
    """The living processes of a run here, without this one and those it was started by."""
    names = {os.fsencode(run_dir), os.fsencode(os.path.realpath(run_dir))}
    own = set(ancestors(os.getpid()))
    return proxies_too([process for runs, process in by_run(own) if names & runs])


def by_run(ignored: Iterable[int] = ()) -> list[tuple[set[bytes], Process]]:
    """(folders that it names as its run, process) of all living processes that name one."""
    found = []
    for folder in PROC.iterdir():
        if folder.name.isdigit() and int(folder.name) not in ignored:
            runs, argv = runs_named_by(folder)
            process = look(int(folder.name), argv) if runs else None
            if process is not None and process.state not in "ZX":
                found.append((runs, process))
    return found


def runs_named_by(folder: Path) -> tuple[set[bytes], list[bytes]]:
    """The run folders in a process' environment, or in the arguments of our own programs."""
    try:
        variables = (folder / "environ").read_bytes().split(b"\0")
        argv = (folder / "cmdline").read_bytes().split(b"\0")
    except OSError:  # it has ended, or is another user's
        return set(), []
    runs = {value[13:] for value in variables if value.startswith(b"ORCH_RUN_DIR=")}
    named = run_named_by(argv, int(folder.name))
    return runs | ({named} if named else set()), argv


def role_of(argv: list[bytes], pid: int) -> str:
    if words := own_words(argv, pid):
        return ROLES[words[0]][0] if words[0] in ROLES else "other"
    program = os.path.basename(os.fsdecode(argv[0])) if argv else ""
    return "launcher" if program.startswith(LAUNCHERS) else "other"


def run_named_by(argv: list[bytes], pid: int) -> bytes | None:
    """The run's folder as one of our own programs was given it."""
    words = own_words(argv, pid)
    at = ROLES[words[0]][1] if words and words[0] in ROLES else None
    return os.fsencode(words[at]) if at is not None and len(words) > at else None


def own_words(argv: list[bytes], pid: int) -> list[str]:
    """The subcommand and the arguments of one of our own programs, whichever installation of orch
    it is of. Empty for any other process, whatever its script is called."""
    for at in (1, 2):  # the interpreter has at most one option, -u
        if len(argv) > at + 1 and is_ours(os.fsdecode(argv[at]), pid):
            return list(map(os.fsdecode, argv[at + 1 :]))
    return []


def is_ours(path: str, pid: int) -> bool:
    """Whether it is the node.py of an installation: by its whole path, and by what lies beside it,
    as its process sees that (it may be in a container)."""
    if not os.path.isabs(path) or os.path.basename(path) != PROGRAM.name:
        return False
    roots = ("", f"{PROC}/{pid}/root")
    beside = os.path.join(os.path.dirname(path), MARK)
    return (
        os.path.realpath(path) == str(PROGRAM)
        or any(os.path.isfile(root + beside) for root in roots)
        # An installation that was removed while its run went on.
        or not any(os.path.exists(root + path) for root in roots)
    )


def stat_of(pid: int) -> tuple[str, list[str]]:
    """-> its name, and the fields behind it: state, parent, ... (proc(5)). Raises OSError."""
    text = (PROC / str(pid) / "stat").read_text(errors="replace")
    name, _, rest = text.partition("(")[2].rpartition(")")
    return name, rest.split()


def look(pid: int, argv: list[bytes]) -> Process | None:
    """None if it is gone."""
    try:
        name, fields = stat_of(pid)
        environ = (PROC / str(pid) / "environ").read_bytes().split(b"\0")
    except OSError:
        return None
    ranks = [value[5:] for value in environ if value.startswith(b"RANK=")]
    return Process(
        pid=pid,
        parent=int(fields[1]),
        start=int(fields[19]),
        state=fields[0],
        name=name,
        role=role_of(argv, pid),
        rank=int(ranks[0]) if ranks and ranks[0].isdigit() else None,
    )


def proxies_too(processes: list[Process]) -> list[Process]:
    """With the launchers' daemons that these were started by: on other nodes they name no run."""
    found = {process.pid: process for process in processes}
    for process in processes:
        parent = process.parent
        while parent > 1 and parent not in found:
            above = look(parent, argv_of(parent))
            if above is None or not above.name.startswith(PROXIES):
                break
            found[parent] = above
            parent = above.parent
    return list(found.values())


def argv_of(pid: int) -> list[bytes]:
    try:
        return (PROC / str(pid) / "cmdline").read_bytes().split(b"\0")
    except OSError:
        return []


def ancestors(pid: int) -> list[int]:
    """The process itself and those above it."""
    found = []
    while pid > 0:
        found.append(pid)
        try:
            pid = int(stat_of(pid)[1][1])
        except OSError:
            break
    return found


def has_children(pid: int) -> bool:
    """Living ones."""
    for folder in PROC.iterdir():
        if folder.name.isdigit():
            try:
                _, (state, parent, *_) = stat_of(int(folder.name))
            except OSError:
                continue
            if int(parent) == pid and state not in "ZX":
                return True
    return False


def end(find: Callable[[], list[Process]], *, term_seconds: float, seconds: float) -> Ended:
    """SIGTERM to all that `find` finds, SIGKILL after `term_seconds`, for at most `seconds`."""
    began = time.monotonic()
    seen: dict[tuple[int, int], Process] = {}
    told: set[tuple[int, int]] = set()
    while True:
        living, passed = find(), time.monotonic() - began
        if not living or passed > seconds:
            break
        for process in living:
            seen[process.key] = process
            if passed >= term_seconds:
                send(process, signal.SIGKILL)
            elif process.key not in told and passed >= patience(process):
                told.add(process.key)
                send(process, signal.SIGTERM)
        time.sleep(SCAN_SECONDS)
    left = {process.key for process in living}
    return Ended(
        ended=tuple(process for key, process in seen.items() if key not in left),
        left=tuple(living),
        seconds=round(time.monotonic() - began, 3),
    )


def patience(process: Process) -> float:
    return LAUNCHER_LATER if process.role == "launcher" else 0.0


def alive(pid: int, start: int) -> bool:
    process = look(pid, [])
    return process is not None and process.start == start and process.state not in "ZX"


def send(process: Process, number: int) -> bool:
    """-> whether it has got the signal; one that has its number by now never does."""
    return process_handle.send(process.pid, process.start, number)


def kernel_state(pid: int) -> dict[str, str]:
    """What the kernel has the process do: its state, where it waits, its stack (root only)."""
    found = {}
    for name in ("wchan", "syscall", "stack"):
        try:
            text = (PROC / str(pid) / name).read_text(errors="replace").strip()
        except OSError:
            continue
        if text and text != "0":
            found[name] = text
    process = look(pid, [])
    return {"state": process.state if process else "gone", **found}


def handles(pid: int, number: int) -> bool:
    """Whether the process catches the signal: one that does not would die of it."""
    try:
        text = (PROC / str(pid) / "status").read_text()
    except OSError:
        return False
    mask = next((line.split()[1] for line in text.splitlines() if line.startswith("SigCgt")), "0")
    return bool(int(mask, 16) >> (number - 1) & 1)
