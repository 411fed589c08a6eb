"""A run while it is supervised: its files and nodes, the signals that end or preempt it, and how often it restarted."""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import FrameType

from orch_node import atomic_write, machine
from orch_node.agent.rank_signals import describe_position
from orch_node.atomic_write import private
from orch_node.disk import Appender, Reserve, describe_on_node
from orch_node.lease import Lease
from orch_node.protocol import events, files, outcome
from orch_node.protocol import layout as layouts
from orch_node.protocol.agent import PREEMPT, Claim, RankStack, Request
from orch_node.protocol.environment import PREEMPT_SIGNAL, configured_signal
from orch_node.protocol.events import Event, Finished, NodeNews, Restarting, Stopping, UnreadableEvents
from orch_node.protocol.outcome import DONE, ENDING_SIGNALS, FAILED, PREEMPTED, NodeEnd, Outcome
from orch_node.protocol.values import record
from orch_node.rank.environment import provisioned_environment, read_env_file
from orch_node.supervisor.agents import Agents
from orch_node.supervisor.rank_tracker import RankTracker

PREEMPT_SECONDS = "ORCH_PREEMPT_SECONDS"
DEFAULT_PREEMPT_SECONDS = 120.0  # for the checkpoint, unless the variable is set
RESPONSE_SECONDS = 3.0
RESERVED_NAME = ".outcome-room"
# Space that is reserved for outcome.json, and how much of it for each node.
OUTCOME_BYTES, OUTCOME_BYTES_PER_NODE = 1 << 16, 1 << 10


def preemption_settings(run_dir: Path) -> tuple[int, float]:
    """Return the signal that requests a preemption in addition to SIGTERM (0 for none), and the seconds for it.

    This process' environment overrides the plan, which overrides what `orch provision` has stored. The ranks report
    what is wrong with the files and the signal.
    """
    variables, number, seconds = dict(os.environ), 0, DEFAULT_PREEMPT_SECONDS
    with contextlib.suppress(OSError, ValueError):
        variables = {**provisioned_environment(), **read_env_file(run_dir / files.ENVIRONMENT), **os.environ}
    with contextlib.suppress(ValueError):
        number = configured_signal(variables, PREEMPT_SIGNAL)
    with contextlib.suppress(ValueError):
        seconds = float(variables.get(PREEMPT_SECONDS, DEFAULT_PREEMPT_SECONDS))
    return number, seconds


class EventLog:
    """The events of a run's ranks and, as those of rank -1, of its supervisor.

    The space for outcome.json is reserved at the start, so that the reason for the end can be
    recorded even on a full disk.
    """

    def __init__(self, run_dir: Path, nodes: Sequence[str]) -> None:
        """Open the files.

        Raises:
            OSError: if they cannot be written, or there is no space for outcome.json.
        """
        self.run_dir = run_dir
        self.node0 = nodes[0]
        self.outcome = Reserve(run_dir / RESERVED_NAME, OUTCOME_BYTES + OUTCOME_BYTES_PER_NODE * len(nodes))
        self.events = Appender(run_dir / files.EVENTS)
        self.launcher_output = Appender(run_dir / files.LAUNCHER_LOG)
        self.unreadable = UnreadableEvents()
        self.texts: set[str] = set()  # of the supervisor's events

    def problem(self) -> str:
        """Return why events can no longer be written, or ''."""
        error = self.events.problem or self.launcher_output.problem
        return describe_on_node(self.node0, self.run_dir, error) if error else ""

    def record(self, event: Event) -> None:
        """Write an event of the supervisor, with the current time."""
        self.texts.add(getattr(event, "text", ""))
        self.events.write(events.render(replace(event, time=round(time.time(), 3))))

    def save_stack_traces(self, stacks: Mapping[int, RankStack]) -> dict[str, str]:
        """Write a file for each rank; return each rank's position in one line."""
        folder = self.run_dir / files.STACK_TRACES
        for rank, stack in stacks.items():
            kernel = "".join(f"{name}: {text}\n" for name, text in stack.kernel.items())
            text = f"{stack.stack}\n{kernel}".encode(errors="backslashreplace")
            with contextlib.suppress(OSError):  # on a full disk, which problem() reports
                folder.mkdir(mode=0o700, exist_ok=True)
                # Without a flush to the disk, which takes milliseconds for each of possibly thousands of files.
                with open(folder / f"rank-{rank}.txt", "wb", opener=private) as file:
                    file.write(text)
        return {str(rank): describe_position(stack) for rank, stack in sorted(stacks.items())}

    def end(self, ending: Outcome) -> None:
        """Record the end of the run, and write outcome.json."""
        for event in self.unreadable.events():
            self.record(event)
        self.record(Finished(state=ending.state))
        self.events.file.close()
        self.launcher_output.file.close()
        path = self.run_dir / files.OUTCOME
        try:
            self.outcome.become(path, outcome.render(ending).encode())
        except OSError:  # larger than the reserved space
            self.outcome.become(path, outcome.render(replace(ending, nodes={})).encode())


class SupervisedRun:
    """A run while it is supervised.

    Attributes:
        run_dir: the run's folder.
        options: of the supervisor.
        launcher_argv: the command of the next attempt.
        layout: which rank runs on which cores of which node in the next attempt.
        agents: connections to the agents of all nodes, once they are open.
        event_log: receives the events of the ranks and of the attempts.
        nodes: the result of ending the processes of each node after the newest attempt.
        attempts: how many attempts have started.
        restarts: how often the supervisor, or the launcher itself, has started all ranks again.
    """

    agents: Agents

    def __init__(self, run_dir: Path, options: argparse.Namespace) -> None:
        """Open the files of a run, and handle signals from now on.

        Raises:
            OSError: if the folder cannot be written.
        """
        self.run_dir = run_dir
        self.options = options
        self.launcher_argv: list[str] = options.launcher
        self.layout = layouts.parse((run_dir / files.LAYOUT).read_text())
        self.began = time.clock_gettime(time.CLOCK_BOOTTIME)
        self.nodes: dict[str, NodeEnd] = {}
        self.attempts = 0
        self.restarts = 0  # by the supervisor or by the launcher itself
        self.stop_signal: int | None = None
        self.preempted = False
        self.preempt_signal, self.preempt_seconds = preemption_settings(run_dir)
        for number in {signal.SIGTERM, signal.SIGINT, self.preempt_signal or signal.SIGTERM}:
            signal.signal(number, self.handle_signal)
        self.event_log = EventLog(run_dir, [*self.layout.node_names, *self.layout.spares])
        # Once the file SUPERVISOR exists, `orch stop` sends a signal; before, it only writes the file STOP.
        identity = machine.this_process()
        self.lease = Lease(run_dir, identity)
        process = outcome.SupervisorProcess(pid=identity.pid, started=time.time(), identity=identity)
        atomic_write.write(run_dir / files.SUPERVISOR, outcome.render(process))
        if (run_dir / files.STOP).exists():
            self.stop_signal = signal.SIGTERM

    def claim_of(self, node: str) -> Claim:
        """Return the claim on the cores and GPUs of a node, for its ranks and their oneCCL workers.

        The cores of a spare node are those of the nodes that it may replace.
        """
        ranks = self.layout.ranks_on(self.layout.node_names[0] if node in self.layout.spares else node)
        cpus = {cpu for placement in ranks for cpu in (*placement.cpus, *placement.worker_cpus)}
        gpus = {placement.gpu for placement in ranks if placement.gpu is not None}
        return Claim(self.run_dir.name, str(self.run_dir), cpus=tuple(sorted(cpus)), gpus=tuple(sorted(gpus)))

    def handle_signal(self, number: int, frame: FrameType | None) -> None:
        """Stop at SIGINT (Ctrl-C) or after `orch stop`; any other SIGTERM, or the signal for it, is a preemption."""
        is_stop = number == signal.SIGINT or (self.run_dir / files.STOP).exists()
        if is_stop and number != self.preempt_signal:
            self.stop_signal = number
        else:
            self.preempted = True

    def is_to_end(self) -> bool:
        """Return whether no further attempt may start."""
        return self.preempted or self.is_stopped() or bool(self.lease.problem())

    def is_stopped(self) -> bool:
        """Return whether to stop; a host that cannot signal this process leaves a file."""
        self.lease.problem()
        if self.lease.is_stop_requested:
            self.stop_signal = self.stop_signal or signal.SIGTERM
        return self.stop_signal is not None

    def problem(self) -> str:
        """Return why the run can no longer write its files, or ''."""
        return self.lease.problem() or self.event_log.problem()

    def lost(self) -> dict[str, str]:
        """Return the lost nodes of the newest attempt, each with the reason."""
        names = set(self.layout.node_names)
        return {node: reason for node, reason in self.agents.lost.items() if node in names}

    @property
    def attempt_number(self) -> int:
        """Return the number of the newest attempt, also counting those before the run was resumed."""
        return self.attempts + int(self.options.first_attempt) - 1

    def count_restart(self, ending: Outcome) -> None:
        """Record that all ranks start again, and why."""
        self.restarts += 1
        if ending.problem and ending.problem not in self.event_log.texts:
            self.record_news(ending.problem)
        after = ending.problem or record(ending.first_failure)
        earlier = int(self.options.first_attempt) - 1
        attempt, last = earlier + self.restarts + 1, earlier + int(self.options.max_restarts)
        self.event_log.record(Restarting(attempt=attempt, of=last, after=after))

    def record_news(self, text: str) -> None:
        """Record a message about the nodes of the run."""
        self.event_log.record(NodeNews(text=text))


class PreemptionMonitor:
    """The preemption of an attempt, requested from the supervisor or directly from a rank."""

    def __init__(self, run: SupervisedRun) -> None:
        self.run = run
        self.deadline = math.inf  # for the checkpoints, once they are requested
        self.problem = ""

    def poll(self, tracker: RankTracker) -> Outcome | None:
        """Ask the ranks for a checkpoint when requested; return the result once they are too late."""
        is_preempted = self.run.preempted or self.run.agents.preempted or tracker.any_preempted()
        if is_preempted and self.deadline == math.inf:
            self.request_checkpoints(tracker)
        if time.monotonic() > self.deadline:
            self.problem = f"none was written within {self.run.preempt_seconds:.0f} s"
        return Outcome(PREEMPTED, problem=self.describe(tracker)) if self.problem else None

    def request_checkpoints(self, tracker: RankTracker) -> None:
        """Ask all ranks to write a checkpoint and end."""
        self.deadline = time.monotonic() + self.run.preempt_seconds
        self.run.event_log.record(Stopping(text="preempted: the ranks write a checkpoint and end"))
        responses = self.run.agents.request(Request(PREEMPT), seconds=RESPONSE_SECONDS)
        if not tracker.any_preempted() and not any(response.ranks for response in responses.values()):
            unsupported = "the script does not support preemption, or does not train yet"
            self.problem = unsupported if responses else "no agent of its nodes responds"

    def describe(self, tracker: RankTracker) -> str:
        """Return which checkpoint the ranks wrote, or why there is none."""
        if tracker.checkpoints:
            return f"checkpoint at step {max(event.step for event in tracker.checkpoints.values())}"
        if tracker.any_preempted():
            return "the ranks ended after a checkpoint but reported no step"
        return f"without a checkpoint: {self.problem or 'the ranks were ended before they wrote one'}"

    def adjust_result(self, result: Outcome, tracker: RankTracker) -> Outcome:
        """Return the result as preempted if ranks ended after a checkpoint, or by the signals that follow a request."""
        failure = result.first_failure
        is_signal = failure is None or (not failure.oom and failure.signal in ENDING_SIGNALS)
        is_requested = tracker.any_preempted() or (result.state == FAILED and self.deadline < math.inf)
        if result.state not in (DONE, FAILED) or not is_requested or not is_signal:
            return result
        return replace(result, state=PREEMPTED, problem=self.describe(tracker), first_failure=None)
