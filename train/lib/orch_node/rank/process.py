"""The training process of one rank: started, stopped on request."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import time
from collections.abc import Sequence
from types import FrameType
from typing import Protocol

from orch_node import program
from orch_node.agent.processes import handles
from orch_node.events import send
from orch_node.preemption import in_slurm_job
from orch_node.process_handle import ProcessHandle
from orch_node.protocol.environment import with_defaults
from orch_node.protocol.events import Raised
from orch_node.protocol.layout import Placement
from orch_node.rank import malloc, preload

PR_SET_PDEATHSIG = 1  # linux/prctl.h
# What a batch system warns of its end with, and whatever else a script makes of them.
FOR_THE_SCRIPT = (signal.SIGUSR1, signal.SIGUSR2)
# After a failure the supervisor wants the stack traces of the other ranks; hydra would kill those
# as soon as the wrapper ends, so it stays until it is told to stop, or for this long.
LINGER_SECONDS = 10.0
LINGER_FOR_RESTART = 1.5  # where the launcher starts the ranks again as soon as one has ended
KILL_AFTER_SECONDS = 5.0


def start(placement: Placement, environment: dict[str, str], log: int, command: Sequence[str]) -> int:
    """Fork and exec the training process; -> its pid. It dies with this one."""
    events = int(environment["ORCH_EVENTS_FD"])
    environment = malloc.keeping(preload.reachable(with_defaults(environment)))
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


class Stop:
    """Passes a request to stop on to the child: SIGTERM first, SIGKILL if it does not end. Signals
    that are the script's own affair reach it as they are."""

    def __init__(self, child: int) -> None:
        self.child = child
        self.handle = ProcessHandle(child)  # it may be reaped, and its number another's, any moment
        self.asked = False
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self.forward)
        for number in FOR_THE_SCRIPT:
            signal.signal(number, self.pass_on)
        signal.signal(signal.SIGALRM, self.kill)

    def forward(self, number: int, frame: FrameType | None) -> None:
        if in_slurm_job() and number == signal.SIGTERM and handles(self.child, number):
            self.send(number)  # the script writes a checkpoint; its agent ends it if it must
            return
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
        self.handle.send(number)

    def linger(self) -> None:
        left = int(os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0"))
        left -= int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
        deadline = time.monotonic() + (LINGER_FOR_RESTART if left > 0 else LINGER_SECONDS)
        while not self.asked and time.monotonic() < deadline:
            time.sleep(0.05)
