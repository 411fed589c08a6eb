"""Connect the supervisor to the agents: one channel to each node of the run."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import subprocess
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from orch_node import atomic_write, program, tail
from orch_node.atomic_write import private
from orch_node.line_pipes import Pipes
from orch_node.protocol import files, values
from orch_node.protocol.agent import CLAIM, END, LEAVE, PING, Claim, Request, Response, render_request
from orch_node.protocol.node_names import fold, fold_by_text
from orch_node.protocol.node_reports import NodeLogs
from orch_node.protocol.values import ProtocolError
from orch_node.reach import BY_STEP, START_MARKER, end_sharing, program_errors, remote_command, share_connections

PING_SECONDS = 2.0
WATCH_SECONDS = 0.1  # between two checks of all channels
# Two sockets of an agent of this program, and two pipes of a launcher that inherits the limit.
FILES_PER_NODE, OTHER_FILES = 4, 200
LOST_SECONDS = 15.0  # without a response
CONNECT_SECONDS = 30.0
# All connections are opened at the same time, and each takes some processor time of node0.
CONNECT_SECONDS_PER_NODE = 0.25
END_SECONDS = 12.0  # longer than an agent's own limit plus the time its container engine takes
# A longer pause between two calls of watch() means that this process did not run, because its job was
# suspended or its machine was frozen. No response could be read in that time either.
SUSPENSION_SECONDS = 5.0
MAX_LOST_LAUNCHERS = 3  # nodes whose lost processes of the launcher are described
LOG_BYTES = 1 << 20  # of a node's lines that are not responses, of its standard error, and of its ranks' logs
ALL_LOGS_BYTES = 1 << 26  # of the logs that the agents of all nodes hand to node0
LOG_CHARACTERS = 4000  # of the end of a log, in which the reason of a lost connection is looked for
SKEW_SECONDS = 5.0  # tolerated error of a node's clock, as in preflight


class Channel:
    """The channel to an agent: a process on this node, or ssh to another one."""

    can_reopen = True  # once its connection has ended

    def __init__(self, node: str, command: list[str], log: Path) -> None:
        self.node = node
        self.command = command
        self.log = log
        self.responses: dict[str, Response] = {}  # to the last request of each kind
        self.claimed: Claim | None = None
        self.requested_at = time.time()
        self.skew = 0.0  # seconds between the node's clock and the time of the request
        self.preempted = False  # whether its agent has received SIGTERM
        self.lost_launcher = ""  # what its agent says about a lost process of the launcher
        self.unsent = bytearray()  # the requests, and the end of one, that the node has not read yet

    def open(self, pipes: Pipes) -> None:
        """Start the agent, or the connection to it."""
        self.pipes = pipes
        self.last_response, self.has_responded = time.monotonic(), False
        self.unsent.clear()
        self.input, self.output = self.connect()
        self.input.setblocking(False)  # a node that reads nothing must not block the supervisor
        pipes.add(self.output.fileno(), self.handle_line)

    def connect(self) -> tuple[socket.socket, socket.socket]:
        """Start the process, and return the sockets of its standard input and output.

        They are two: an ssh whose connection launchers still use closes only its output when its agent has ended.
        """
        (requests, stdin), (responses, stdout) = socket.socketpair(), socket.socketpair()
        with stdin, stdout, open(self.log, "ab", opener=private) as log:
            self.process = subprocess.Popen(
                self.command, stdin=stdin.fileno(), stdout=stdout.fileno(), stderr=log, start_new_session=True
            )
        return requests, responses

    def handle_line(self, line: bytes) -> None:
        """Store a response; log any other line."""
        self.last_response = time.monotonic()
        self.has_responded = True
        if line.endswith(START_MARKER):  # a login shell may print a prompt before it
            return
        try:
            response = values.parse(Response, line, "a response")
        except ProtocolError:  # a greeting of a login shell
            with open(self.log, "ab", opener=private) as log:
                log.write(line)
            return
        self.responses[response.kind] = response
        if response.kind == PING:
            # Before the request negative, after the response positive, 0 in between.
            self.skew = min(response.time - self.requested_at, 0.0) + max(response.time - time.time(), 0.0)
            self.preempted = self.preempted or response.preempted
            self.lost_launcher = response.lost_launcher

    def shorten_log(self) -> None:
        """Cut the log to its limit: a node must not fill node0's disk."""
        with contextlib.suppress(OSError):  # there is none yet
            if self.log.stat().st_size > LOG_BYTES:
                os.truncate(self.log, LOG_BYTES)

    def request(self, request: Request) -> None:
        """Send a request. If it cannot be sent, the missing response shows that the node is lost."""
        self.responses.pop(request.kind, None)
        self.requested_at = time.time()
        self.claimed = request.claim or self.claimed
        self.unsent += self.sign(render_request(request))
        self.flush()

    def flush(self) -> None:
        """Send what the node can take now of the requests."""
        with contextlib.suppress(BlockingIOError, ConnectionError):
            while self.unsent and self.connected:
                del self.unsent[: self.input.send(self.unsent)]

    def sign(self, line: bytes) -> bytes:
        """Return a line as it is sent. ssh and pipes need no signature."""
        return line

    @property
    def connected(self) -> bool:
        """Return whether the agent can still respond."""
        return self.pipes.open(self.output.fileno())

    def close(self) -> None:
        """Close the connection."""
        self.pipes.drop(self.output.fileno())
        self.input.close()
        self.output.close()

    def end(self, seconds: float = 0.0) -> None:
        """Close the connection, and wait for its process to end before it is killed."""
        self.close()
        end_process(self.process, seconds)

    def problem(self) -> str:
        """Return the last line that ssh or the agent has printed."""
        output = program_errors(tail.last_text(self.log, LOG_CHARACTERS)).splitlines()
        return output[-1] if output else "no answer"


class Agents:
    """The agents of all nodes.

    Attributes:
        lost: nodes whose agent has not responded for too long, with the reason.
        news: messages about connections that are to be recorded: node, text.
    """

    def __init__(self, run_dir: Path, nodes: list[str], claims: str) -> None:
        folder = run_dir / "nodes"
        folder.mkdir(mode=0o700, exist_ok=True)
        self.run_dir, self.node0, self.claims = run_dir, nodes[0], claims
        self.pipes = Pipes()
        self.lost: dict[str, str] = {}
        self.news: list[tuple[str, str]] = []
        self.skews_reported = False
        self.connect_seconds = CONNECT_SECONDS + CONNECT_SECONDS_PER_NODE * len(nodes)
        self.last_ping = 0.0
        self.last_watch = self.last_check = time.monotonic()
        allow_open_files(len(nodes))
        if len(nodes) > 1:
            share_connections()
        self.channels: dict[str, Channel] = {}
        for node in nodes:
            channel = self.channels[node] = self.channel(node, folder / f"{node}.log")
            channel.open(self.pipes)
            # A thousand connections take more seconds to open than an agent waits for a request.
            self.pipes.pump(0)
            self.watch()

    def channel(self, node: str, log: Path) -> Channel:
        """Return the channel to a node, not yet open."""
        return Channel(node, agent_command(self.run_dir, node, self.claims, is_local=node == self.node0), log)

    @property
    def preempted(self) -> bool:
        """Return whether an agent has received SIGTERM."""
        return any(channel.preempted for channel in self.channels.values())

    def describe_lost_launcher(self) -> str:
        """Return the processes of the launcher that have ended although their ranks continue, or ''."""
        texts = {channel.node: channel.lost_launcher for channel in self.living if channel.lost_launcher}
        shown = [f"{node}: {text}" for node, text in list(texts.items())[:MAX_LOST_LAUNCHERS]]
        unlisted = list(texts)[MAX_LOST_LAUNCHERS:]
        return "; ".join([*shown, *([f"the same on {fold(unlisted)}"] if unlisted else [])])

    @property
    def living(self) -> list[Channel]:
        """Channels to nodes that are not lost."""
        return [channel for node, channel in self.channels.items() if node not in self.lost]

    def watch(self) -> float:
        """Ping the agents, and mark nodes that have not responded for too long as lost.

        Returns:
            Seconds for which this process did not run since the last call; usually 0.
        """
        now = time.monotonic()
        suspension, self.last_watch = now - self.last_watch, now
        if suspension < SUSPENSION_SECONDS:
            suspension = 0.0
        else:
            text = f"did not run for {suspension:.0f} s: suspended, or a frozen machine; the run continues"
            self.news.append((self.node0, text))
            for channel in self.living:
                channel.last_response += suspension
        if now - self.last_check >= WATCH_SECONDS:
            self.last_check = now
            self.check_channels(now)
        return suspension

    def check_channels(self, now: float) -> None:
        """Ping the agents from time to time, and handle nodes that do not respond and connections that have ended."""
        channels = self.living
        self.ping(channels, now)
        for channel in channels:
            channel.flush()
            if now - channel.last_response > (LOST_SECONDS if channel.has_responded else self.connect_seconds):
                self.lose(channel, f"no answer for {now - channel.last_response:.0f} s")
            elif not channel.connected:
                self.reconnect(channel)

        if not self.skews_reported and all(PING in channel.responses for channel in channels):
            self.skews_reported = True
            skews = {channel.node: round(channel.skew, -1) for channel in channels if abs(channel.skew) > SKEW_SECONDS}
            text = "the clock is about {:+.0f} s off node0's, and so are the times of events"
            self.news += fold_by_text({node: text.format(skew) for node, skew in skews.items()})

    def ping(self, channels: Iterable[Channel], now: float) -> None:
        """Ping agents from time to time; without a request for long, an agent ends."""
        if now - self.last_ping >= PING_SECONDS:
            self.last_ping = now
            for channel in channels:
                channel.request(Request(PING))
                channel.shorten_log()

    def reconnect(self, channel: Channel) -> None:
        """Open a connection again that has ended, or mark the node as lost."""
        if not (channel.has_responded and channel.can_reopen):
            self.lose(channel, channel.problem())
            return
        self.news.append((channel.node, "the connection to its agent ended; connecting again"))
        channel.end()
        channel.open(self.pipes)
        if channel.claimed:
            channel.request(Request(CLAIM, claim=channel.claimed))

    def lose(self, channel: Channel, reason: str) -> None:
        """Mark a node as lost, and close its channel."""
        self.lost[channel.node] = reason
        channel.end()

    def request(self, request: Request, *, seconds: float) -> dict[str, Response]:
        """Send a request to all agents; return the responses in time, by node."""
        return self.request_each({channel.node: request for channel in self.living}, seconds=seconds)

    def request_each(self, requests: Mapping[str, Request], *, seconds: float) -> dict[str, Response]:
        """Send a request to each of some nodes; return the responses in time, by node, in the order of the requests."""
        waiting = [channel for channel in self.living if channel.node in requests]
        for channel in waiting:
            channel.request(requests[channel.node])
        deadline = time.monotonic() + seconds
        responses: dict[str, Response] = {}
        while time.monotonic() < deadline and any(channel.connected for channel in waiting):
            self.pipes.pump(0.001 if any(channel.unsent for channel in waiting) else 0.05)
            for channel in [*waiting]:
                channel.flush()
                if response := channel.responses.get(requests[channel.node].kind):
                    responses[channel.node] = response
                    waiting.remove(channel)
            self.ping((channel for channel in self.living if channel not in waiting), time.monotonic())
        self.last_watch = time.monotonic()  # this process has not been suspended
        return {node: responses[node] for node in requests if node in responses}

    def end_all(self) -> dict[str, Response]:
        """End all processes of the run; return the responses in time, by node.

        Small logs of other nodes are written to one file here, so that a client needs no connection to each node.
        """
        max_bytes = 0 if BY_STEP in os.environ else min(LOG_BYTES, ALL_LOGS_BYTES // len(self.channels))
        responses = self.request(Request(END, max_log_bytes=max_bytes), seconds=END_SECONDS)
        handed = {node: end.logs for node, end in responses.items() if end.logs is not None}
        path = self.run_dir / files.HANDED_LOGS
        lines = (f"{values.render(NodeLogs(node, texts))}\n" for node, texts in handed.items())
        with contextlib.suppress(OSError):  # a full or read-only disk
            path.unlink(missing_ok=True)
            if handed:
                atomic_write.write(path, "".join(lines))
        return responses

    def leave(self) -> None:
        """Let the agents release their claims and end."""
        self.request(Request(LEAVE), seconds=2.0)
        deadline = time.monotonic() + 2.0
        for channel in self.living:
            channel.end(max(0.0, deadline - time.monotonic()))
        end_sharing()


def end_process(process: subprocess.Popen[bytes], seconds: float) -> None:
    """Wait for the end of a process, and kill it after this time."""
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def allow_open_files(nodes: int) -> None:
    """Raise the limit on open files if the channels to these nodes need more than it allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = OTHER_FILES + FILES_PER_NODE * nodes
    if soft != resource.RLIM_INFINITY and soft < needed:
        limit = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))


def agent_command(run_dir: Path, node: str, claims: str, *, is_local: bool) -> list[str]:
    """Return the command that starts an agent. All nodes have the interpreter at the same path."""
    command = program.command("agent", str(run_dir), node, claims)
    # Unlike hydra, do not use ssh -q: its output is the reason why a node cannot be reached.
    return command if is_local else remote_command(node, command, shared=True)
