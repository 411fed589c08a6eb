"""The supervisor's channels to the agents of a job: connections that these have opened."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path

from orch_node.line_pipes import Pipes
from orch_node.supervisor.agents import Agents, Channel


class JobChannel(Channel):
    """An agent that has connected. One whose connection ends does not come again."""

    again = False

    def __init__(self, node: str, log: Path, connection: socket.socket) -> None:
        super().__init__(node, [], log)
        self.connection = connection

    def open(self, pipes: Pipes) -> None:
        self.pipes = pipes
        self.heard = time.monotonic()
        self.answered = True
        self.descriptor = os.dup(self.connection.fileno())
        os.set_blocking(self.descriptor, False)
        pipes.add(self.descriptor, self.take)

    @property
    def stdin(self) -> int:
        return self.descriptor

    @property
    def stdout(self) -> int:
        return self.descriptor

    def close(self) -> None:
        if self.descriptor >= 0:
            self.pipes.drop(self.descriptor)
            os.close(self.descriptor)
            self.connection.close()
            self.descriptor = -1

    def kill(self) -> None:
        self.close()

    def end(self, seconds: float) -> None:
        """Slurm ends what is left of it."""

    def problem(self) -> str:
        return "the connection to its agent ended"


class JobAgents(Agents):
    """`connections`: node -> the connection of its agent."""

    def __init__(
        self,
        run_dir: Path,
        nodes: list[str],
        claims: str,
        pipes: Pipes,
        connections: dict[str, socket.socket],
    ) -> None:
        self.connections = connections
        super().__init__(run_dir, nodes, claims, pipes)

    def channel(self, node: str, log: Path) -> Channel:
        return JobChannel(node, log, self.connections[node])
