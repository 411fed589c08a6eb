"""Watches one node of a run: `node.py agent RUN_DIR NODE CLAIMS_FOLDER`.

The supervisor starts one on each node, over ssh, and asks it through a pipe: JSON lines in and out.
It holds the claim on the node's cores, answers that the node is alive, collects stack traces, ends
the run's processes and sees to it that none is left. When the supervisor is silent for too long it
ends them unasked: a node that was cut off must not go on for ever.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

from orch_node import whole_files
from orch_node.agent import containers, preemption, processes, shared_memory, stack_traces
from orch_node.agent.core_claims import Claims
from orch_node.agent.engines import ContainerError
from orch_node.disk import trouble
from orch_node.protocol import files
from orch_node.protocol.agent import (
    Alive,
    AllEnded,
    ClaimConflicts,
    ContainerStarted,
    EndAll,
    Leave,
    Ping,
    PreemptedRanks,
    PreemptRanks,
    ReleaseClaim,
    Request,
    Response,
    StackTraces,
    StartContainer,
    TakeClaim,
    TakeStackTraces,
    WriteFile,
    parse_request,
    render_response,
)
from orch_node.protocol.outcome import ProcessRecord

SILENCE_SECONDS = 30.0  # the supervisor speaks every 2 s
# A dropped ssh connection is not the end: the supervisor may come back with a new agent.
RETURN_SECONDS = 15.0
SHM_SECONDS = 10.0  # between looks at who uses /dev/shm; at once where a new name appears in it
LISTEN_SECONDS = 0.25
# A longer round means that this process stood still, and the supervisor may have, too.
STANDSTILL_SECONDS = 5.0
TERM_SECONDS = 5.0
END_SECONDS = 8.0


class Lines(Protocol):
    """The encoding of lines that are sent to the supervisor and received from it."""

    def seal(self, line: bytes) -> bytes: ...

    def open(self, sealed: bytes) -> bytes: ...


class PlainLines:
    """Lines as they are: ssh and pipes protect them."""

    def seal(self, line: bytes) -> bytes:
        return line

    def open(self, sealed: bytes) -> bytes:
        return sealed


class Agent:
    """One node of one run."""

    def __init__(self, run_dir: Path, node: str, claims: Claims, lines: Lines | None = None) -> None:
        self.lines = lines or PlainLines()
        self.preempted = False
        self.run_dir = run_dir
        self.node = node
        self.claims = claims
        self.supervisor_here = os.getppid() if parent_supervises() else None
        self.noted = 0.0
        self.names: set[str] = set()  # in /dev/shm
        shared_memory.begin(self.notes)

    def serve(self) -> None:
        """Answer until the supervisor is gone, then leave nothing of the run here."""
        heard = looked = time.monotonic()
        pending = b""
        while looked - heard < SILENCE_SECONDS:
            if select.select([0], [], [], LISTEN_SECONDS)[0]:
                chunk = os.read(0, 65536)
                if not chunk:
                    break
                heard = time.monotonic()
                *asked, pending = (pending + chunk).split(b"\n")
                for line in asked:
                    if not self.answer(parse_request(self.lines.open(line + b"\n"))):
                        return
            self.note_segments()
            now = time.monotonic()
            if now - looked > STANDSTILL_SECONDS:
                heard += now - looked
            looked = now
        self.orphaned()

    def answer(self, question: Request) -> bool:
        """Do what is asked and say so; -> whether to go on."""
        answer = ANSWERS[type(question)](self, question)
        rest = self.lines.seal(render_response(question, answer))
        while rest:  # a signal may interrupt it
            rest = rest[os.write(1, rest) :]
        return not isinstance(question, Leave)

    def claim(self, question: TakeClaim) -> ClaimConflicts:
        return ClaimConflicts(self.claims.take(question.claim))

    def release(self, question: Request) -> Response:
        self.claims.release(self.run_dir.name)
        return Response()

    def leave(self, question: Request) -> Response:
        shared_memory.forget(self.notes)
        return self.release(question)

    def ping(self, question: Ping) -> Alive:
        return Alive(host=socket.gethostname(), time=time.time(), preempted=self.preempted)

    def preempt(self, number: int, frame: FrameType | None) -> None:
        """Remember SIGTERM for the supervisor, which has all ranks write a checkpoint.

        Slurm sends it to all processes of a job that it preempts, some time before it ends them.
        """
        self.preempted = True

    def take_stack_traces(self, question: TakeStackTraces) -> StackTraces:
        ranks = [one for one in self.others() if one.role == "rank" and one.rank in question.ranks]
        return StackTraces(stack_traces.collect(self.run_dir, ranks))

    def preempt_ranks(self, question: PreemptRanks) -> PreemptedRanks:
        ranks = [one for one in self.others() if one.role == "rank"]
        return PreemptedRanks(preemption.preempt(ranks))

    def contain(self, question: StartContainer) -> ContainerStarted:
        """Start the container of this node."""
        spec = containers.read_spec(self.run_dir)
        assert spec is not None
        try:
            containers.start(self.run_dir, spec, node=self.node, cpus=question.cpus)
        except ContainerError as error:
            return ContainerStarted(problem=str(error))
        return ContainerStarted()

    def end(self, question: EndAll) -> AllEnded:
        self.note_segments(now=True)
        ended = processes.end(self.others, term_seconds=TERM_SECONDS, seconds=END_SECONDS)
        removed, left = self.clear_containers()
        memory = shared_memory.remove(self.notes)
        return AllEnded(
            ended=(*map(processes.record, ended.ended), *removed),
            left=(*map(processes.record, ended.left), *left),
            segments=memory.gone,
            segments_left=memory.left,
            seconds=ended.seconds,
        )

    def clear_containers(self) -> tuple[list[ProcessRecord], list[ProcessRecord]]:
        if containers.read_spec(self.run_dir) is None:
            return [], []
        return containers.clear(self.run_dir, self.node)

    def write(self, question: WriteFile) -> Response:
        """Of the files that a restart changes; a name is no path."""
        if question.name in (files.LAYOUT, files.HOSTFILE):
            whole_files.write(self.run_dir / question.name, question.content)
        return Response()

    def others(self) -> list[processes.Process]:
        """The run's processes here but those that watch it."""
        found = processes.of_run(str(self.run_dir))
        return [one for one in found if one.role not in processes.WATCHERS]

    @property
    def notes(self) -> Path:
        return self.run_dir / f"shm-{self.node}.json"

    def note_segments(self, *, now: bool = False) -> None:
        names = set(shared_memory.names())
        new, self.names = names - self.names, names
        if now or new or time.monotonic() - self.noted > SHM_SECONDS:
            self.noted = time.monotonic()
            shared_memory.note(self.notes, self.others())

    def orphaned(self) -> None:
        """The supervisor is gone, or cannot be heard: end the run here, unless it comes back."""
        if self.supervisor_here is None:
            time.sleep(RETURN_SECONDS)  # its next agent ends this one
        processes.end(self.others, term_seconds=TERM_SECONDS, seconds=END_SECONDS)
        self.clear_containers()
        shared_memory.remove(self.notes)


ANSWERS: dict[type[Request], Callable[[Agent, Any], Response]] = {
    TakeClaim: Agent.claim,
    ReleaseClaim: Agent.release,
    Ping: Agent.ping,
    TakeStackTraces: Agent.take_stack_traces,
    PreemptRanks: Agent.preempt_ranks,
    StartContainer: Agent.contain,
    EndAll: Agent.end,
    WriteFile: Agent.write,
    Leave: Agent.leave,
}


def parent_supervises() -> bool:
    return processes.role_of(processes.argv_of(os.getppid()), os.getppid()) == "supervisor"


def relieve(run_dir: str, node: str) -> None:
    """End an earlier agent of this run here: its connection was lost."""
    for process in processes.of_run(run_dir):
        argv = processes.argv_of(process.pid)
        if process.role == "agent" and os.fsencode(node) in argv:
            processes.send(process, signal.SIGKILL)


def main(argv: list[str], lines: Lines | None = None) -> int:
    if len(argv) != 3:
        print("usage: node.py agent RUN_DIR NODE CLAIMS_FOLDER", file=sys.stderr)
        return 2
    # The run is ended through the supervisor; a hang-up of the connection is seen on the pipe.
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    run_dir, node, folder = argv
    relieve(run_dir, node)
    try:
        Path(run_dir).mkdir(mode=0o700, parents=True, exist_ok=True)
        agent = Agent(Path(run_dir), node, Claims(Path(folder)), lines)
        signal.signal(signal.SIGTERM, agent.preempt)
        agent.serve()
    except ConnectionError:
        agent.orphaned()
    except OSError as error:  # the supervisor takes the last line for the reason
        path = error.filename or run_dir
        print(trouble(node, Path(str(path)), error), file=sys.stderr)
        return 1
    return 0
