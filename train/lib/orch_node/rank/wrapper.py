"""Starts one rank: `node.py rank --run RUN_DIR -- SCRIPT [ARGS...]`, once per rank.

This process stays small (standard library only). It finds its placement in RUN_DIR/layout.json,
makes the environment from RUN_DIR/env.json, starts the training process pinned to its cores with a
log file of its own, and outlives it: whatever happens to the training process, also SIGKILL, this
one reports it with an exit code or a signal. It keeps the launcher's PMI socket open until the
report is out, so that hydra does not kill the other ranks before the first failing one has been
named. Where the run has containers, the training process is in that of this node (container.py).
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import NoReturn, Protocol

from orch_node import program, stack_signal
from orch_node.agent.containers import read_spec
from orch_node.events import send
from orch_node.protocol import files
from orch_node.protocol import layout as layouts
from orch_node.protocol.container import ContainerSpec, RankOrder
from orch_node.protocol.events import Exited, Raised, Started
from orch_node.protocol.layout import Placement, RunLayout
from orch_node.protocol.values import ProtocolError
from orch_node.rank import container as rank_container
from orch_node.rank import preload
from orch_node.rank.checks import repair
from orch_node.rank.oom import Memory
from orch_node.rank.setvars import SetvarsError, in_packages, sourced

PR_SET_PDEATHSIG = 1  # linux/prctl.h
# What a batch system warns of its end with, and whatever else a script makes of them.
FOR_THE_SCRIPT = (signal.SIGUSR1, signal.SIGUSR2)
# After a failure the supervisor wants the stack traces of the other ranks; hydra would kill those
# as soon as this process ends, so it stays until it is told to stop, or for this long.
LINGER_SECONDS = 10.0
LINGER_FOR_RESTART = 1.5  # where the launcher starts the ranks again as soon as one has ended
KILL_AFTER_SECONDS = 5.0
LAST_WORDS = 2000  # bytes
# (rank, world size) as the launchers name them: hydra, Open MPI, torchrun and its kin.
RANK_VARIABLES = (
    ("PMI_RANK", "PMI_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("RANK", "WORLD_SIZE"),
)


def main(argv: list[str]) -> int:
    run_dir, command = parse(argv)
    os.environ["ORCH_EVENTS_FD"] = str(os.dup(1))
    layout, spec = read_files(run_dir)
    placement = find_placement(layout, os.environ)
    os.environ["RANK"] = str(placement.rank)
    environment = {
        **inherited(layout, placement, spec),
        **rank_environment(run_dir, layout, placement),
    }
    environment[stack_signal.VARIABLE] = stack_trace_signal(environment)
    log_path = run_dir / files.rank_log(placement.rank)
    log = open_log(log_path)
    memory = Memory()
    child: Process
    if spec:
        order = RankOrder(placement, environment, tuple(command), str(log_path), layout.setvars)
        child = rank_container.start(run_dir, spec, order)
    else:
        child = Child(start(placement, environment, log, command))
    host = socket.gethostname()
    send(Started(node=placement.node, pid=child.pid, wrapper=os.getpid(), host=host))
    return wait(child, placement, memory, log_path)


def parse(argv: list[str]) -> tuple[Path, list[str]]:
    if len(argv) < 4 or argv[0] != "--run" or argv[2] != "--":
        fail("usage: node.py rank --run RUN_DIR -- SCRIPT [ARGS...]", code=2)
    return Path(argv[1]), argv[3:]


def read_files(run_dir: Path) -> tuple[RunLayout, ContainerSpec | None]:
    try:
        return layouts.parse((run_dir / files.LAYOUT).read_text()), read_spec(run_dir)
    except (OSError, ProtocolError) as error:
        fail(str(error))


def launched_as(environ: Mapping[str, str]) -> tuple[int, int]:
    """(rank, world size) given by the launcher."""
    for rank, size in RANK_VARIABLES:
        if rank in environ and size in environ:
            return int(environ[rank]), int(environ[size])
    fail(
        "a rank was not started by mpiexec or torchrun: there is no PMI_RANK, "
        "OMPI_COMM_WORLD_RANK or RANK in the environment."
    )


def find_placement(layout: RunLayout, environ: Mapping[str, str]) -> Placement:
    """This rank's own. torchrun numbers its nodes as they come; so there it is the one of this
    node and of its local number, whatever torchrun's rank."""
    rank, world_size = launched_as(environ)
    if world_size != layout.world_size:
        fail(f"the launcher started {world_size} ranks, the layout has {layout.world_size}.")
    if "ORCH_NODE" not in environ:
        return layout.placement(rank)
    node, local_rank = environ["ORCH_NODE"], int(environ["LOCAL_RANK"])
    placement = next((one for one in layout.on(node) if one.local_rank == local_rank), None)
    if placement is None:
        fail(f"the layout has no local rank {local_rank} on {node}.")
    return placement


def stack_trace_signal(environ: Mapping[str, str]) -> str:
    try:
        return str(stack_signal.chosen(environ))
    except ValueError as error:
        fail(str(error))


def inherited(
    layout: RunLayout, placement: Placement, spec: ContainerSpec | None
) -> dict[str, str]:
    """The launcher's environment; in a container only what is not the node's."""
    if spec:
        return rank_container.of_launcher(os.environ)
    return {**os.environ, **setvars_environment(layout, placement)}


def rank_environment(run_dir: Path, layout: RunLayout, placement: Placement) -> dict[str, str]:
    """What orch sets: the node's, the run's, and this rank's own on top."""
    planned = read_env_file(run_dir / files.ENVIRONMENT)
    return {
        **provisioned_environment(),
        **planned,
        "MASTER_PORT": master_port(planned["MASTER_PORT"]),
        "RANK": str(placement.rank),
        "WORLD_SIZE": str(layout.world_size),
        "ORCH_PLANNED_WORLD_SIZE": str(layout.planned_size),
        # The ranks meet at MASTER_ADDR: torchrun's own store has the numbers of its own ranks.
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        "LOCAL_RANK": str(placement.local_rank),
        "LOCAL_WORLD_SIZE": str(placement.local_world_size),
        "OMP_NUM_THREADS": str(placement.threads),
        "ORCH_RUN_DIR": str(run_dir),
        "ORCH_EVENTS_FD": os.environ["ORCH_EVENTS_FD"],
        **layout.entry(placement.node).env,
        **placement.env,
    }


def setvars_environment(layout: RunLayout, placement: Placement) -> dict[str, str]:
    """Intel's bindings want their setvars.sh sourced; what a plan sets comes after it."""
    if not layout.setvars:
        return {}
    try:
        return sourced(in_packages(layout.setvars), os.environ)
    except SetvarsError as error:
        fail(f"{error}. To repair it: {repair(layout.entry(placement.node), None)}.")


def master_port(planned: str) -> str:
    """Another one for each attempt, of ours and of torchrun: a rank that is dying may still hold
    the last one's."""
    restarts = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    return str(int(planned) + int(os.environ.get("ORCH_ATTEMPT", "1")) - 1 + 16 * restarts)


def provisioned_environment() -> dict[str, str]:
    """What `orch provision` has laid beside train/: variables, and secrets in a 0600 file."""
    found: dict[str, str] = {}
    for path in (program.ROOT / name for name in files.PROVISIONED):
        if path.exists():
            found |= read_env_file(path)
    return found


def read_env_file(path: Path) -> dict[str, str]:
    """A JSON object of strings: no quoting rules to get wrong, newlines allowed."""
    return {str(name): str(value) for name, value in json.loads(path.read_text()).items()}


def open_log(path: Path) -> int:
    path.parent.mkdir(exist_ok=True)
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)


def last_words(log: Path) -> str:
    """The end of a rank's log: where a signal ends it, there is no exception to report."""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - LAST_WORDS))
        return file.read().decode(errors="replace").strip()


def start(
    placement: Placement, environment: dict[str, str], log: int, command: Sequence[str]
) -> int:
    """Fork and exec the training process; -> its pid. It dies with this one."""
    events = int(environment["ORCH_EVENTS_FD"])
    environment = preload.reachable(environment)
    parent = os.getpid()
    child = os.fork()
    if child:
        os.close(log)
        return child
    try:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.set_inheritable(events, True)
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it died before prctl
            os._exit(143)
        if placement.cpus:
            os.sched_setaffinity(0, placement.cpus)
        os.execve(sys.executable, main_command(command), environment)
    except OSError as error:
        send(Raised(text=f"rank {placement.rank} could not be started: {error}"))
    os._exit(71)  # EX_OSERR


def main_command(command: Sequence[str]) -> list[str]:
    """What becomes the training process: unbuffered, so that a log is never behind."""
    python, *rest = program.command("run-script", *command)
    return [python, "-u", *rest]


class Process(Protocol):
    """The training process, wherever it is."""

    pid: int

    def wait(self) -> tuple[int, int, float]:
        """-> exit code (negative: a signal), most memory in bytes, CPU seconds."""


class Child:
    """The training process where it is a child of this one."""

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def wait(self) -> tuple[int, int, float]:
        _, status, usage = os.wait4(self.pid, 0)
        code = os.waitstatus_to_exitcode(status)
        return code, usage.ru_maxrss * 1024, usage.ru_utime + usage.ru_stime


def wait(child: Process, placement: Placement, memory: Memory, log: Path) -> int:
    """Wait for the training process, passing signals on; -> this process' exit code."""
    stop = Stop(child.pid)
    code, most_memory, cpu_seconds = child.wait()
    name = signal.Signals(-code).name if code < 0 else None
    exited = Exited(
        node=placement.node,
        code=max(code, 0),
        signal=name,
        stopped=stop.asked,
        text=last_words(log) if code and not stop.asked else "",
        oom=memory.killed(child.pid) if name == "SIGKILL" and not stop.asked else None,
        max_rss_bytes=most_memory,
        cpu_seconds=cpu_seconds,
    )
    send(exited)
    if code != 0:
        stop.linger()
    return code if code >= 0 else 128 - code


class Stop:
    """Passes a request to stop on to the child: SIGTERM first, SIGKILL if it does not end. Signals
    that are the script's own affair reach it as they are."""

    def __init__(self, child: int) -> None:
        self.child = child
        self.asked = False
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self.forward)
        for number in FOR_THE_SCRIPT:
            signal.signal(number, self.pass_on)
        signal.signal(signal.SIGALRM, self.kill)

    def forward(self, number: int, frame: FrameType | None) -> None:
        self.asked = True
        self.send(signal.SIGTERM)
        signal.setitimer(signal.ITIMER_REAL, KILL_AFTER_SECONDS)

    def pass_on(self, number: int, frame: FrameType | None) -> None:
        """Launchers signal a rank's whole process group, so a script that is in ours has it."""
        with contextlib.suppress(ProcessLookupError):
            if os.getpgid(self.child) != os.getpgrp():
                self.send(number)

    def kill(self, number: int, frame: FrameType | None) -> None:
        self.send(signal.SIGKILL)

    def send(self, number: int) -> None:
        try:
            os.kill(self.child, number)
        except ProcessLookupError:
            pass

    def linger(self) -> None:
        left = int(os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0"))
        left -= int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
        deadline = time.monotonic() + (LINGER_FOR_RESTART if left > 0 else LINGER_SECONDS)
        while not self.asked and time.monotonic() < deadline:
            time.sleep(0.05)


def fail(text: str, code: int = 1) -> NoReturn:
    send(Raised(text=text))
    print(f"error: {text}", file=sys.stderr, flush=True)
    raise SystemExit(code)
