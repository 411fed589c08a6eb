"""The supervisor's side of the wardens: one channel to each node of the run."""

from __future__ import annotations

import json
import os
import select
import shlex
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from whole_lines import Pipes

HERE = Path(__file__).resolve().parent
SSH_CONFIG = HERE.parent / "ssh" / "config"  # `orch provision` writes it
PING_SECONDS = 2.0
LOST_SECONDS = 15.0  # without an answer
CONNECT_SECONDS = 20.0
SEND_SECONDS = 2.0
SKEW_SECONDS = 5.0  # that a node's clock may be off; preflight has the same limit
Answer = dict[str, Any]


class Channel:
    """One warden: a process on this node, or ssh to it on another one."""

    def __init__(self, node: str, command: list[str], log: Path) -> None:
        self.node = node
        self.command = command
        self.log = log
        self.answers: dict[str, Answer] = {}
        self.claimed: dict[str, Any] | None = None
        self.asked = time.time()
        self.skew = 0.0  # seconds that the node's clock is outside the time in which it was asked
        self.skew_told = False

    def open(self, pipes: Pipes) -> None:
        self.pipes = pipes
        self.heard = time.monotonic()
        self.answered = False
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
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
            answer = json.loads(line)
            self.answers[answer["answer"]] = answer
            if answer["answer"] == "ping":
                self.skew = outside(float(answer["time"]), self.asked, time.time())
        except (ValueError, KeyError, TypeError):  # a login shell that greets
            with self.log.open("ab") as log:
                log.write(line)

    def ask(self, what: str, fields: dict[str, Any]) -> None:
        """Send a question. One that cannot be sent is not answered, and the silence tells."""
        self.answers.pop(what, None)
        self.asked = time.time()
        if what in ("claim", "release"):
            self.claimed = fields or None
        rest = json.dumps({"ask": what, **fields}).encode() + b"\n"
        deadline = time.monotonic() + SEND_SECONDS
        try:
            while rest and time.monotonic() < deadline:
                if select.select([], [self.stdin], [], SEND_SECONDS)[1]:
                    rest = rest[os.write(self.stdin, rest) :]
        except (BlockingIOError, BrokenPipeError):
            pass

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

    def problem(self) -> str:
        """What ssh said, for a node that cannot be reached."""
        text = self.log.read_text(errors="replace").strip() if self.log.exists() else ""
        return text.splitlines()[-1] if text else "no answer"


class Wardens:
    """The wardens of all nodes. A node is lost when its warden is silent for too long."""

    def __init__(self, run_dir: Path, nodes: list[str], claims: str, pipes: Pipes) -> None:
        folder = run_dir / "nodes"
        folder.mkdir(exist_ok=True)
        self.pipes = pipes
        self.lost: dict[str, str] = {}  # node -> why
        self.news: list[tuple[str, str]] = []  # (node, what happened to its connection)
        self.pinged = 0.0
        self.channels = {
            node: Channel(
                node,
                warden_command(run_dir, node, claims, here=node == nodes[0]),
                folder / f"{node}.log",
            )
            for node in nodes
        }
        for channel in self.channels.values():
            channel.open(pipes)

    @property
    def living(self) -> list[Channel]:
        return [one for node, one in self.channels.items() if node not in self.lost]

    def watch(self) -> None:
        """Ask for a sign of life, and note nodes that have given none for too long."""
        now = time.monotonic()
        if now - self.pinged >= PING_SECONDS:
            self.pinged = now
            for channel in self.living:
                channel.ask("ping", {})
        for channel in self.living:
            if now - channel.heard > (LOST_SECONDS if channel.answered else CONNECT_SECONDS):
                self.lose(channel, f"no answer for {now - channel.heard:.0f} s")
            elif not channel.connected:
                self.reconnect(channel)
            elif abs(channel.skew) > SKEW_SECONDS and not channel.skew_told:
                channel.skew_told = True
                words = f"its clock is {channel.skew:+.0f} s off node0's; times of its events are"
                self.news.append((channel.node, f"{words} too"))

    def reconnect(self, channel: Channel) -> None:
        """A connection that ended: once more, then the node counts as lost."""
        if not channel.answered:
            self.lose(channel, channel.problem())
            return
        self.news.append((channel.node, "the connection to its warden ended; connecting again"))
        channel.kill()
        channel.open(self.pipes)
        if channel.claimed:
            channel.ask("claim", channel.claimed)

    def lose(self, channel: Channel, why: str) -> None:
        self.lost[channel.node] = why
        channel.kill()

    def ask(self, what: str, *, seconds: float, **fields: Any) -> dict[str, Answer]:
        """Ask all living wardens; -> node -> answer, of those that answered in time."""
        return self.ask_each({one.node: fields for one in self.living}, what, seconds=seconds)

    def ask_each(
        self, fields: dict[str, dict[str, Any]], what: str, *, seconds: float
    ) -> dict[str, Answer]:
        channels = [one for one in self.living if one.node in fields]
        for channel in channels:
            channel.ask(what, fields[channel.node])
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and any(
            what not in one.answers and one.connected for one in channels
        ):
            self.pipes.pump(0.05)
        return {one.node: one.answers[what] for one in channels if what in one.answers}

    def leave(self) -> None:
        """Let the wardens go: they give their claims back."""
        self.ask("leave", seconds=2.0)
        deadline = time.monotonic() + 2.0
        for channel in self.living:
            channel.close()
            try:
                channel.process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                channel.process.kill()

    def nodes(self) -> Iterable[str]:
        return self.channels


def outside(moment: float, begin: float, end: float) -> float:
    """How far a moment lies before (negative) or after a time; 0 inside."""
    return min(moment - begin, 0.0) + max(moment - end, 0.0)


def warden_command(run_dir: Path, node: str, claims: str, *, here: bool) -> list[str]:
    """The stack has the same path on all nodes, so this interpreter's is that of the others."""
    command = [sys.executable, str(HERE / "warden.py"), str(run_dir), node, claims]
    # No -q, as hydra has it: what ssh says is the reason why a node cannot be reached.
    return command if here else ["ssh", "-F", str(SSH_CONFIG), node, shlex.join(command)]
