"""The supervisor's channels to the agents of a job, over connections that the agents have opened."""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from orch_node.batch.system import NodeSystem
from orch_node.line_pipes import Pipes
from orch_node.protocol import batch, files, values
from orch_node.protocol.agent import Request
from orch_node.protocol.batch import SignatureError, SignedLines, Submitted
from orch_node.supervisor.agents import Agents, Channel

FILES_SECONDS = 1.0  # between checks of the run's folder


class JobChannel(Channel):
    """The channel to an agent that has connected; it cannot be opened again."""

    can_reopen = False

    def __init__(self, node: str, log: Path, connection: socket.socket, lines: SignedLines) -> None:
        super().__init__(node, [], log)
        self.connection = connection
        self.lines = lines
        self.forged = ""  # why a line was rejected

    def open(self, pipes: Pipes) -> None:
        self.pipes = pipes
        self.last_response = time.monotonic()
        self.has_responded = True
        self.stdin = self.stdout = os.dup(self.connection.fileno())
        os.set_blocking(self.stdin, False)
        pipes.add(self.stdout, self.handle_line)

    def handle_line(self, line: bytes) -> None:
        """Handle a line of the agent; close the connection at the first line without its signature."""
        if self.stdout < 0:
            return
        try:
            verified = self.lines.verify(line)
        except SignatureError as error:
            self.forged = str(error)
            self.close()
            return
        super().handle_line(verified)

    def request(self, question: Request) -> None:
        if self.stdin >= 0:
            super().request(question)

    def sign(self, line: bytes) -> bytes:
        return self.lines.sign(line)

    def close(self) -> None:
        if self.stdout >= 0:
            self.pipes.drop(self.stdout)
            os.close(self.stdout)
            self.connection.close()
            self.stdin = self.stdout = -1

    def kill(self) -> None:
        self.close()

    def end(self, seconds: float) -> None:
        """Do nothing: the batch system ends what remains of the agent."""

    def problem(self) -> str:
        if self.forged:
            return f"the connection to its agent was closed: {self.forged}"
        return "the connection to its agent ended"


class JobAgents(Agents):
    """The agents of a job.

    Attributes:
        system: the batch system.
        connections: the connection of each node's agent, with the signatures of its lines.
    """

    def __init__(
        self,
        run_dir: Path,
        nodes: list[str],
        claims: str,
        pipes: Pipes,
        *,
        system: NodeSystem,
        connections: Mapping[str, tuple[socket.socket, SignedLines]],
    ) -> None:
        self.system = system
        self.connections = connections
        self.files_checked = time.monotonic()
        super().__init__(run_dir, nodes, claims, pipes)

    def channel(self, node: str, log: Path) -> Channel:
        return JobChannel(node, log, *self.connections[node])

    def watch(self) -> float:
        if time.monotonic() - self.files_checked > FILES_SECONDS:
            self.files_checked = time.monotonic()
            self.obey_run_folder()
        return super().watch()

    def obey_run_folder(self) -> None:
        """Obey the stop file and later starts of the job, also if no network reaches this node.

        A batch system restarts a job whose first node it has lost. If that node still runs and sees the
        folder, two starts would train in it. The older one exits at once and writes nothing; its
        agents end its ranks.
        """
        exit_if_superseded(self.system, self.run_dir)
        if (self.run_dir / files.STOP).exists():
            os.kill(os.getpid(), signal.SIGINT)


def exit_if_superseded(system: NodeSystem, run_dir: Path) -> None:
    """End this process at once if a later start of the job, or a later job, has taken the run's folder."""
    if is_superseded(run_dir / batch.job_file(system.name), system.submission()):
        print(f"error: {system.title} has restarted this job elsewhere; this start exits", file=sys.stderr, flush=True)
        os._exit(1)


def is_superseded(job_file: Path, turn: Submitted) -> bool:
    """Return whether a later start of the job, or a later job, has taken the run's folder."""
    latest = values.load(batch.parse_submitted, job_file)
    if latest is None:
        return False
    if latest.job == turn.job:
        return latest.restarts > turn.restarts
    return -1 < batch.job_number(turn.job) < batch.job_number(latest.job)
