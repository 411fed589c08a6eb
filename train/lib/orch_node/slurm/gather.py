"""The agents of a job: one step of Slurm starts them all, and each connects to the supervisor."""

from __future__ import annotations

import hmac
import os
import secrets
import selectors
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from orch_node import program
from orch_node.protocol import slurm
from orch_node.protocol.slurm import Hello
from orch_node.protocol.values import ProtocolError
from orch_node.slurm.agent import KEY
from orch_node.slurm.words import STEP
from orch_node.whole_files import private

GATHER_SECONDS = 120.0  # a busy controller starts the tasks of a large job one after another
TICK_SECONDS = 0.2
LONGEST = 1 << 20  # bytes of a first line
STEP_LOG = "agents.log"
LOOPBACK = "127.0.0.1"


class GatherError(Exception):
    """Why the nodes of the job did not come together, in one sentence."""


def address_towards(peers: Sequence[str]) -> str:
    """By which these nodes reach this one: its address on the way to the first. No packet is sent.

    Raises GatherError.
    """
    if not peers:
        return LOOPBACK
    try:
        found = socket.getaddrinfo(peers[0], 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(found[0], socket.SOCK_DGRAM) as probe:
            probe.connect(found[4])
            return str(probe.getsockname()[0])
    except OSError as error:
        raise GatherError(f"node0 finds no way to {peers[0]}: {error}") from None


class Gathering:
    """`nodes`: of the job, node0 first. `step`: the process of Slurm that holds the agents."""

    def __init__(self, run_dir: Path, nodes: Sequence[str]) -> None:
        self.run_dir = run_dir
        self.nodes = nodes
        self.log = run_dir / STEP_LOG
        self.key = secrets.token_hex(32)
        self.address = address_towards(nodes[1:])
        family = socket.AF_INET6 if ":" in self.address else socket.AF_INET
        self.server = socket.create_server((self.address, 0), family=family, backlog=len(nodes))
        self.hellos: dict[str, Hello] = {}
        self.connections: dict[str, socket.socket] = {}
        self.step = self.start()

    def start(self) -> subprocess.Popen[bytes]:
        where = f"{self.address}:{self.server.getsockname()[1]}"
        agent = program.command("slurm-agent", str(self.run_dir), where)
        count = str(len(self.nodes))
        tasks = ("--nodes", count, "--ntasks", count, "--ntasks-per-node", "1")
        with open(self.log, "ab", opener=private) as log:
            return subprocess.Popen(
                ["srun", *STEP, *tasks, "--mpi=none", "--job-name=orch-agents", *agent],
                env={**os.environ, KEY: self.key},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def all(self, seconds: float = GATHER_SECONDS) -> None:
        """Wait for every node. Raises GatherError that names those that are missing."""
        deadline = time.monotonic() + seconds
        with selectors.DefaultSelector() as selector, self.server:
            selector.register(self.server, selectors.EVENT_READ)
            while missing := [node for node in self.nodes if node not in self.hellos]:
                if self.step.poll() is not None or time.monotonic() > deadline:
                    raise GatherError(self.why(missing))
                if selector.select(TICK_SECONDS):
                    self.welcome(self.server.accept()[0])

    def welcome(self, connection: socket.socket) -> None:
        """Take a node in; whoever does not know the key is sent away."""
        connection.settimeout(5.0)
        try:
            hello = slurm.parse_hello(first_line(connection))
        except (OSError, ProtocolError):
            connection.close()
            return
        if not hmac.compare_digest(hello.key, self.key) or hello.node not in self.nodes:
            connection.close()
            return
        connection.settimeout(None)
        self.hellos[hello.node], self.connections[hello.node] = hello, connection

    def why(self, missing: Sequence[str]) -> str:
        said = self.log.read_text(errors="replace").strip().splitlines()
        names = ", ".join(missing[:8]) + (f" and {len(missing) - 8} more" if missing[8:] else "")
        return f"no agent came from {names}: {said[-1] if said else 'srun says nothing'}"

    def end(self) -> None:
        """The agents have left, or are told to."""
        if self.step.poll() is None:
            self.step.terminate()
            try:
                self.step.wait(5.0)
            except subprocess.TimeoutExpired:
                self.step.kill()


def first_line(connection: socket.socket) -> bytes:
    """Raises OSError for one that does not end."""
    found = b""
    while not found.endswith(b"\n"):
        piece = connection.recv(1 << 16, socket.MSG_PEEK)
        if not piece or len(found) > LONGEST:
            raise OSError("no first line")
        end = piece.find(b"\n") + 1
        found += connection.recv(end or len(piece))
    return found
