"""Watch for states in which an attempt cannot continue: a start that hangs, a preemption."""

from __future__ import annotations

import math
import os
import time
from dataclasses import replace

from orch_node.agent.processes import has_children
from orch_node.protocol.agent import PREEMPT, Request
from orch_node.protocol.events import Stopping
from orch_node.protocol.outcome import DONE, FAILED, PREEMPTED, Outcome
from orch_node.supervisor.launcher import LauncherLog
from orch_node.supervisor.rank_tracker import RankTracker
from orch_node.supervisor.run import SupervisedRun

REPORT_SECONDS = 20.0
NO_CHILDREN_SECONDS = 30.0  # hydra took 6 s with 20 runnable processes per core, 11 s if no name server responds
CHECK_SECONDS = 1.0
# Launchers that start each rank by a child process: ssh, srun or a proxy.
PARENTS = ("mpiexec", "mpiexec.hydra", "mpirun")
RESPONSE_SECONDS = 3.0
ENDING_SIGNALS = ("SIGTERM", "SIGKILL")  # by which ranks end when a batch system takes their cores


class StartupMonitor:
    """The launcher of an attempt until all ranks have joined."""

    def __init__(self, launcher: int, program: str, log: LauncherLog) -> None:
        """Watch a launcher.

        Args:
            launcher: its process number.
            program: its path.
            log: its output.
        """
        self.launcher = launcher
        self.program = os.path.basename(program)
        self.log = log
        self.reported = False
        self.checked_at = 0.0

    def news(self, tracker: RankTracker, now: float) -> str:
        """Return what the start waits for, once, if it takes longer than it should."""
        seconds = tracker.seconds_since_progress(now)
        if self.reported or seconds < REPORT_SECONDS or not tracker.waiting_to_join():
            return ""
        self.reported = True
        missing = (
            f"{len(tracker.started)} of {len(tracker.nodes)} ranks have started, {tracker.describe_missing_ranks()}"
        )
        reason = self.launcher_reason() if len(tracker.started) < len(tracker.nodes) else ""
        return f"no progress for {seconds:.0f} s: {missing}{reason}"

    def problem(self, tracker: RankTracker, now: float) -> str:
        """Return why no rank can start any more, or ''.

        MPICH's hydra waits for ever for a proxy whose srun or ssh has failed.
        """
        if tracker.started or self.program not in PARENTS or tracker.seconds_since_progress(now) < NO_CHILDREN_SECONDS:
            return ""
        if now - self.checked_at < CHECK_SECONDS:
            return ""
        self.checked_at = now
        if has_children(self.launcher):
            return ""
        reason = f"{self.program} has no process left that could start a rank"
        return f"{reason}: none of {len(tracker.nodes)} has started{self.launcher_reason()}"

    def launcher_reason(self) -> str:
        """Return what the launcher says about its trouble, to be added to a message, or ''."""
        reason = self.log.reason()
        return f"; the launcher reports: {reason}" if reason else ""


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
        if not responses and not tracker.any_preempted():
            self.problem = "no agent of its nodes responds"
        elif not any(response.ranks for response in responses.values()) and not tracker.any_preempted():
            self.problem = "the script does not support preemption, or does not train yet"

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
