"""The agents of a job: start them on its nodes, accept their connections, and talk to them over these connections.

On a node, `node.py job-agent RUN_DIR HOST:PORT` connects to the supervisor and describes its node. From then on it is
the agent that every run has on its nodes; each line that it sends or receives has a signature.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from orch_node import program, tail
from orch_node.agent import agent
from orch_node.atomic_write import private
from orch_node.batch.system import JobError, NodeSystem, find_system
from orch_node.protocol import batch, files, values
from orch_node.protocol.batch import Hello
from orch_node.protocol.cores import reported_cores
from orch_node.protocol.node_names import fold
from orch_node.protocol.values import ProtocolError
from orch_node.signed_lines import SignatureError, SignedLines, authenticate, introduce
from orch_node.standalone import facts
from orch_node.supervisor.agents import Agents, Channel, end_process

KEY = "ORCH_JOB_KEY"
CONNECT_SECONDS = 30.0
SHARED_SECONDS = 10.0  # after which a shared file system shows what another node has written
GATHER_SECONDS = 120.0  # a busy controller starts the tasks of a large job one after another
END_SECONDS = 5.0  # until a step ends whose agents have left
HELLO_SECONDS = 10.0  # for the first line of a connection
TICK_SECONDS = 0.2
FILES_SECONDS = 1.0  # between checks of the run's folder
MAX_EXTRA_PENDING = 64  # open connections without a first line, in addition to one for each node
STEP_LOG = "agents.log"
LOG_CHARACTERS = 4000  # of the end of the log, in which the reason of a failure is looked for
LOOPBACK = "127.0.0.1"


def listening_address(system: NodeSystem, peers: Sequence[str]) -> str:
    """Return this node's address as the first of the other nodes reaches it, whose name need not be a host name.

    Raises:
        JobError: if there is no route to that node.
    """
    if not peers:
        return LOOPBACK
    try:
        with contextlib.suppress(socket.gaierror):
            return facts.address_towards(peers[0])
        return facts.address_towards(system.address_of(peers[0]) or peers[0])
    except OSError as error:
        raise JobError(f"node0 has no route to {peers[0]}: {error}") from None


class JobChannel(Channel):
    """The channel to an agent that has connected; it cannot be opened again.

    Attributes:
        hello: what the agent reports about its node.
        connection: its connection.
        lines: the signatures of its lines.
        ending: how the connection has ended, if it has.
    """

    can_reopen = False

    def __init__(self, hello: Hello, log: Path, connection: socket.socket, lines: SignedLines) -> None:
        super().__init__(hello.node, [], log)
        self.hello = hello
        self.connection = connection
        self.lines = lines
        self.ending = "ended"

    def connect(self) -> tuple[socket.socket, socket.socket]:
        """Return the connection of the agent, which has responded."""
        self.has_responded = True
        return self.connection, self.connection

    def handle_line(self, line: bytes) -> None:
        """Handle a line of the agent; close the connection at the first line without its signature."""
        if not self.connected:
            return
        try:
            verified = self.lines.verify(line)
        except SignatureError as error:
            self.ending = f"was closed: {error}"
            self.close()
            return
        super().handle_line(verified)

    def sign(self, line: bytes) -> bytes:
        return self.lines.sign(line)

    def end(self, seconds: float = 0.0) -> None:
        """Close the connection: the batch system ends what remains of the agent."""
        self.close()

    def problem(self) -> str:
        return f"the connection to its agent {self.ending}"


class AgentConnections:
    """The connections to the agents of a job, and the process that holds the agents.

    Attributes:
        system: the batch system.
        nodes: the names of all nodes of the job, node0 first.
        channels: the channel to each node's agent, once that has connected.
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
        self.channels: dict[str, JobChannel] = {}
        self.step = self.start()

    def start(self) -> subprocess.Popen[bytes]:
        address = f"{self.address}:{self.server.getsockname()[1]}"
        command = program.command("job-agent", str(self.run_dir), address)
        with open(self.log, "ab", opener=private) as log:
            return self.system.start_on_nodes(self.nodes, "orch-agents", command, {KEY: self.key}, log)

    def accept_all(self, seconds: float = GATHER_SECONDS) -> None:
        """Wait until every node has connected, whatever else connects meanwhile.

        Raises:
            JobError: if the step ends, or nodes are missing at the end of the time; it names them.
        """
        deadline = time.monotonic() + seconds
        # The kernel holds further connections until some of the open ones are dropped for being late.
        slots = threading.Semaphore(len(self.nodes) + MAX_EXTRA_PENDING)
        self.server.settimeout(TICK_SECONDS)
        with self.server:
            while missing := [node for node in self.nodes if node not in self.channels]:
                if self.step.poll() is not None or time.monotonic() > deadline:
                    raise JobError(self.describe_missing(missing))
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
        is_first = False
        with contextlib.suppress(OSError, ProtocolError):
            lines, line = authenticate(connection, self.key, HELLO_SECONDS)
            hello = values.parse(Hello, line, "the first line of an agent")
            if hello.node in self.nodes:
                channel = JobChannel(hello, self.run_dir / "nodes" / f"{hello.node}.log", connection, lines)
                is_first = self.channels.setdefault(hello.node, channel) is channel
        slots.release()
        if not is_first:
            connection.close()

    def describe_missing(self, missing: Sequence[str]) -> str:
        """Return which agents have not connected, with the last line of the step's log."""
        output = tail.last_text(self.log, LOG_CHARACTERS).strip().splitlines()
        reason = output[-1] if output else f"{self.system.title} has printed nothing"
        return f"no agent has connected from {fold(missing)}: {reason}"

    def close(self) -> None:
        """Close all connections, which ends the agents and their step.

        At SIGTERM srun would cancel the step by its number. If this node has lost its network, that
        request could arrive after Slurm has restarted the job on other nodes, and end the step of the
        same number there.
        """
        self.server.close()
        for channel in self.channels.values():
            channel.connection.close()
        end_process(self.step, END_SECONDS)


class JobAgents(Agents):
    """The agents of a job, which have connected."""

    def __init__(self, run_dir: Path, nodes: list[str], claims: str, *, connections: AgentConnections) -> None:
        self.connections = connections
        self.files_checked = time.monotonic()
        super().__init__(run_dir, nodes, claims)

    def channel(self, node: str, log: Path) -> Channel:
        return self.connections.channels[node]

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
        exit_if_superseded(self.connections.system, self.run_dir)
        if (self.run_dir / files.STOP).exists():
            os.kill(os.getpid(), signal.SIGINT)


def exit_if_superseded(system: NodeSystem, run_dir: Path) -> None:
    """End this process at once if a later start of the job, or a later job, has taken the run's folder."""
    if is_superseded(system, run_dir):
        print(f"error: {system.title} has restarted this job elsewhere; this start exits", file=sys.stderr, flush=True)
        os._exit(1)


def is_superseded(system: NodeSystem, run_dir: Path) -> bool:
    """Return whether a later start of the job, or a later job, has taken the run's folder."""
    current, latest = system.submission(), values.load(batch.parse_submitted, run_dir / batch.job_file(system.name))
    if latest is None:
        return False
    if latest.job == current.job:
        return latest.restarts > current.restarts
    return -1 < batch.job_number(current.job) < batch.job_number(latest.job)


def main(argv: list[str]) -> int:
    """Be the agent of a node: connect to the supervisor and serve its requests; return the exit code."""
    run_dir, (host, _, port), key = argv[0], argv[1].rpartition(":"), os.environ.pop(KEY, "")
    # node0 has written this file, which other nodes see if they share the folder.
    config_path, deadline = Path(run_dir, batch.CONFIG), time.monotonic() + SHARED_SECONDS
    while not config_path.exists() and time.monotonic() < deadline:
        time.sleep(0.5)
    if not config_path.exists():
        hint = "Choose a folder that all nodes share with --runs-dir"
        print(f"{socket.gethostname()} does not see {run_dir} of node0. {hint}", file=sys.stderr)
        return 1
    system = find_system(batch.parse(config_path.read_text()))
    node = system.node_name()
    try:
        connection = socket.create_connection((host, int(port)), timeout=CONNECT_SECONDS)
        line = f"{values.render(describe_node(system, node, connection))}\n".encode()
        lines = introduce(connection, key, line, CONNECT_SECONDS)
    except OSError as error:
        print(f"{node} cannot reach node0 at {argv[1]}: {error}", file=sys.stderr)
        return 1
    os.dup2(connection.fileno(), 0)
    os.dup2(connection.fileno(), 1)
    connection.close()
    return agent.main([run_dir, node, f"{run_dir}/claims/{node}"], lines)


def describe_node(system: NodeSystem, node: str, connection: socket.socket) -> Hello:
    address = connection.getsockname()[0]
    cpus = sorted(os.sched_getaffinity(0))
    granted = system.granted_cpus(len(cpus))
    return Hello(
        node=node,
        host=socket.gethostname(),
        cores=reported_cores(map(facts.topology, cpus[:granted])),
        confined=len(cpus) <= granted,
        flags=tuple(facts.cpu_flags()),
        address=address,
        interface=next((name for name, addresses in facts.interfaces().items() if address in addresses), "lo"),
        gpus=tuple(-1 if gpu.get("numa") is None else int(str(gpu["numa"])) for gpu in facts.gpus()),
    )
