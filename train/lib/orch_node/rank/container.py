"""The training process of one rank in a container, as its wrapper starts and awaits it."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from orch_node.agent import containers, env_file
from orch_node.events import send
from orch_node.protocol import values
from orch_node.protocol.container import ContainedRank, ContainerSpec, RankOrder
from orch_node.protocol.events import Heartbeat, Joined
from orch_node.whole_files import private

PR_SET_PDEATHSIG = 1  # linux/prctl.h
WRAPPER = "a contained rank"
HEARTBEAT_SECONDS = 2.0
# Of the launcher's environment; the rest is the node's, and not that of the image.
CARRIED = ("ACCELERATE_", "TORCHELASTIC_", "ORCH_")


def of_launcher(environ: Mapping[str, str]) -> dict[str, str]:
    """What a rank in a container gets of the environment that its wrapper was started with."""
    return {name: value for name, value in environ.items() if name.startswith(CARRIED)}


class Contained:
    """`pid` is that of the training process: the container has the node's process ids.

    `docker exec` passes on no signals, and its exit code tells no signal from an exit code.
    """

    def __init__(self, run_dir: Path, spec: ContainerSpec, order: RankOrder) -> None:
        placement = order.placement
        command = containers.exec_command(run_dir, spec, node=placement.node, rank=placement.rank)
        self.told = ContainedRank()
        with open(order.log, "ab", opener=private) as words:
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=words, preexec_fn=die_with_parent
            )
        # Over a pipe: secrets are neither in arguments nor in a file more.
        assert self.process.stdin is not None
        line = json.dumps(values.record(replace(order, preload=spec.preload))).encode() + b"\n"
        try:
            self.process.stdin.write(line)
            self.process.stdin.flush()
        except BrokenPipeError:  # it could not be started, and says why
            pass
        self.pass_on(until_started=True)
        self.pid = self.told.pid or self.process.pid

    def pass_on(self, *, until_started: bool = False) -> None:
        """Pass the rank's events on, whole lines; to the end, or until its pid has been told."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            told = contained(line)
            if told is None:
                os.write(1, line)
                continue
            self.told = replace(told, pid=told.pid or self.told.pid)
            if until_started and self.told.pid is not None:
                return

    def wait(self) -> tuple[int, int, float]:
        """-> exit code (negative: a signal), most memory in bytes, CPU seconds."""
        self.pass_on()
        code = self.process.wait()
        if self.told.status is not None:
            code = os.waitstatus_to_exitcode(self.told.status)
        else:
            code = as_signal(code) or 1
        return code, self.told.max_rss_bytes, self.told.cpu_seconds


def contained(line: bytes) -> ContainedRank | None:
    """What the wrapper in the container says; None for any other line."""
    if not line.startswith(containers.MARK):
        return None
    try:
        said = values.an_object(values.loads(line, WRAPPER), WRAPPER)
        return values.read(ContainedRank, said.get("contained"), WRAPPER)
    except values.ProtocolError:
        return None


class Entry:
    """A container whose own entrypoint starts the ranks of this node.

    `pid` is that of `docker run`, which passes signals on. It says what orch's ranks would say, but
    for events of the script, which have no way here.
    """

    def __init__(self, run_dir: Path, spec: ContainerSpec, order: RankOrder) -> None:
        placement, processes = order.placement, spec.processes[order.placement.node]
        environment = {
            **order.environment,
            "NPROC_PER_NODE": str(processes),
            "OMP_NUM_THREADS": str(max(1, placement.threads // processes)),
        }
        del environment["ORCH_EVENTS_FD"]
        # The engine shows a container's variables to whoever may use it.
        secrets = {name: environment.pop(name) for name in order.secrets if name in environment}
        secrets |= {name: text for name, text in order.given.items() if name not in environment}
        command = containers.entry_command(
            run_dir,
            spec,
            placement,
            sorted(environment),
            order.command,
            through_shell=containers.entrypoint_of(spec.image) if secrets else None,
        )
        self.log = Path(order.log)
        with open(self.log, "ab", opener=private) as words:
            self.process = subprocess.Popen(
                command,
                env={**os.environ, **environment},
                stdin=subprocess.PIPE if secrets else subprocess.DEVNULL,
                stdout=words,
                stderr=words,
                preexec_fn=die_with_parent,
            )
        if self.process.stdin is not None:
            with contextlib.suppress(BrokenPipeError), self.process.stdin as pipe:
                pipe.write(containers.as_exports(secrets))
        self.pid = self.process.pid
        self.joined = Joined(
            node=placement.node, pid=self.pid, cpus=placement.cpus, backend="the image's own", torch="its own"
        )

    def wait(self) -> tuple[int, int, float]:
        """-> exit code (negative: a signal); memory and CPU seconds are not known."""
        send(self.joined)
        size = 0
        while True:
            try:
                return as_signal(self.process.wait(HEARTBEAT_SECONDS)), 0, 0.0
            except subprocess.TimeoutExpired:
                size, before = self.log.stat().st_size, size
            if size != before:
                send(Heartbeat(log=size))


def start(run_dir: Path, spec: ContainerSpec, order: RankOrder) -> Contained | Entry:
    """Raises EnvFileError."""
    kind = Entry if spec.starts_ranks else Contained
    given = env_file.read(Path(spec.env_file), os.environ) if spec.env_file else {}
    return kind(run_dir, spec, replace(order, given=given))


def as_signal(code: int) -> int:
    """An exit code of docker's, where 137 stands for SIGKILL."""
    return 128 - code if code - 128 in set(signal.Signals) else code


def die_with_parent() -> None:
    """The order's pipe closes with it, which ends the training process."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
