"""Start and stop the training process of a rank.

`node.py no-listen COMMAND` runs COMMAND without the listening sockets that it inherits. Hydra leaves its proxy's
listening socket open in every process that it starts. The script and its child processes would keep it open.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import socket
import stat
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import NoReturn

from orch_node import program
from orch_node.agent import processes
from orch_node.agent.processes import handles_signal
from orch_node.disk import describe_on_node
from orch_node.events import send
from orch_node.machine import die_with_parent, send_signal, start_time
from orch_node.protocol.events import Raised
from orch_node.protocol.layout import RankEntry
from orch_node.rank.environment import with_node_settings
from orch_node.reach import BY_STEP
from orch_node.streams import LogWriter

# Left to the script: batch systems announce the end of a job with them.
SCRIPT_SIGNALS = (signal.SIGUSR1, signal.SIGUSR2)
# After a failure the supervisor takes the stack traces of the other ranks. Hydra kills those as
# soon as a wrapper ends, so the wrapper stays until it is asked to stop, or for this long.
LINGER_SECONDS = 10.0
LINGER_BEFORE_RESTART_SECONDS = 1.5  # torchrun restarts the ranks as soon as one has ended
KILL_AFTER_SECONDS = 5.0
END_SECONDS = 3.0


def main_without_listening(argv: list[str]) -> NoReturn:
    """Replace this process by the command of the arguments, without listening sockets."""
    close_listening()
    os.execv(argv[0], argv)


def close_listening() -> None:
    """Close the listening sockets of this process; connected ones belong to the launcher."""
    for fd in map(int, os.listdir("/proc/self/fd")):
        if is_listening(fd):
            os.close(fd)


def is_listening(fd: int) -> bool:
    with contextlib.suppress(OSError):
        if stat.S_ISSOCK(os.fstat(fd).st_mode):
            with socket.socket(fileno=os.dup(fd)) as duplicate:
                return bool(duplicate.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
    return False


def open_log(path: Path, node: str) -> LogWriter:
    """Open the log of a rank; an error that its file has later is reported with the name of the node.

    Raises:
        OSError: if it cannot be opened.
    """
    return LogWriter(path, lambda error: send(Raised(text=describe_on_node(node, path.parent.parent, error))))


def start(placement: RankEntry, environment: dict[str, str], log: LogWriter, command: Sequence[str]) -> Child:
    """Fork and exec the training process, which dies with this process.

    Args:
        placement: of the rank.
        environment: of the training process.
        log: gets what the process prints.
        command: the script and its arguments.
    """
    events = int(environment["ORCH_EVENTS_FD"])
    environment = with_node_settings(environment)
    parent = os.getpid()
    processes.keep_descendants()
    child = os.fork()
    if child:
        log.begin()
        return Child(child, log)
    try:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(log.stdout, 1)
        os.dup2(log.stderr, 2)
        os.set_inheritable(events, True)
        die_with_parent()
        if os.getppid() != parent:  # the parent died before prctl
            os._exit(143)
        if placement.cpus:
            os.sched_setaffinity(0, placement.cpus)
        os.execve(sys.executable, program.command("run-script", *command), environment)
    except OSError as error:
        send(Raised(text=f"rank {placement.rank} could not be started: {error}"))
    os._exit(71)  # EX_OSERR


class Child:
    """A training process that is a child of this process; that of a container is a subclass."""

    def __init__(self, pid: int, log: LogWriter) -> None:
        self.pid = pid
        self.log = log

    def wait(self) -> tuple[int, int, float]:
        """Return the exit code (negative: a signal), peak memory in bytes, and CPU seconds."""
        _, status, usage = os.wait4(self.pid, 0)
        self.log.drain()
        return os.waitstatus_to_exitcode(status), usage.ru_maxrss * 1024, usage.ru_utime + usage.ru_stime


def end_descendants() -> None:
    """End processes that a failed script leaves, such as those of torchrun, which are in other sessions."""
    processes.terminate(processes.descendants, term_seconds=0.0, seconds=END_SECONDS)


class SignalForwarder:
    """Forwards signals to the child: requests to stop as SIGTERM, then SIGKILL; others unchanged."""

    def __init__(self, child: int) -> None:
        self.child = child
        self.start = start_time(child)  # a later process with the same pid has another one
        self.stop_requested = False
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self.request_stop)
        for number in SCRIPT_SIGNALS:
            signal.signal(number, self.forward)
        signal.signal(signal.SIGALRM, self.kill)

    def request_stop(self, number: int, frame: FrameType | None) -> None:
        if BY_STEP in os.environ and number == signal.SIGTERM and handles_signal(self.child, number):
            # The script writes a checkpoint; the agent ends it if necessary.
            send_signal(self.child, self.start, number)
            return
        self.stop_requested = True
        send_signal(self.child, self.start, signal.SIGTERM)
        signal.setitimer(signal.ITIMER_REAL, KILL_AFTER_SECONDS)

    def forward(self, number: int, frame: FrameType | None) -> None:
        """Send the signal to the script unless it is in our process group, which launchers signal."""
        with contextlib.suppress(ProcessLookupError):
            if os.getpgid(self.child) != os.getpgrp():
                send_signal(self.child, self.start, number)

    def kill(self, number: int, frame: FrameType | None) -> None:
        send_signal(self.child, self.start, signal.SIGKILL)

    def linger(self) -> None:
        """Wait until the supervisor has taken the stack traces of the other ranks."""
        restarts = int(os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0"))
        restarts -= int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
        self.await_stop(LINGER_BEFORE_RESTART_SECONDS if restarts > 0 else LINGER_SECONDS)

    def await_stop(self, seconds: float = math.inf) -> None:
        """Wait until the supervisor ends the run, after a rank that has not left its process group.

        Launchers of MPI take the end of such a rank for a failure, and kill the others.
        """
        deadline = time.monotonic() + seconds
        while not self.stop_requested and time.monotonic() < deadline:
            time.sleep(0.05)
