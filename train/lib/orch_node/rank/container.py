"""Start the training process of a rank in a container, and wait for it.

In the container, `node.py contained-rank RUN_DIR` starts it. The wrapper on the node writes a RankRequest, one line of
JSON, to standard input and keeps that pipe open. When it closes, nobody waits for the rank any more, and the training
process is killed. Standard output goes to the wrapper: the rank's events, and those of this process.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

from orch_node import machine
from orch_node.agent import containers
from orch_node.atomic_write import private
from orch_node.events import send
from orch_node.protocol import container, values
from orch_node.protocol.container import ContainedRank, ContainerSpec, RankRequest
from orch_node.protocol.environment import find_reserved, override, rank_variables, user_names
from orch_node.protocol.events import Heartbeat, Joined
from orch_node.rank.checks import IMAGE_REPAIR, RankError
from orch_node.rank.environment import sourced_variables
from orch_node.rank.process import Child, open_log
from orch_node.rank.process import start as start_process
from orch_node.standalone import facts

SENDER = "a contained rank"
HEARTBEAT_SECONDS = 2.0
POLL_SECONDS = 1.0  # for the end of a training process
REPORT_SECONDS = 5.0  # the process in the container reports the end of the training process within this time


class ContainedProcess(Child):
    """A rank that orch starts in the node's container.

    `docker exec` passes no signals on, and its exit code does not distinguish a signal from an exit
    code. The process in the container, which runs main(), therefore reports both.

    Attributes:
        pid: of the training process; the container shares the node's process ids.
    """

    def __init__(self, run_dir: Path, spec: ContainerSpec, order: RankRequest) -> None:
        placement = order.placement
        command = containers.exec_command(run_dir, spec, node=placement.node, rank=placement.rank)
        self.status = ContainedRank()
        with open(order.log, "ab", opener=private) as log:
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, preexec_fn=machine.die_with_parent
            )
        # Send the order by a pipe: secrets are neither in arguments nor in one more file.
        assert self.process.stdin is not None
        line = values.render(replace(order, preload=spec.preload)).encode() + b"\n"
        with contextlib.suppress(BrokenPipeError):  # it could not be started, and the log says why
            self.process.stdin.write(line)
            self.process.stdin.flush()
        self.forward_events(until_started=True)
        self.pid = self.status.pid or self.process.pid

    def forward_events(self, *, until_started: bool = False) -> None:
        """Write the rank's events to standard output, until they end or the rank's pid is known."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            status = parse_status(line)
            if status is None:
                os.write(1, line)
                continue
            self.status = replace(status, pid=status.pid or self.status.pid)
            if until_started and self.status.pid is not None:
                return

    def wait(self) -> tuple[int, int, float]:
        """Return the exit code (negative: a signal), peak memory in bytes, and CPU seconds."""
        threading.Thread(target=self.end_with_rank, daemon=True).start()
        self.forward_events()
        code = exit_code_or_signal(self.process.wait()) or 1
        if self.status.code is not None:
            code = self.status.code
        return code, self.status.max_rss_bytes, self.status.cpu_seconds

    def end_with_rank(self) -> None:
        """End `docker exec` if it outlives the training process.

        It never ends if the container is killed or removed, because the container shares the node's process ids.
        """
        start = machine.start_time(self.pid)
        while start is not None and machine.is_alive(self.pid, start):
            time.sleep(POLL_SECONDS)
        time.sleep(REPORT_SECONDS)
        self.process.kill()


def parse_status(line: bytes) -> ContainedRank | None:
    """Return the status that the process in the container reports; None for any other line."""
    with contextlib.suppress(values.ProtocolError):
        if line.startswith(containers.MARK):
            return values.parse(ContainedRank, line[len(containers.MARK) :], SENDER)
    return None


class EntrypointProcess(Child):
    """A container whose own entrypoint starts the ranks of this node.

    It sends the events that orch's ranks would send; those of the script cannot reach the node.

    Attributes:
        pid: of `docker run`, which passes signals on.
    """

    def __init__(self, run_dir: Path, spec: ContainerSpec, order: RankRequest) -> None:
        placement, processes = order.placement, spec.processes[order.placement.node]
        threads = max(1, placement.threads // processes)
        environment = {**order.environment, "NPROC_PER_NODE": str(processes), "OMP_NUM_THREADS": str(threads)}
        del environment["ORCH_EVENTS_FD"]
        # The engine shows a container's variables to all its users; pass secrets by a pipe.
        secrets = {name: environment[name] for name in order.secrets if name in environment}
        requested = user_names(order.environment)
        secrets |= {name: text for name, text in order.given.items() if name not in requested}
        environment = {name: text for name, text in environment.items() if name not in secrets}
        entrypoint = containers.entrypoint_of(spec.image) if secrets else None
        command = containers.entry_command(run_dir, spec, order, sorted(environment), entrypoint)
        self.path = Path(order.log)
        self.log = open_log(self.path, placement.node)
        self.process = subprocess.Popen(
            command,
            env={**os.environ, **environment},
            stdin=subprocess.PIPE if secrets else subprocess.DEVNULL,
            stdout=self.log.stdout,
            stderr=self.log.stderr,
            preexec_fn=machine.die_with_parent,
        )
        self.log.begin()
        if self.process.stdin is not None:
            with contextlib.suppress(BrokenPipeError), self.process.stdin as pipe:
                pipe.write(containers.as_exports(secrets))
        self.pid = self.process.pid
        self.joined = Joined(
            node=placement.node, pid=self.pid, cpus=placement.cpus, backend="the image's own", torch="its own"
        )

    def wait(self) -> tuple[int, int, float]:
        """Return the exit code (negative: a signal); memory and CPU seconds are unknown, thus 0."""
        send(self.joined)
        size = 0
        while True:
            try:
                code = self.process.wait(HEARTBEAT_SECONDS)
                self.log.drain()
                return exit_code_or_signal(code), 0, 0.0
            except subprocess.TimeoutExpired:
                size, last_size = self.path.stat().st_size, size
            if size != last_size:
                send(Heartbeat(log=size))


def start(run_dir: Path, spec: ContainerSpec, order: RankRequest) -> Child:
    """Start the rank, or the image's own entrypoint.

    Raises:
        EnvFileError: if the file of variables for the container cannot be used, or sets one that is orch's.
    """
    process_class = EntrypointProcess if spec.starts_ranks else ContainedProcess
    variables = container.read_variables(Path(spec.env_file), os.environ) if spec.env_file else {}
    if reserved := find_reserved(variables):
        raise container.EnvFileError(f"env_file {spec.env_file} sets {reserved[0]}: {reserved[1]}")
    return process_class(run_dir, spec, replace(order, given=variables))


def exit_code_or_signal(code: int) -> int:
    """Return an exit code of docker as subprocess has it: -9, not 137, for SIGKILL."""
    return 128 - code if code - 128 in set(signal.Signals) else code


def main(argv: list[str]) -> int:
    """Start the rank, pass signals on, and report how it ends."""
    with open(0, "rb", buffering=0, closefd=False) as stdin:
        order = values.parse(RankRequest, stdin.readline(), "a rank's order")
    os.environ.update(order.given)
    events = os.dup(1)
    os.environ["ORCH_EVENTS_FD"] = str(events)
    try:
        environment = rank_environment(order, events)
    except RankError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    child = start_process(order.placement, environment, open_log(Path(order.log), order.placement.node), order.command)
    rank = (child.pid, machine.start_time(child.pid))
    # Handle the signals, do not ignore them: exec() keeps ignored signals ignored.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: machine.send_signal(*rank, signal.SIGTERM))
    write_event(events, pid=child.pid)
    threading.Thread(target=kill_with_wrapper, args=rank, daemon=True).start()
    code, max_rss_bytes, cpu_seconds = child.wait()
    write_event(events, code=code, max_rss_bytes=max_rss_bytes, cpu_seconds=cpu_seconds)
    return 0


def rank_environment(order: RankRequest, events: int) -> dict[str, str]:
    """Return the image's environment, then the run's, with the image's libraries to preload, then the user's file."""
    setvars = sourced_variables(order.setvars, os.environ, IMAGE_REPAIR)
    settings = rank_variables(order.environment, order.preload, facts.libraries(Path(sys.prefix)))
    variables = override(settings, order.environment, order.given)
    return {**os.environ, **setvars, **variables, "ORCH_EVENTS_FD": str(events)}


def kill_with_wrapper(pid: int, start: int | None) -> None:
    """Kill the rank when the wrapper on the node closes standard input."""
    while os.read(0, 1):
        pass
    machine.send_signal(pid, start, signal.SIGKILL)


def write_event(events: int, **fields: object) -> None:
    os.write(events, containers.MARK + json.dumps(fields).encode() + b"\n")
