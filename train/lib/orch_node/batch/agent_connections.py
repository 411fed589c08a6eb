"""Start the agents of a job on its nodes, and accept their connections."""

from __future__ import annotations

import contextlib
import secrets
import socket
import subprocess
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from orch_node import program, tail
from orch_node.atomic_write import private
from orch_node.batch.agent import KEY
from orch_node.batch.handshake import authenticate
from orch_node.batch.system import NodeSystem
from orch_node.protocol import values
from orch_node.protocol.batch import Hello, SignedLines
from orch_node.protocol.node_names import fold
from orch_node.protocol.values import ProtocolError
from orch_node.standalone import facts

GATHER_SECONDS = 120.0  # a busy controller starts the tasks of a large job one after another
END_SECONDS = 5.0  # until a step ends whose agents have left
HELLO_SECONDS = 10.0  # for the first line of a connection
TICK_SECONDS = 0.2
MAX_EXTRA_PENDING = 64  # open connections without a first line, in addition to one for each node
STEP_LOG = "agents.log"
LOG_CHARACTERS = 4000  # of the end of the log, in which the reason of a failure is looked for
LOOPBACK = "127.0.0.1"


class AgentConnectionError(Exception):
    """An agent of the job that has not connected, with the reason."""


def listening_address(system: NodeSystem, peers: Sequence[str]) -> str:
    """Return this node's address as the first of the other nodes reaches it, whose name need not be a host name.

    Raises:
        AgentConnectionError: if there is no route to that node.
    """
    if not peers:
        return LOOPBACK
    try:
        with contextlib.suppress(socket.gaierror):
            return facts.address_towards(peers[0])
        return facts.address_towards(system.address_of(peers[0]) or peers[0])
    except OSError as error:
        raise AgentConnectionError(f"node0 has no route to {peers[0]}: {error}") from None


class AgentConnections:
    """The connections to the agents of a job, and the process that holds the agents.

    Attributes:
        system: the batch system.
        nodes: the names of all nodes of the job, node0 first.
        hellos: what each node reports, once its agent has connected.
        connections: the connection of each node's agent, with the signatures of its lines.
        step: the process of the batch system that holds the agents.
    """

    def __init__(self, system: NodeSystem, run_dir: Path, nodes: Sequence[str]) -> None:
        self.system = system
        self.run_dir = run_dir
        self.nodes = nodes
        self.log = run_dir / STEP_LOG
        self.key = secrets.token_hex(32)
        self.address = listening_address(system, nodes[1:])
        family = socket.AF_INET6 if ":" in self.address else socket.AF_INET
        self.server = socket.create_server((self.address, 0), family=family, backlog=len(nodes))
        self.hellos: dict[str, Hello] = {}
        self.connections: dict[str, tuple[socket.socket, SignedLines]] = {}
        self.step = self.start()

    def start(self) -> subprocess.Popen[bytes]:
        address = f"{self.address}:{self.server.getsockname()[1]}"
        agent = program.command("job-agent", str(self.run_dir), address)
        with open(self.log, "ab", opener=private) as log:
            return self.system.start_on_nodes(self.nodes, "orch-agents", agent, {KEY: self.key}, log)

    def accept_all(self, seconds: float = GATHER_SECONDS) -> None:
        """Wait until every node has connected, whatever else connects meanwhile.

        Raises:
            AgentConnectionError: if the step ends, or nodes are missing at the end of the time; it names them.
        """
        deadline = time.monotonic() + seconds
        # The kernel holds further connections until some of the open ones are dropped for being late.
        slots = threading.Semaphore(len(self.nodes) + MAX_EXTRA_PENDING)
        self.server.settimeout(TICK_SECONDS)
        with self.server:
            while missing := [node for node in self.nodes if node not in self.connections]:
                if self.step.poll() is not None or time.monotonic() > deadline:
                    raise AgentConnectionError(self.describe_missing(missing))
                if not slots.acquire(timeout=TICK_SECONDS):
                    continue
                try:
                    connection, _ = self.server.accept()
                except OSError:  # nobody connects, or the other end has closed it already
                    slots.release()
                    continue
                threading.Thread(target=self.admit, args=(connection, slots), daemon=True).start()

    def admit(self, connection: socket.socket, slots: threading.Semaphore) -> None:
        """Add the connection of a node that introduces itself in time; close the connection of anybody else."""
        try:
            lines, line = authenticate(connection, self.key, HELLO_SECONDS)
            hello = values.parse(Hello, line, "the first line of an agent")
            is_first = hello.node in self.nodes and self.hellos.setdefault(hello.node, hello) is hello
        except (OSError, ProtocolError):
            is_first = False
        finally:
            slots.release()
        if is_first:
            self.connections[hello.node] = connection, lines  # last: accept_all() waits for it
        else:
            connection.close()

    def describe_missing(self, missing: Sequence[str]) -> str:
        """Return which agents have not connected, with the last line of the step's log."""
        output = tail.last_text(self.log, LOG_CHARACTERS).strip().splitlines()
        reason = output[-1] if output else f"{self.system.starter} printed nothing"
        return f"no agent has connected from {fold(missing)}: {reason}"

    def end(self) -> None:
        """Close all connections, which ends the agents and their step.

        At SIGTERM srun would cancel the step by its number. If this node has lost its network, that
        request could arrive after Slurm has restarted the job on other nodes, and end the step of the
        same number there.
        """
        self.server.close()
        for connection, _ in self.connections.values():
            connection.close()
        try:
            self.step.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self.step.kill()
            self.step.wait()
