"""The agents of a job: one step of Slurm starts them all, and each connects to the supervisor."""

from __future__ import annotations

import os
import re
import secrets
import selectors
import socket
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from orch_node import program, tail
from orch_node.protocol import slurm
from orch_node.protocol.slurm import Hello
from orch_node.protocol.values import ProtocolError
from orch_node.slurm.agent import KEY
from orch_node.slurm.signed_lines import AGENT, SUPERVISOR, SignatureError, SignedLines, connection_key, nonce
from orch_node.slurm.words import STEP, one_task_each
from orch_node.whole_files import private

GATHER_SECONDS = 120.0  # a busy controller starts the tasks of a large job one after another
HELLO_SECONDS = 10.0  # for the first line of a connection
TICK_SECONDS = 0.2
MAX_HELLO_BYTES = 1 << 20
MAX_STRANGERS = 64  # open connections without a first line, in addition to one for each node
STEP_LOG = "agents.log"
LOG_CHARACTERS = 4000  # of the end of the log, in which the reason of a failure is looked for
LOOPBACK = "127.0.0.1"
NODE_ADDRESS = re.compile(r"\bNodeAddr=(\S+)")


class GatherError(Exception):
    """Why the nodes of the job did not come together, in one sentence."""


def address_towards(peers: Sequence[str]) -> str:
    """Return this node's address on the way to the first of the other nodes. No packet is sent.

    Raises:
        GatherError: if there is no way to that node.
    """
    if not peers:
        return LOOPBACK
    try:
        family, target = resolve(peers[0])
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(target)
            return str(probe.getsockname()[0])
    except OSError as error:
        raise GatherError(f"node0 finds no way to {peers[0]}: {error}") from None


def resolve(node: str) -> tuple[socket.AddressFamily, tuple[Any, ...]]:
    """Return the family and address of a node: Slurm's names need not be names of hosts.

    Raises:
        OSError: if neither the node's name nor its address in Slurm can be resolved.
    """
    try:
        found = socket.getaddrinfo(node, 9, type=socket.SOCK_DGRAM)[0]
    except socket.gaierror:
        address = slurm_address(node)
        if not address:
            raise
        found = socket.getaddrinfo(address, 9, type=socket.SOCK_DGRAM)[0]
    return found[0], found[4]


def slurm_address(node: str) -> str:
    """Return the address by which Slurm itself reaches a node, or ''."""
    shown = subprocess.run(
        ["scontrol", "show", "node", "--oneliner", node], capture_output=True, text=True, stdin=subprocess.DEVNULL
    )
    match = NODE_ADDRESS.search(shown.stdout)
    return match[1] if match else ""


@dataclass
class Newcomer:
    """A connection that has not said yet which node it is."""

    connection: socket.socket
    deadline: float
    nonce: str = field(default_factory=nonce)
    received: bytes = b""


class Gathering:
    """The step of a job that starts its agents, and their connections.

    Attributes:
        nodes: the names of all nodes of the job, node0 first.
        hellos: what each node is, once it has connected.
        connections: the connection of each node's agent, with the signatures of its lines.
        step: the process of Slurm that holds the agents.
    """

    def __init__(self, run_dir: Path, nodes: Sequence[str]) -> None:
        self.run_dir = run_dir
        self.nodes = nodes
        self.log = run_dir / STEP_LOG
        self.key = secrets.token_hex(32)
        self.address = address_towards(nodes[1:])
        family = socket.AF_INET6 if ":" in self.address else socket.AF_INET
        self.server = socket.create_server((self.address, 0), family=family, backlog=len(nodes))
        self.server.setblocking(False)
        self.newcomers: dict[int, Newcomer] = {}
        self.hellos: dict[str, Hello] = {}
        self.connections: dict[str, tuple[socket.socket, SignedLines]] = {}
        self.step = self.start()

    def start(self) -> subprocess.Popen[bytes]:
        where = f"{self.address}:{self.server.getsockname()[1]}"
        agent = program.command("slurm-agent", str(self.run_dir), where)
        with open(self.log, "ab", opener=private) as log:
            return subprocess.Popen(
                ["srun", *STEP, *one_task_each(self.nodes), "--job-name=orch-agents", *agent],
                env={**os.environ, KEY: self.key},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def all(self, seconds: float = GATHER_SECONDS) -> None:
        """Wait until every node has connected, whatever else connects meanwhile.

        Raises:
            GatherError: if nodes are missing at the end of the time; it names them.
        """
        with selectors.DefaultSelector() as selector, self.server:
            selector.register(self.server, selectors.EVENT_READ)
            try:
                self.accept_nodes(selector, time.monotonic() + seconds)
            finally:
                for descriptor in [*self.newcomers]:
                    self.drop(selector, descriptor)

    def accept_nodes(self, selector: selectors.BaseSelector, deadline: float) -> None:
        while missing := [node for node in self.nodes if node not in self.hellos]:
            if self.step.poll() is not None or time.monotonic() > deadline:
                raise GatherError(self.why(missing))
            for key, _ in selector.select(TICK_SECONDS):
                if key.fileobj is self.server:
                    self.accept(selector)
                else:
                    self.read(selector, key.fd)
            self.drop_late(selector)
            self.limit_newcomers(selector)

    def limit_newcomers(self, selector: selectors.BaseSelector) -> None:
        """Accept no more connections while too many have not introduced themselves.

        The kernel holds further connections until some of the open ones are dropped for being late.
        """
        is_full = len(self.newcomers) >= len(self.nodes) + MAX_STRANGERS
        if is_full and self.server in selector.get_map():
            selector.unregister(self.server)
        elif not is_full and self.server not in selector.get_map():
            selector.register(self.server, selectors.EVENT_READ)

    def accept(self, selector: selectors.BaseSelector) -> None:
        """Accept a connection and send it a number to sign."""
        try:
            connection, _ = self.server.accept()
        except OSError:  # it has left already
            return
        connection.setblocking(False)
        newcomer = Newcomer(connection, time.monotonic() + HELLO_SECONDS)
        self.newcomers[connection.fileno()] = newcomer
        selector.register(connection, selectors.EVENT_READ)
        try:
            connection.send(newcomer.nonce.encode() + b"\n")
        except OSError:
            self.drop(selector, connection.fileno())

    def read(self, selector: selectors.BaseSelector, descriptor: int) -> None:
        """Read what a newcomer has sent; take it in or drop it once its first line is there."""
        newcomer = self.newcomers.get(descriptor)
        if newcomer is None:
            return
        try:
            piece = newcomer.connection.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            piece = b""
        newcomer.received += piece
        if piece and not piece.endswith(b"\n") and len(newcomer.received) <= MAX_HELLO_BYTES:
            return
        selector.unregister(newcomer.connection)
        del self.newcomers[descriptor]
        if not self.welcome(newcomer):
            newcomer.connection.close()

    def welcome(self, newcomer: Newcomer) -> bool:
        """Take a node in; return False for whoever does not know the key."""
        agent_nonce, _, sealed = newcomer.received.partition(b" ")
        try:
            key = connection_key(self.key, newcomer.nonce, agent_nonce.decode("ascii"))
            lines = SignedLines(key, sender=SUPERVISOR, receiver=AGENT)
            hello = slurm.parse_hello(lines.open(sealed))
        except (UnicodeDecodeError, SignatureError, ProtocolError):
            return False
        if hello.node not in self.nodes or hello.node in self.hellos:
            return False
        newcomer.connection.setblocking(True)
        self.hellos[hello.node] = hello
        self.connections[hello.node] = newcomer.connection, lines
        return True

    def drop_late(self, selector: selectors.BaseSelector) -> None:
        now = time.monotonic()
        for descriptor in [at for at, one in self.newcomers.items() if one.deadline < now]:
            self.drop(selector, descriptor)

    def drop(self, selector: selectors.BaseSelector, descriptor: int) -> None:
        newcomer = self.newcomers.pop(descriptor, None)
        if newcomer is not None:
            selector.unregister(newcomer.connection)
            newcomer.connection.close()

    def why(self, missing: Sequence[str]) -> str:
        output = tail.last_text(self.log, LOG_CHARACTERS).strip().splitlines()
        names = ", ".join(missing[:8]) + (f" and {len(missing) - 8} more" if missing[8:] else "")
        return f"no agent came from {names}: {output[-1] if output else 'srun printed nothing'}"

    def end(self) -> None:
        """The agents have left, or are told to."""
        self.server.close()
        for connection, _ in self.connections.values():
            connection.close()
        if self.step.poll() is None:
            self.step.terminate()
            try:
                self.step.wait(5.0)
            except subprocess.TimeoutExpired:
                self.step.kill()
