"""Preempt an attempt: ask its ranks for a checkpoint, and wait for it for a limited time."""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from orch_node.protocol import files
from orch_node.protocol.agent import PREEMPT, Request
from orch_node.protocol.environment import PREEMPT_SIGNAL, configured_signal
from orch_node.protocol.events import Stopping
from orch_node.protocol.outcome import DONE, FAILED, PREEMPTED, Outcome
from orch_node.rank.environment import provisioned_environment, read_env_file
from orch_node.supervisor.rank_tracker import RankTracker

if TYPE_CHECKING:
    from orch_node.supervisor.supervisor import Supervisor

SECONDS_VARIABLE = "ORCH_PREEMPT_SECONDS"
DEFAULT_SECONDS = 120.0  # for the checkpoint, unless the variable is set
RESPONSE_SECONDS = 3.0
ENDING_SIGNALS = ("SIGTERM", "SIGKILL")  # by which ranks end when a batch system takes their cores


class PreemptionMonitor:
    """The preemption of an attempt, requested from the supervisor or directly from a rank."""

    def __init__(self, run: Supervisor) -> None:
        self.run = run
        self.requested_at: float | None = None
        self.problem = ""

    def poll(self, tracker: RankTracker) -> Outcome | None:
        """Ask the ranks for a checkpoint when requested; return the result once they are too late."""
        if self.requested_at is None and (self.run.is_preempted() or tracker.any_preempted()):
            self.request_checkpoints(tracker)
        if self.requested_at is not None and time.monotonic() - self.requested_at > self.run.preempt_seconds:
            self.problem = f"none was written within {self.run.preempt_seconds:.0f} s"
        return Outcome(PREEMPTED, problem=self.describe(tracker)) if self.problem else None

    def add_suspension(self, seconds: float) -> None:
        """Extend the time for the checkpoint: this process and its ranks were suspended for some seconds."""
        if self.requested_at is not None:
            self.requested_at += seconds

    def request_checkpoints(self, tracker: RankTracker) -> None:
        """Ask all ranks to write a checkpoint and end."""
        self.requested_at = time.monotonic()
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
        is_requested = tracker.any_preempted() or (result.state == FAILED and self.requested_at)
        if result.state not in (DONE, FAILED) or not is_requested or not is_signal:
            return result
        return replace(result, state=PREEMPTED, problem=self.describe(tracker), first_failure=None)


def preemption_settings(run_dir: Path) -> tuple[int, float]:
    """Return the signal that requests a preemption in addition to SIGTERM (0 for none), and the seconds for it.

    This process' environment overrides the plan, which overrides what `orch provision` has stored. The ranks report
    what is wrong with the files and the signal.
    """
    variables, number, seconds = dict(os.environ), 0, DEFAULT_SECONDS
    with contextlib.suppress(OSError, ValueError):
        variables = {**provisioned_environment(), **read_env_file(run_dir / files.ENVIRONMENT), **os.environ}
    with contextlib.suppress(ValueError):
        number = configured_signal(variables, PREEMPT_SIGNAL)
    with contextlib.suppress(ValueError):
        seconds = float(variables.get(SECONDS_VARIABLE, DEFAULT_SECONDS))
    return number, seconds
