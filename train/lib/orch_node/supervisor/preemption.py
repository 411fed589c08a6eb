"""Let the ranks of an attempt write a checkpoint and end when the run is preempted."""

from __future__ import annotations

import math
import time
from dataclasses import replace

from orch_node.protocol.agent import PREEMPT, Request
from orch_node.protocol.events import Stopping
from orch_node.protocol.outcome import DONE, FAILED, PREEMPTED, Outcome
from orch_node.supervisor.rank_tracker import RankTracker
from orch_node.supervisor.run import SupervisedRun

RESPONSE_SECONDS = 3.0
ENDING_SIGNALS = ("SIGTERM", "SIGKILL")  # by which ranks end when a batch system takes their cores


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
