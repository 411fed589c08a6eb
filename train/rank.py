"""Starts one rank: `python rank.py --run RUN_DIR -- SCRIPT [ARGS...]`, once per rank.

This process stays small (standard library only). It finds its place in RUN_DIR/layout.json, makes
the environment from RUN_DIR/env.json, starts rank_main.py pinned to its cores with a log file of
its own, and outlives it: whatever happens to the training process, also SIGKILL, this one reports
it with an exit code or a signal. It keeps the launcher's PMI socket open until the report is out,
so that hydra does not kill the other ranks before the first failing one has been named. Where the
run has containers, the training process is in that of this node (rank_container.py).
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn, Protocol

import rank_container
from containers import read_spec
from oom import Memory
from rank_events import report
from setvars import SetvarsError, in_packages, sourced

ROOT = Path(__file__).resolve().parent.parent  # on a node: what `orch provision` fills
PR_SET_PDEATHSIG = 1  # linux/prctl.h
# After a failure the supervisor wants the stacks of the other ranks; hydra would kill those as
# soon as this process ends, so it stays until it is told to stop, or for this long.
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
    layout = json.loads((run_dir / "layout.json").read_text())
    place = find_place(layout, os.environ)
    spec = read_spec(run_dir)
    environment = {**inherited(layout, spec), **rank_environment(run_dir, layout, place)}
    os.environ.update({name: environment[name] for name in ("RANK", "ORCH_EVENTS_FD")})
    log_path = run_dir / "ranks" / f"rank-{place['rank']}.log"
    log = open_log(log_path)
    memory = Memory()
    child: Process
    if spec:
        order = {"place": place, "environment": environment, "command": command}
        order |= {"log": str(log_path), "setvars": layout.get("setvars")}
        child = rank_container.start(run_dir, spec, order)
    else:
        child = Child(start(place, environment, log, command))
    report(
        "started", node=place["node"], pid=child.pid, wrapper=os.getpid(), host=socket.gethostname()
    )
    return wait(child, place, memory, log_path)


def parse(argv: list[str]) -> tuple[Path, list[str]]:
    if len(argv) < 4 or argv[0] != "--run" or argv[2] != "--":
        fail("usage: rank.py --run RUN_DIR -- SCRIPT [ARGS...]", code=2)
    return Path(argv[1]), argv[3:]


def launched_as(environ: os._Environ[str] | dict[str, str]) -> tuple[int, int]:
    """(rank, world size) given by the launcher."""
    for rank, size in RANK_VARIABLES:
        if rank in environ and size in environ:
            return int(environ[rank]), int(environ[size])
    fail(
        "rank.py was not started by mpiexec or torchrun: there is no PMI_RANK, "
        "OMPI_COMM_WORLD_RANK or RANK in the environment."
    )


def find_place(
    layout: dict[str, Any], environ: os._Environ[str] | dict[str, str]
) -> dict[str, Any]:
    """This rank's place. torchrun numbers its nodes as they come; so there it is the one of this
    node and of its local number, whatever torchrun's rank."""
    rank, world_size = launched_as(environ)
    planned = layout["world_size"]
    if world_size != planned:
        fail(f"the launcher started {world_size} ranks, the layout has {planned}.")
    if "ORCH_NODE" not in environ:
        return dict(layout["ranks"][rank])
    wanted = (environ["ORCH_NODE"], int(environ["LOCAL_RANK"]))
    places = (one for one in layout["ranks"] if (one["node"], one["local_rank"]) == wanted)
    place = next(places, None)
    if place is None:
        fail("the layout has no local rank {1} on {0}.".format(*wanted))
    return dict(place)


def inherited(layout: dict[str, Any], spec: dict[str, Any] | None) -> dict[str, str]:
    """The launcher's environment; in a container only what is not the node's."""
    if spec:
        return rank_container.of_launcher(os.environ)
    return {**os.environ, **setvars_environment(layout)}


def rank_environment(
    run_dir: Path, layout: dict[str, Any], place: dict[str, Any]
) -> dict[str, str]:
    """What orch sets: the node's, the run's, and this rank's own on top."""
    planned = read_env_file(run_dir / "env.json")
    return {
        **provisioned_environment(),
        **planned,
        "MASTER_PORT": master_port(planned["MASTER_PORT"]),
        "RANK": str(place["rank"]),
        "WORLD_SIZE": str(layout["world_size"]),
        # The ranks meet at MASTER_ADDR: torchrun's own store has the numbers of its own ranks.
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        "LOCAL_RANK": str(place["local_rank"]),
        "LOCAL_WORLD_SIZE": str(place["local_world_size"]),
        "OMP_NUM_THREADS": str(place["threads"]),
        "ORCH_RUN_DIR": str(run_dir),
        "ORCH_EVENTS_FD": str(os.dup(1)),
        **node_entry(layout, place)["env"],
        **place["env"],
    }


def setvars_environment(layout: dict[str, Any]) -> dict[str, str]:
    """Intel's bindings want their setvars.sh sourced; what a plan sets comes after it."""
    if "setvars" not in layout:
        return {}
    try:
        return sourced(in_packages(layout["setvars"]), os.environ)
    except SetvarsError as error:
        fail(str(error))


def master_port(planned: str) -> str:
    """Another one for each attempt, of ours and of torchrun: a rank that is dying may still hold
    the last one's."""
    restarts = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    return str(int(planned) + int(os.environ.get("ORCH_ATTEMPT", "1")) - 1 + 16 * restarts)


def node_entry(layout: dict[str, Any], place: dict[str, Any]) -> dict[str, Any]:
    """What the layout says of the node of a place."""
    return next(dict(node) for node in layout["nodes"] if node["name"] == place["node"])


def provisioned_environment() -> dict[str, str]:
    """What `orch provision` has laid beside train/: variables, and secrets in a 0600 file."""
    found: dict[str, str] = {}
    for path in (ROOT / "env.json", ROOT / "secrets.json"):
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


def start(place: dict[str, Any], environment: dict[str, str], log: int, command: list[str]) -> int:
    """Fork and exec rank_main.py; -> its pid. It dies with this process, whatever kills it."""
    main_script = str(Path(__file__).resolve().with_name("rank_main.py"))
    events = int(environment["ORCH_EVENTS_FD"])
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
        if place["cpus"]:
            os.sched_setaffinity(0, place["cpus"])
        os.execve(sys.executable, [sys.executable, "-u", main_script, *command], environment)
    except OSError as error:
        report("exception", text=f"rank {place['rank']} could not be started: {error}")
    os._exit(71)  # EX_OSERR


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


def wait(child: Process, place: dict[str, Any], memory: Memory, log: Path) -> int:
    """Wait for the training process, forwarding SIGTERM and SIGINT; -> this process' exit code."""
    stop = Stop(child.pid)
    code, most_memory, cpu_seconds = child.wait()
    name = signal.Signals(-code).name if code < 0 else None
    report(
        "exit",
        node=place["node"],
        code=max(code, 0),
        signal=name,
        stopped=stop.asked,
        text=last_words(log) if code and not stop.asked else "",
        oom=memory.killed(child.pid) if name == "SIGKILL" and not stop.asked else None,
        max_rss_bytes=most_memory,
        cpu_seconds=cpu_seconds,
    )
    if code != 0:
        stop.linger()
    return code if code >= 0 else 128 - code


class Stop:
    """Passes a request to stop on to the child: SIGTERM first, SIGKILL if it does not end."""

    def __init__(self, child: int) -> None:
        self.child = child
        self.asked = False
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self.forward)
        signal.signal(signal.SIGALRM, self.kill)

    def forward(self, number: int, frame: FrameType | None) -> None:
        self.asked = True
        self.send(signal.SIGTERM)
        signal.setitimer(signal.ITIMER_REAL, KILL_AFTER_SECONDS)

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
    report("exception", text=text)
    print(f"error: {text}", file=sys.stderr, flush=True)
    raise SystemExit(code)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
