"""The supervisor's side of the agents: one channel to each node of the run."""

from __future__ import annotations

import os
import select
import subprocess
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TypeVar

from orch_node import program, tail
from orch_node.line_pipes import Pipes
from orch_node.protocol.agent import (
    Alive,
    Claim,
    Leave,
    Ping,
    ReleaseClaim,
    Request,
    Response,
    TakeClaim,
    parse_response,
    render_request,
)
from orch_node.protocol.values import ProtocolError
from orch_node.reach import there
from orch_node.whole_files import private

PING_SECONDS = 2.0
LOST_SECONDS = 15.0  # without an answer
CONNECT_SECONDS = 20.0
SEND_SECONDS = 2.0
# A longer pause between two looks means that this process stood still: its job was suspended, or
# its machine was frozen. Then no answer could be read either.
STANDSTILL_SECONDS = 5.0
LOG_BYTES = 1 << 20  # of a node's lines that are not answers, and of its standard error
LOG_CHARACTERS = 4000  # of the end of a log, in which the reason of a lost connection is looked for
SKEW_SECONDS = 5.0  # that a node's clock may be off; preflight has the same limit
A = TypeVar("A", bound=Response)


class Channel:
    """One agent: a process on this node, or ssh to it on another one. `again`: whether it can be
    opened anew once its connection has ended."""

    again = True

    def __init__(self, node: str, command: list[str], log: Path) -> None:
        self.node = node
        self.command = command
        self.log = log
        self.answers: dict[type[Request], Response] = {}
        self.claimed: Claim | None = None
        self.asked = time.time()
        self.logged = 0  # bytes of lines that are not answers
        self.skew = 0.0  # seconds that the node's clock is outside the time in which it was asked
        self.skew_told = False
        self.preempted = False  # whether its agent has received SIGTERM

    def open(self, pipes: Pipes) -> None:
        self.pipes = pipes
        self.heard = time.monotonic()
        self.answered = False
        with open(self.log, "ab", opener=private) as log:
            self.process = subprocess.Popen(
                self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, start_new_session=True
            )
        os.set_blocking(self.stdin, False)  # a node that reads nothing must not hold us up
        pipes.add(self.stdout, self.take)

    @property
    def stdin(self) -> int:
        assert self.process.stdin is not None
        return self.process.stdin.fileno()

    @property
    def stdout(self) -> int:
        assert self.process.stdout is not None
        return self.process.stdout.fileno()

    def take(self, line: bytes) -> None:
        self.heard = time.monotonic()
        self.answered = True
        try:
            kind, answer = parse_response(line)
        except ProtocolError:  # a login shell that greets
            self.log_line(line)
            return
        self.answers[kind] = answer
        if isinstance(answer, Alive):
            self.skew = outside(answer.time, self.asked, time.time())
            self.preempted = self.preempted or answer.preempted

    def log_line(self, line: bytes) -> None:
        """Append a line to the channel's log, up to a limit: a node must not fill node0's disk."""
        line = line[: LOG_BYTES - self.logged]
        self.logged += len(line)
        if line:
            with open(self.log, "ab", opener=private) as log:
                log.write(line)

    def shorten_log(self) -> None:
        """Cut the log to its limit: standard error goes there directly."""
        try:
            if self.log.stat().st_size > LOG_BYTES:
                os.truncate(self.log, LOG_BYTES)
        except OSError:  # there is none yet
            pass

    def answer(self, kind: type[Request], wanted: type[A]) -> A | None:
        """The answer to the last question of this kind, once it is here."""
        found = self.answers.get(kind)
        return found if isinstance(found, wanted) else None

    def ask(self, question: Request) -> None:
        """Send a question. One that cannot be sent is not answered, and the silence tells."""
        self.answers.pop(type(question), None)
        self.asked = time.time()
        if isinstance(question, (TakeClaim, ReleaseClaim)):
            self.claimed = question.claim if isinstance(question, TakeClaim) else None
        rest = self.seal(render_request(question))
        deadline = time.monotonic() + SEND_SECONDS
        try:
            while rest and time.monotonic() < deadline:
                if select.select([], [self.stdin], [], SEND_SECONDS)[1]:
                    rest = rest[os.write(self.stdin, rest) :]
        except (BlockingIOError, ConnectionError):
            pass

    def seal(self, line: bytes) -> bytes:
        """Return a line as it is sent: ssh and pipes protect it."""
        return line

    @property
    def connected(self) -> bool:
        return self.pipes.open(self.stdout)

    def close(self) -> None:
        self.pipes.drop(self.stdout)
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()

    def kill(self) -> None:
        self.close()
        self.process.kill()
        self.process.wait()

    def end(self, seconds: float) -> None:
        """Wait so long for a closed one to end."""
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()

    def problem(self) -> str:
        """What ssh said, for a node that cannot be reached."""
        output = tail.last_text(self.log, LOG_CHARACTERS).strip().splitlines()
        return output[-1] if output else "no answer"


class Agents:
    """The agents of all nodes. A node is lost when its agent is silent for too long."""

    def __init__(self, run_dir: Path, nodes: list[str], claims: str, pipes: Pipes) -> None:
        folder = run_dir / "nodes"
        folder.mkdir(mode=0o700, exist_ok=True)
        self.run_dir, self.node0, self.claims = run_dir, nodes[0], claims
        self.pipes = pipes
        self.lost: dict[str, str] = {}  # node -> why
        self.news: list[tuple[str, str]] = []  # (node, what happened to its connection)
        self.pinged = 0.0
        self.watched = time.monotonic()
        self.channels = {node: self.channel(node, folder / f"{node}.log") for node in nodes}
        for channel in self.channels.values():
            channel.open(pipes)

    def channel(self, node: str, log: Path) -> Channel:
        here = node == self.node0 and not node0_away()
        return Channel(node, agent_command(self.run_dir, node, self.claims, here=here), log)

    @property
    def preempted(self) -> bool:
        return any(channel.preempted for channel in self.channels.values())

    @property
    def living(self) -> list[Channel]:
        return [one for node, one in self.channels.items() if node not in self.lost]

    def watch(self) -> float:
        """Ask for a sign of life, and note nodes that have given none for too long.

        Returns:
            Seconds for which this process has stood still since the last look, mostly 0.
        """
        now = time.monotonic()
        standstill, self.watched = now - self.watched, now
        if standstill < STANDSTILL_SECONDS:
            standstill = 0.0
        else:
            words = f"stood still for {standstill:.0f} s: suspended, or a frozen machine"
            self.news.append((self.node0, f"{words}; the run continues"))
            for channel in self.living:
                channel.heard += standstill
        if now - self.pinged >= PING_SECONDS:
            self.pinged = now
            for channel in self.living:
                channel.ask(Ping())
                channel.shorten_log()
        for channel in self.living:
            if now - channel.heard > (LOST_SECONDS if channel.answered else CONNECT_SECONDS):
                self.lose(channel, f"no answer for {now - channel.heard:.0f} s")
            elif not channel.connected:
                self.reconnect(channel)
            elif abs(channel.skew) > SKEW_SECONDS and not channel.skew_told:
                channel.skew_told = True
                words = f"its clock is {channel.skew:+.0f} s off node0's; times of its events are"
                self.news.append((channel.node, f"{words} too"))
        return standstill

    def reconnect(self, channel: Channel) -> None:
        """A connection that ended: once more, then the node counts as lost."""
        if not (channel.answered and channel.again):
            self.lose(channel, channel.problem())
            return
        self.news.append((channel.node, "the connection to its agent ended; connecting again"))
        channel.kill()
        channel.open(self.pipes)
        if channel.claimed:
            channel.ask(TakeClaim(channel.claimed))

    def lose(self, channel: Channel, why: str) -> None:
        self.lost[channel.node] = why
        channel.kill()

    def ask(self, question: Request, wanted: type[A], *, seconds: float) -> dict[str, A]:
        """Ask all living agents; -> node -> answer, of those that answered in time."""
        return self.ask_each({one.node: question for one in self.living}, wanted, seconds=seconds)

    def ask_each(self, questions: Mapping[str, Request], wanted: type[A], *, seconds: float) -> dict[str, A]:
        """`questions`: by node, all of one kind. `wanted`: the kind of their answer."""
        channels = {one: type(questions[one.node]) for one in self.living if one.node in questions}
        for channel in channels:
            channel.ask(questions[channel.node])
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and any(
            kind not in one.answers and one.connected for one, kind in channels.items()
        ):
            self.pipes.pump(0.05)
        found = {one.node: one.answer(kind, wanted) for one, kind in channels.items()}
        return {node: answer for node, answer in found.items() if answer is not None}

    def leave(self) -> None:
        """Let the agents go: they give their claims back."""
        self.ask(Leave(), Response, seconds=2.0)
        deadline = time.monotonic() + 2.0
        for channel in self.living:
            channel.close()
            channel.end(max(0.0, deadline - time.monotonic()))

    def nodes(self) -> Iterable[str]:
        return self.channels


def outside(moment: float, begin: float, end: float) -> float:
    """How far a moment lies before (negative) or after a time; 0 inside."""
    return min(moment - begin, 0.0) + max(moment - end, 0.0)


def node0_away() -> bool:
    """Whether the supervisor has a machine of its own, as in a launcher pod of Kubernetes."""
    return bool(os.environ.get("ORCH_NODE0_AWAY"))


def agent_command(run_dir: Path, node: str, claims: str, *, here: bool) -> list[str]:
    """The stack has the same path on all nodes, so this interpreter's is that of the others."""
    command = program.command("agent", str(run_dir), node, claims)
    # No -q, as hydra has it: what ssh says is the reason why a node cannot be reached.
    return command if here else there(node, command)
