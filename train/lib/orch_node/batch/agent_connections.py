"""Start the agents of a job on its nodes, and accept their connections."""

from __future__ import annotations

import secrets
import selectors
import socket
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from orch_node import program, tail
from orch_node.atomic_write import private
from orch_node.batch.agent import KEY
from orch_node.batch.system import NodeSystem, address_towards
from orch_node.protocol import batch
from orch_node.protocol.batch import AGENT, SUPERVISOR, Hello, SignatureError, SignedLines, connection_key, nonce
from orch_node.protocol.node_names import fold
from orch_node.protocol.values import ProtocolError

GATHER_SECONDS = 120.0  # a busy controller starts the tasks of a large job one after another
END_SECONDS = 5.0  # until a step ends whose agents have left
HELLO_SECONDS = 10.0  # for the first line of a connection
TICK_SECONDS = 0.2
MAX_HELLO_BYTES = 1 << 20
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
        try:
            return address_towards(peers[0])
        except socket.gaierror:
            if not (address := system.address_of(peers[0])):
                raise
            return address_towards(address)
    except OSError as error:
        raise AgentConnectionError(f"node0 has no route to {peers[0]}: {error}") from None


@dataclass
class PendingConnection:
    """A connection that has not introduced itself yet.

    Attributes:
        deadline: the time (monotonic) at which it is dropped.
        nonce: the number that it has to sign.
        received: its first line as far as it has arrived.
    """

    connection: socket.socket
    deadline: float
    nonce: str = field(default_factory=nonce)
    received: bytes = b""


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
        self.server.setblocking(False)
        self.pending: dict[int, PendingConnection] = {}
        self.hellos: dict[str, Hello] = {}
        self.connections: dict[str, tuple[socket.socket, SignedLines]] = {}
        self.step = self.start()

    def start(self) -> subprocess.Popen[bytes]:
        address = f"{self.address}:{self.server.getsockname()[1]}"
        agent = program.command("job-agent", self.system.name, str(self.run_dir), address)
        with open(self.log, "ab", opener=private) as log:
            return self.system.start_on_nodes(self.nodes, "orch-agents", agent, {KEY: self.key}, log)

    def accept_all(self, seconds: float = GATHER_SECONDS) -> None:
        """Wait until every node has connected, whatever else connects meanwhile.

        Raises:
            AgentConnectionError: if nodes are missing at the end of the time; it names them.
        """
        with selectors.DefaultSelector() as selector, self.server:
            selector.register(self.server, selectors.EVENT_READ)
            try:
                self.accept_nodes(selector, time.monotonic() + seconds)
            finally:
                for descriptor in [*self.pending]:
                    self.drop(selector, descriptor)

    def accept_nodes(self, selector: selectors.BaseSelector, deadline: float) -> None:
        """Accept connections until all nodes have one.

        Raises:
            AgentConnectionError: if the step ends or the deadline passes before.
        """
        while missing := [node for node in self.nodes if node not in self.hellos]:
            if self.step.poll() is not None or time.monotonic() > deadline:
                raise AgentConnectionError(self.describe_missing(missing))
            for key, _ in selector.select(TICK_SECONDS):
                if key.fileobj is self.server:
                    self.accept(selector)
                else:
                    self.read(selector, key.fd)
            self.drop_expired(selector)
            self.limit_pending(selector)

    def limit_pending(self, selector: selectors.BaseSelector) -> None:
        """Accept no more connections while too many have not introduced themselves.

        The kernel holds further connections until some of the open ones are dropped for being late.
        """
        is_full = len(self.pending) >= len(self.nodes) + MAX_EXTRA_PENDING
        if is_full and self.server in selector.get_map():
            selector.unregister(self.server)
        elif not is_full and self.server not in selector.get_map():
            selector.register(self.server, selectors.EVENT_READ)

    def accept(self, selector: selectors.BaseSelector) -> None:
        """Accept a connection and send it a number to sign."""
        try:
            connection, _ = self.server.accept()
        except OSError:  # the other end has closed it already
            return
        connection.setblocking(False)
        pending_connection = PendingConnection(connection, time.monotonic() + HELLO_SECONDS)
        self.pending[connection.fileno()] = pending_connection
        selector.register(connection, selectors.EVENT_READ)
        try:
            connection.send(pending_connection.nonce.encode() + b"\n")
        except OSError:
            self.drop(selector, connection.fileno())

    def read(self, selector: selectors.BaseSelector, descriptor: int) -> None:
        """Read from a pending connection; authenticate or close it once its first line is there."""
        pending_connection = self.pending.get(descriptor)
        if pending_connection is None:
            return
        try:
            piece = pending_connection.connection.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            piece = b""
        pending_connection.received += piece
        if piece and not piece.endswith(b"\n") and len(pending_connection.received) <= MAX_HELLO_BYTES:
            return
        selector.unregister(pending_connection.connection)
        del self.pending[descriptor]
        if not self.authenticate(pending_connection):
            pending_connection.connection.close()

    def authenticate(self, pending_connection: PendingConnection) -> bool:
        """Add the connection of a node; return False if it does not know the key."""
        agent_nonce, _, signed = pending_connection.received.partition(b" ")
        try:
            key = connection_key(self.key, pending_connection.nonce, agent_nonce.decode("ascii"))
            lines = SignedLines(key, sender=SUPERVISOR, receiver=AGENT)
            hello = batch.parse_hello(lines.verify(signed))
        except (UnicodeDecodeError, SignatureError, ProtocolError):
            return False
        if hello.node not in self.nodes or hello.node in self.hellos:
            return False
        pending_connection.connection.setblocking(True)
        self.hellos[hello.node] = hello
        self.connections[hello.node] = pending_connection.connection, lines
        return True

    def drop_expired(self, selector: selectors.BaseSelector) -> None:
        """Close connections that have not introduced themselves in time."""
        now = time.monotonic()
        for descriptor in [key for key, pending in self.pending.items() if pending.deadline < now]:
            self.drop(selector, descriptor)

    def drop(self, selector: selectors.BaseSelector, descriptor: int) -> None:
        pending_connection = self.pending.pop(descriptor, None)
        if pending_connection is not None:
            selector.unregister(pending_connection.connection)
            pending_connection.connection.close()

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
