"""Watch one node of a run: `node.py agent RUN_DIR NODE CLAIMS_FOLDER`.

The supervisor starts an agent on each node over ssh, and sends it requests through a pipe: JSON
lines in and out. The agent holds the claim on the node's cores, reports that the node is alive,
collects stack traces, and ends all processes of the run. It does so without a request if the
supervisor is silent for too long: a node that is cut off must not run forever.
"""

from __future__ import annotations

import base64
import contextlib
import os
import signal
import sys
import time
from pathlib import Path
from types import FrameType

from orch_node import atomic_write, machine
from orch_node.agent import containers, processes, rank_signals, shared_memory
from orch_node.agent.containers import ContainerError
from orch_node.agent.core_claims import Claims
from orch_node.disk import describe_on_node
from orch_node.line_pipes import Pipes
from orch_node.protocol import files, values
from orch_node.protocol.agent import END, Request, Response
from orch_node.protocol.outcome import NodeEnd, ProcessRecord
from orch_node.protocol.record import number_ranges
from orch_node.signed_lines import SignedLines

SILENCE_SECONDS = 30.0  # the supervisor sends a request every 2 s
# After a dropped ssh connection, the supervisor may start a new agent.
RETURN_SECONDS = 15.0
SHM_SECONDS = 10.0  # between scans of who uses /dev/shm; a new name there causes one at once
LISTEN_SECONDS = 0.25
MAX_REQUEST_BYTES = 1 << 30  # the layout of many nodes
# After a longer round this process was suspended, and the supervisor may have been, too.
SUSPENSION_SECONDS = 5.0
TERM_SECONDS = 5.0
END_SECONDS = 8.0
# While a launcher ends its ranks, some of its processes may end before them.
CONFIRM_SECONDS = 2.0
Key = tuple[int, int]  # the pid and the start of a process


class LauncherProcesses:
    """The process above each wrapper of a node, as it was when it was first seen.

    The ranks of a killed `hydra_pmi_proxy` or `prted` continue, but nobody receives their reports.
    """

    def __init__(self) -> None:
        self.above: dict[Key, ProcessRecord] = {}  # by wrapper
        self.ranks: dict[Key, int] = {}  # of wrappers whose training process has been seen
        self.lost_since: float | None = None

    def add(self, run_processes: list[ProcessRecord]) -> None:
        """Record the processes above new wrappers.

        Args:
            run_processes: the processes of the run on this node and the daemons above them.
        """
        by_pid = {process.pid: process for process in run_processes}
        for process in run_processes:
            parent = by_pid.get(process.parent)
            if parent and process.role == "wrapper":
                self.above.setdefault(process.key, parent)
            elif parent and parent.role == "wrapper" and process.role == "rank" and process.rank is not None:
                self.ranks[parent.key] = process.rank

    def describe_lost(self, now: float) -> str:
        """Return which process has ended for some time although its ranks continue, or ''."""
        self.above = {key: parent for key, parent in self.above.items() if machine.is_alive(*key)}
        lost = {key: parent for key, parent in self.above.items() if not machine.is_alive(*parent.key)}
        self.lost_since = (self.lost_since or now) if lost else None
        if self.lost_since is None or now - self.lost_since < CONFIRM_SECONDS:
            return ""
        ranks = {self.ranks[key] for key in lost if key in self.ranks}
        names = ", ".join(dict.fromkeys(f"{process.name} (process {process.pid})" for process in lost.values()))
        affected = f"rank{'s' * (len(ranks) > 1)} {number_ranges(ranks)}" if ranks else "its ranks"
        return f"the launcher's {names} was killed or has crashed, so nothing receives the reports of {affected}"


class Agent:
    """The agent of one node in one run."""

    def __init__(self, run_dir: Path, node: str, claims: Claims, lines: SignedLines | None = None) -> None:
        self.lines = lines
        self.preempted = self.has_left = False
        self.run_dir = run_dir
        self.node = node
        self.claims = claims
        parent = os.getppid()
        self.is_local = processes.role_of(processes.read_argv(parent), parent) == "supervisor"
        self.notes = run_dir / f"shm-{node}.json"  # records the run's use of /dev/shm
        self.noted_at = 0.0
        self.segments: set[str] = set()  # names in /dev/shm
        self.launcher = LauncherProcesses()
        shared_memory.begin(self.notes)

    def serve(self) -> None:
        """Respond until the supervisor is gone, then remove everything of the run here."""
        pipes = Pipes()
        pipes.add(0, self.respond, MAX_REQUEST_BYTES)
        last_request = now = time.monotonic()
        while pipes.open(0) and now - last_request < SILENCE_SECONDS:
            if pipes.pump(LISTEN_SECONDS):
                last_request = time.monotonic()
            if self.has_left:
                return
            self.note_segments()
            previous, now = now, time.monotonic()
            if now - previous > SUSPENSION_SECONDS:
                last_request += now - previous
        self.end_without_supervisor()

    def respond(self, line: bytes) -> None:
        """Do what a line requests, and write the response."""
        request = values.parse(Request, self.lines.verify(line) if self.lines else line, "a request")
        response = values.render(getattr(self, f"handle_{request.kind}")(request)).encode() + b"\n"
        if self.lines:
            response = self.lines.sign(response)
        atomic_write.write_all(1, response)

    def handle_claim(self, request: Request) -> Response:
        assert request.claim is not None
        return Response(request.kind, taken=self.claims.take(request.claim))

    def handle_leave(self, request: Request) -> Response:
        shared_memory.forget(self.notes)
        self.claims.release()
        self.has_left = True
        return Response(request.kind)

    def handle_ping(self, request: Request) -> Response:
        if not self.launcher.above:
            self.launcher.add(self.find_processes())
        lost = self.launcher.describe_lost(time.monotonic())
        return Response(request.kind, time=time.time(), preempted=self.preempted, lost_launcher=lost)

    def preempt(self, number: int, frame: FrameType | None) -> None:
        """Record SIGTERM for the supervisor, which lets all ranks write a checkpoint.

        Slurm sends it to all processes of a job that it preempts, some time before it ends them.
        """
        self.preempted = True

    def handle_stacks(self, request: Request) -> Response:
        ranks = [process for process in self.find_ranks() if process.rank in request.ranks]
        return Response(request.kind, stacks=rank_signals.collect(self.run_dir, ranks))

    def handle_preempt(self, request: Request) -> Response:
        return Response(request.kind, ranks=rank_signals.preempt(self.find_ranks()))

    def handle_container(self, request: Request) -> Response:
        """Start the container of this node."""
        spec = containers.read_spec(self.run_dir)
        assert spec is not None
        try:
            return Response(request.kind, packages=containers.start(self.run_dir, spec, self.node, request.cpus))
        except ContainerError as error:
            return Response(request.kind, problem=str(error))

    def handle_end(self, request: Request) -> Response:
        self.note_segments(now=True)
        self.launcher = LauncherProcesses()
        began = time.monotonic()
        ended, living = processes.terminate(self.find_processes, term_seconds=TERM_SECONDS, seconds=END_SECONDS)
        seconds = round(time.monotonic() - began, 3)
        removed, remaining = containers.remove_all(self.run_dir, self.node)
        segments = shared_memory.remove(self.notes)
        leftovers = (*living, *remaining)
        end = NodeEnd(len(ended) + len(removed), leftovers, segments.removed, segments.remaining, seconds)
        return Response(request.kind, end=end, logs=None if leftovers else self.small_logs(request.max_log_bytes))

    def small_logs(self, max_bytes: int) -> dict[str, str] | None:
        """Return the files of the ranks here, unless they are too large or unreadable, or node0 has them anyway."""
        with contextlib.suppress(OSError):
            names = (self.run_dir / files.RANKS).glob("rank-*")
            paths = [path for path in names if files.rank_of(path.name) is not None]
            is_small = sum(path.stat().st_size for path in paths) <= max_bytes
            if is_small and not (self.run_dir / files.SUPERVISOR).exists():
                return {path.name: base64.b64encode(path.read_bytes()).decode() for path in paths}
        return None

    def handle_write(self, request: Request) -> Response:
        """Write one of the files that describe all nodes; other names are ignored."""
        if request.name in (files.LAYOUT, files.RECORD):
            atomic_write.write(self.run_dir / request.name, request.content)
        return Response(request.kind)

    def find_processes(self) -> list[ProcessRecord]:
        """Return the run's processes here except those that watch it."""
        living = processes.run_processes(str(self.run_dir))
        return [process for process in living if process.role not in processes.WATCHERS]

    def find_ranks(self) -> list[ProcessRecord]:
        """Return the run's training processes here."""
        return [process for process in self.find_processes() if process.role == "rank"]

    def note_segments(self, *, now: bool = False) -> None:
        """Record what the run uses in /dev/shm, if it is time to do so or a name is new there."""
        names = set(shared_memory.segments())
        new, self.segments = names - self.segments, names
        if now or new or time.monotonic() - self.noted_at > SHM_SECONDS:
            self.noted_at = time.monotonic()
            living = self.find_processes()
            self.launcher.add(living)
            shared_memory.note_usage(self.notes, living)

    def end_without_supervisor(self) -> None:
        """End the run here, unless a supervisor on another node starts a new agent meanwhile."""
        if not self.is_local:
            time.sleep(RETURN_SECONDS)  # the new agent ends this one
        self.handle_end(Request(END))


def end_earlier_agents(run_dir: str, node: str) -> None:
    """End an earlier agent of this node and run, which has lost its connection."""
    for process in processes.run_processes(run_dir):
        if process.role == "agent" and os.fsencode(node) in processes.read_argv(process.pid):
            machine.send_signal(*process.key, signal.SIGKILL)


def main(argv: list[str], lines: SignedLines | None = None) -> int:
    """Serve until the supervisor is gone.

    Args:
        argv: folder of the run, name of the node, folder of the claims.
        lines: the signatures of lines; none by default, because ssh and pipes protect them.
    """
    # Only the supervisor ends the run; a lost connection closes the pipe.
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    run_dir, node, folder = argv
    end_earlier_agents(run_dir, node)
    try:
        Path(run_dir).mkdir(mode=0o700, parents=True, exist_ok=True)
        agent = Agent(Path(run_dir), node, Claims(Path(folder)), lines)
        signal.signal(signal.SIGTERM, agent.preempt)
        agent.serve()
    except ConnectionError:
        agent.end_without_supervisor()
    except OSError as error:  # the supervisor reports the last line as the reason
        print(describe_on_node(node, error.filename or run_dir, error), file=sys.stderr)
        return 1
    return 0
