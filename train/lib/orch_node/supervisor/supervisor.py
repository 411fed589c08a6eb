"""Runs a launcher and watches its ranks: `node.py supervise RUN_DIR -- mpiexec.hydra ...`.

It lives on node0, apart from whoever started it, with an agent on every node. The ranks' events
arrive on the launcher's standard output. When a rank fails, a node is lost or nothing gets on any
more, it names the culprit, asks the other ranks for their stack traces, ends what is left on all
nodes, and starts again if it may. At SIGTERM, or the signal that ORCH_PREEMPT_SIGNAL names, the
ranks write a checkpoint and make room. RUN_DIR/outcome.json says how it ended. Exit code: 0 if all
ranks finished, 1 if not, 75 if they have made room, 130 if it was asked to stop (SIGINT, or SIGTERM
and the file STOP).
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import FrameType

from orch_node import machine, whole_files
from orch_node.disk import trouble
from orch_node.line_pipes import Pipes
from orch_node.protocol import files, outcome
from orch_node.protocol import layout as layouts
from orch_node.protocol.agent import AllEnded, EndAll, Response, WriteFile
from orch_node.protocol.events import Launched, NodeNews, Restarting
from orch_node.protocol.outcome import DONE, EX_TEMPFAIL, FAILED, PREEMPTED, REFUSED, STOPPED, NodeEnd, Outcome
from orch_node.protocol.values import record
from orch_node.supervisor.agents import Agents
from orch_node.supervisor.attempt import END_SECONDS, Attempt
from orch_node.supervisor.core_reservation import AttemptResult, CoreReservation
from orch_node.supervisor.event_log import EventLog
from orch_node.supervisor.folders import FolderLeases
from orch_node.supervisor.launcher_process import launcher_environment
from orch_node.supervisor.preemption import preempt_signal
from orch_node.supervisor.recovery import Recovery, recover

OpenAgents = Callable[[Path, list[str], str, Pipes], Agents]
EXIT_CODES = {DONE: 0, FAILED: 1, REFUSED: 1, PREEMPTED: EX_TEMPFAIL, STOPPED: 130}
BEFORE_IT_BEGAN = AttemptResult(PREEMPTED, "without a checkpoint: before it began")


def main(argv: list[str]) -> int:
    if "--" not in argv:
        print("usage: node.py supervise RUN_DIR [OPTIONS] -- LAUNCHER [ARGS...]", file=sys.stderr)
        return 2
    options = parse(argv)
    try:
        supervisor = Supervisor(Path(options.run_dir), options)
    except OSError as error:
        path = error.filename or options.run_dir
        print(f"error: {trouble('node0', Path(str(path)), error)}", file=sys.stderr)
        return 1
    return supervisor.run()


def parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="node.py supervise")
    parser.add_argument("run_dir")
    parser.add_argument("--claims", help="the folder of all runs' claims on a node's cores")
    parser.add_argument("--queue", action="store_true", help="wait for cores that are taken")
    parser.add_argument("--stall-timeout", type=float, default=0.0, help="seconds; 0: for ever")
    parser.add_argument("--max-restarts", type=int, default=0)
    parser.add_argument("--elastic", action="store_true", help="restart without lost nodes")
    parser.add_argument("--keeps-batch", action="store_true", help="the recipe then keeps its global batch")
    parser.add_argument("--min-nodes", type=int, default=1, help="the fewest for --elastic")
    parser.add_argument("--launcher-restarts", action="store_true", help="the launcher itself restarts ranks")
    parser.add_argument("--path", help="a folder whose programs the launcher finds first")
    parser.add_argument("--size-at", type=int, help="the word of it that is the number of ranks")
    parser.add_argument("--nodes-at", type=int, help="the word of it that is the number of nodes")
    ours, launcher = argv[: argv.index("--")], argv[argv.index("--") + 1 :]
    options = parser.parse_args(ours)
    options.launcher = launcher
    return options


class Supervisor:
    """One run: its launcher, its nodes and what became of them. `open_agents`: how it gets at the
    agents of its nodes."""

    def __init__(self, run_dir: Path, options: argparse.Namespace, open_agents: OpenAgents = Agents) -> None:
        self.run_dir = run_dir
        self.options = options
        self.open_agents = open_agents
        self.launcher_argv: list[str] = options.launcher
        self.layout = layouts.parse((run_dir / files.LAYOUT).read_text())
        self.started = time.time()
        self.attempts = 0
        self.restarts = 0  # of ours and of those that the launcher itself does
        self.stop_signal: int | None = None
        self.preempted = False
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self.ask_to_stop)
        if own := preempt_signal(run_dir):
            signal.signal(own, self.ask_for_room)
        nodes = [*self.layout.node_names, *self.layout.spare_hosts]
        self.event_log = EventLog(run_dir, nodes)
        # From here on a signal reaches it; before, only the file STOP does.
        self.leases = FolderLeases(run_dir)
        process = outcome.SupervisorProcess(pid=os.getpid(), started=self.started, identity=machine.this_process())
        whole_files.write(run_dir / files.SUPERVISOR, outcome.render_supervisor(process))
        if (run_dir / files.STOP).exists():
            self.stop_signal = signal.SIGTERM
        self.nodes: dict[str, NodeEnd] = {}  # what the end left on each node

    def run(self) -> int:
        """-> exit code. A run that was stopped before it began touches no other node."""
        if self.stop_signal:
            return self.finish(AttemptResult(STOPPED))
        if self.preempted:
            return self.finish(BEFORE_IT_BEGAN)
        try:
            return self.finish(self.supervise())
        except OSError as error:  # its own files: a full disk, mostly
            return self.finish(self.cut_short(error))

    def cut_short(self, error: OSError) -> AttemptResult:
        """End what is left without a further word on the disk."""
        path = Path(error.filename) if isinstance(error.filename, str) else self.run_dir
        self.agents.ask(EndAll(), AllEnded, seconds=END_SECONDS)
        self.agents.leave()
        return AttemptResult(FAILED, trouble(self.layout.node_names[0], path, error))

    def supervise(self) -> AttemptResult:
        claims = self.options.claims or str(self.run_dir.parent / ".claims")
        nodes = [*self.layout.node_names, *self.layout.spare_hosts]
        self.agents = self.open_agents(self.run_dir, nodes, claims, Pipes())
        if refusal := self.leases.acquire(self.is_to_end, self.tell_news):
            self.agents.leave()
            return AttemptResult(REFUSED, refusal)
        start = CoreReservation(self.run_dir, self.layout, self.agents, self.is_to_end)
        ending = start.claim(queue=self.options.queue, tell=self.event_log.tell)
        if ending == AttemptResult(STOPPED) and not self.stop_signal:
            ending = BEFORE_IT_BEGAN
        while ending is None or self.may_restart(ending):
            ending = self.attempt()
        self.agents.leave()  # the cores are free before outcome.json says that it has ended
        return ending

    def ask_to_stop(self, number: int, frame: FrameType | None) -> None:
        """`orch stop` has left its file, Ctrl-C is SIGINT; any other SIGTERM is of whoever wants
        the cores."""
        if number == signal.SIGINT or (self.run_dir / files.STOP).exists():
            self.stop_signal = number
        else:
            self.preempted = True

    def ask_for_room(self, number: int, frame: FrameType | None) -> None:
        self.preempted = True

    def is_to_end(self) -> bool:
        return self.preempted or self.is_stopped() or bool(self.leases.problem())

    def is_stopped(self) -> bool:
        """Return whether to stop; a host that cannot signal this process leaves a file."""
        if self.stop_signal is None and self.leases.is_stop_requested():
            self.stop_signal = signal.SIGTERM
        return self.stop_signal is not None

    def problem(self) -> str:
        """Return why the run can write no more, or ''."""
        return self.leases.problem() or self.event_log.problem()

    def attempt(self) -> AttemptResult:
        """Start the launcher once; -> how that ended."""
        self.attempts += 1
        launched = Launched(attempt=self.attempts, ranks=self.layout.world_size, nodes=tuple(self.layout.node_names))
        self.event_log.tell(launched)
        self.latest = Attempt(
            self.run_dir,
            self.layout,
            self.agents,
            self.event_log,
            stopped=self.is_stopped,
            preempted=lambda: self.preempted or self.agents.preempted,
            launcher_restarts=self.left_to_launcher,
            problem=self.problem,
            stall_timeout=self.options.stall_timeout,
        )
        folder = self.options.path or os.path.dirname(self.launcher_argv[0])
        environment = launcher_environment(folder, self.run_dir, self.attempts)
        ending = self.latest.run(self.launcher_argv, environment)
        self.nodes.update(self.latest.nodes)
        return ending

    # Restarts.

    def left_to_launcher(self, ending: AttemptResult) -> bool:
        """Whether the launcher itself starts all ranks again."""
        if not self.options.launcher_restarts or self.restarts >= self.options.max_restarts:
            return False
        self.restarts += 1
        self.tell_restart(ending)
        return True

    def tell_restart(self, ending: AttemptResult) -> None:
        after = ending.problem or record(ending.failure)
        again = Restarting(attempt=self.restarts + 1, of=self.options.max_restarts, after=after)
        self.event_log.tell(again)

    def may_restart(self, ending: AttemptResult) -> bool:
        """Whether to try again; if so, everything is ready for it."""
        if ending.state != FAILED or self.is_to_end() or not self.attempts:
            return False
        if self.restarts >= self.options.max_restarts:
            return False
        if left := [node for node, found in self.nodes.items() if found.left]:
            self.tell_news(f"no restart: processes are left on {', '.join(left)}")
            return False
        lost = set(self.latest.lost())
        if lost and not self.recover(lost):
            return False
        self.restarts += 1
        self.tell_restart(ending)
        return True

    def recover(self, lost: set[str]) -> bool:
        """Make ready for an attempt on other nodes; -> whether there can be one."""
        recovery = recover(
            self.run_dir,
            Recovery(self.layout, self.launcher_argv),
            lost=lost,
            gone=set(self.agents.lost),
            options=self.options,
            tell=self.tell_news,
        )
        if recovery is None:
            return False
        self.layout, self.launcher_argv = recovery.layout, recovery.argv
        written = WriteFile(name=files.LAYOUT, content=layouts.render(self.layout))
        answers = self.agents.ask(written, Response, seconds=5.0)
        return set(answers) >= set(self.layout.node_names)

    def tell_news(self, text: str) -> None:
        self.event_log.tell(NodeNews(text=text))

    def finish(self, ending: AttemptResult) -> int:
        """Write outcome.json; -> exit code."""
        if ending.state != DONE and (problem := self.leases.problem()):
            ending = replace(ending, state=FAILED, problem=problem)
        ended = Outcome(
            state=ending.state,
            first_failure=ending.failure,
            problem=ending.problem,
            launcher_code=ending.launcher_code,
            attempts=self.attempts,
            nodes=self.nodes,
            started=self.started,
            ended=time.time(),
        )
        if self.leases.lost_run_dir():
            # Another supervisor writes this run's files now.
            print(f"error: {self.leases.problem()}", file=sys.stderr, flush=True)
            return EXIT_CODES[FAILED]
        self.event_log.end(ended)
        self.leases.release()
        return EXIT_CODES[ending.state]
