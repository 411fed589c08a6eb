"""Stand-ins for the agents and ranks of many nodes: one thread of this process speaks the protocol of a run.

The supervisor, the agent of node0 and everything that reads the run's folder are real. What the supervisor starts in
place of ssh and of the launcher passes its pipes to this process and ends.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import selectors
import shlex
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from orch_node.protocol import agent, events, files, values
from orch_node.protocol import layout as layouts
from orch_node.protocol.events import Event, Exited, Heartbeat, Joined, Raised, Started
from orch_node.protocol.outcome import NodeEnd
from orch_node.protocol.record import RankPlacement, RunNode, render

from orchestrator.files import TRAIN
from orchestrator.runs import store
from tests.support.layouts import make_layout
from tests.support.recorded import RUN_RECORD

LAUNCHER = "launcher"
TICK_SECONDS = 0.2
Kind = TypeVar("Kind", bound=Event)
# Passes standard input and output to the process that listens at the socket; a launcher also waits for its end.
CONNECT = """
import _socket, array, sys
connection = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
connection.connect(sys.argv[1])
pipes = array.array("i", [0, 1])
connection.sendmsg([sys.argv[2].encode()], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, pipes)])
if sys.argv[2] == "launcher":
    connection.recv(1)  # until its supervisor ends it
"""
STACK = """Current thread 0x00007f0000000000 (most recent call first):
  File "<frozen importlib._bootstrap>", line 241 in _call_with_frames_removed
  File "/opt/orch/train/lib/orch_node/rank/metrics.py", line 78 in backward
  File "/home/me/train.py", line 31 in train
  File "/home/me/train.py", line 52 in main
"""


@dataclass(frozen=True)
class Pipes:
    """The pipes of an agent or a launcher: what it reads, and where it writes."""

    stdin: int
    stdout: int


class StandIns(threading.Thread):
    """The agents of all nodes but node0, and the launchers with their ranks.

    Attributes:
        silent: nodes that read requests and do not respond, as if they were cut off.
        refused: nodes whose connections are closed at once.
        attempts: how many launchers have been started.
        written: the hash of each file that a node has been given, by node and name.
    """

    def __init__(self, path: Path) -> None:
        """Listen at a socket; start() begins to respond."""
        super().__init__(daemon=True)
        self.server = socket.socket(socket.AF_UNIX)
        self.server.bind(str(path))
        self.server.listen(4096)
        self.selector = selectors.DefaultSelector()
        self.selector.register(self.server, selectors.EVENT_READ)
        self.agents: dict[int, tuple[str, Pipes]] = {}
        self.unfinished: dict[int, bytes] = {}
        self.silent: set[str] = set()
        self.refused: set[str] = set()
        self.ranks: dict[str, list[int]] = {}  # by node
        self.written: dict[tuple[str, str], int] = {}
        self.launcher: Pipes | None = None
        self.launcher_connection: socket.socket | None = None
        self.attempts = 0
        self.stopped = threading.Event()

    def command(self, path: Path, name: str) -> list[str]:
        """Return the command that stands in for ssh to a node, or for the launcher."""
        return [sys.executable, "-S", "-E", "-c", CONNECT, str(path), name]

    def run(self) -> None:
        """Accept connections and respond to requests until stop() is called."""
        with self.server, self.selector:
            while not self.stopped.is_set():
                for key, _ in self.selector.select(TICK_SECONDS):
                    if key.fileobj is self.server:
                        self.accept()
                    else:
                        self.read(key.fd)
            for descriptor in [*self.agents]:
                self.close(descriptor)
            self.close_launcher()

    def stop(self) -> None:
        """End the thread, and close all pipes."""
        self.stopped.set()
        self.join()

    def close_launcher(self) -> None:
        """Close the pipes of the last launcher."""
        if self.launcher is not None and self.launcher_connection is not None:
            os.close(self.launcher.stdin)
            os.close(self.launcher.stdout)
            self.launcher_connection.close()

    def accept(self) -> None:
        """Take the pipes of a program that the supervisor has started."""
        connection, _ = self.server.accept()
        name, descriptors, _, _ = socket.recv_fds(connection, 256, 2)
        pipes = Pipes(*descriptors)
        if name.decode() == LAUNCHER:
            self.close_launcher()
            self.launcher, self.launcher_connection = pipes, connection
            self.attempts += 1
            return
        connection.close()
        self.agents[pipes.stdin] = name.decode(), pipes
        self.selector.register(pipes.stdin, selectors.EVENT_READ)
        if name.decode() in self.refused:
            self.close(pipes.stdin)

    def read(self, descriptor: int) -> None:
        """Respond to the requests on a pipe."""
        node, pipes = self.agents[descriptor]
        chunk = os.read(descriptor, 1 << 20)
        if not chunk or node in self.refused:
            self.close(descriptor)
            return
        *lines, self.unfinished[descriptor] = (self.unfinished.get(descriptor, b"") + chunk).split(b"\n")
        for line in lines:
            request = values.parse(agent.Request, line, "a request")
            if node not in self.silent:
                with contextlib.suppress(BrokenPipeError):
                    os.write(pipes.stdout, values.render(self.respond(node, request)).encode() + b"\n")

    def close(self, descriptor: int) -> None:
        """Close the pipes of an agent."""
        self.selector.unregister(descriptor)
        _, pipes = self.agents.pop(descriptor)
        os.close(pipes.stdin)
        os.close(pipes.stdout)

    def respond(self, node: str, request: agent.Request) -> agent.Response:
        """Return the response of a node's agent."""
        ranks = self.ranks.get(node, [])
        stack = agent.RankStack(STACK, {"state": "S", "wchan": "pipe_read"})
        if request.kind == agent.WRITE:
            self.written[node, request.name] = hash(request.content)
        return agent.Response(
            request.kind,
            time=time.time(),
            stacks={str(rank): stack for rank in ranks if rank in request.ranks},
            end=NodeEnd(ended=len(ranks)),
            logs={f"rank-{rank}.log": "" for rank in ranks},
        )

    # The ranks.

    def send(self, sent: Iterable[Event]) -> None:
        """Write events of ranks to the standard output of the launcher."""
        lines = b"".join(events.render(replace(event, time=time.time())) for event in sent)
        while lines:
            lines = lines[os.write(self.launcher.stdout, lines) :]


class SimulatedRun:
    """A run on node0, which is this machine, and on nodes for which this process stands in."""

    def __init__(self, base: Path, nodes: int) -> None:
        """Write the files of a run with one rank on each node, and a spare node."""
        self.folder = base / "runs" / "20260101-120000-simulated-0000"
        self.base, self.socket = base, base / "stand-ins"
        names = [f"node{index}" for index in range(nodes)]
        self.layout = make_layout(*names, pinned=False, spares={f"node{nodes}": "10.0.0.1"})
        node0 = RunNode(node="node0")
        places = [
            RankPlacement(rank=rank.rank, node=rank.node, local_rank=0, local_world_size=1, cpus=(), threads=1)
            for rank in self.layout.ranks
        ]
        record = replace(
            RUN_RECORD,
            run_id=self.folder.name,
            node0=node0,
            nodes=(node0,),  # the reader of the record connects to node0 only
            run_dir=str(self.folder),
            train=str(TRAIN),
            python=sys.executable,
            layout=tuple(places),
        )
        store.write_record(record, self.folder)
        (self.folder / files.RANKS).mkdir()
        (self.folder / files.LAYOUT).write_text(layouts.render(self.layout))
        (self.folder / files.RECORD).write_text(json.dumps(render(record)))
        self.stand_ins = StandIns(self.socket)
        self.stand_ins.start()

    def supervise(self, *options: str, open_files: int = 1024) -> subprocess.Popen[bytes]:
        """Start the supervisor, whose agents on other nodes and whose launcher are stand-ins.

        Args:
            options: of the supervisor.
            open_files: its soft limit; that of most systems by default.
        """
        hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        stand_in = shlex.join(self.stand_ins.command(self.socket, "{node}"))
        launcher = self.stand_ins.command(self.socket, LAUNCHER)
        claims = f"--claims={self.base / 'claims'}"
        command = [sys.executable, str(TRAIN / "node.py"), "supervise", str(self.folder), claims, *options]
        with (self.folder / files.SUPERVISOR_LOG).open("wb") as log:
            return subprocess.Popen(
                [*command, "--", *launcher],
                env={**os.environ, "ORCH_BY_STEP": stand_in},
                stderr=log,
                preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (open_files, hard_limit)),
            )

    def begin_attempt(self) -> None:
        """Start the ranks of the newest attempt, which then join their group."""
        layout = layouts.parse((self.folder / files.LAYOUT).read_text())
        self.stand_ins.ranks = {rank.node: [rank.rank] for rank in layout.ranks}
        self.stand_ins.send(
            Started(rank=rank.rank, node=rank.node, pid=2, wrapper=3, host=rank.node) for rank in layout.ranks
        )
        self.stand_ins.send(
            Joined(rank=rank.rank, node=rank.node, pid=2, threads=1, backend="gloo", torch="2.13.0")
            for rank in layout.ranks
        )

    def beat(self, count: int) -> None:
        """Report the progress of all ranks."""
        ranks = range(self.layout.world_size)
        beats = (Heartbeat(rank=rank, collectives=count, world_collectives=count, steps=count) for rank in ranks)
        self.stand_ins.send(beats)

    def fail(self, rank: int, text: str) -> None:
        """Have a rank raise an error and end."""
        node = f"node{rank}"
        self.stand_ins.send([Raised(rank=rank, text=text), Exited(rank=rank, node=node, code=1, text=text)])

    def events(self, kind: type[Kind]) -> list[Kind]:
        """Return the recorded events of a kind."""
        path = self.folder / files.EVENTS
        name = f'"{kind.kind}"'.encode()
        lines = path.read_bytes().splitlines() if path.exists() else []
        return [event for line in lines if name in line and isinstance(event := events.parse_line(line), kind)]
