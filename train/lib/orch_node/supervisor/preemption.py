"""Preempt an attempt: ask its ranks for a checkpoint, and wait for it for a limited time."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
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
        self.seconds = checkpoint_seconds(environment(run.run_dir))
        self.requested_at: float | None = None
        self.problem = ""

    def poll(self, tracker: RankTracker) -> Outcome | None:
        """Ask the ranks for a checkpoint when requested; return the result once they are too late."""
        if self.requested_at is None and (self.run.is_preempted() or tracker.any_preempted()):
            self.request_checkpoints(tracker)
        if self.requested_at is not None and time.monotonic() - self.requested_at > self.seconds:
            self.problem = f"none was written within {self.seconds:.0f} s"
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
        if result.state == DONE:
            is_preempted = tracker.any_preempted()
        elif result.state == FAILED and (self.requested_at or tracker.any_preempted()):
            failure = result.first_failure
            is_preempted = failure is None or (not failure.oom and failure.signal in ENDING_SIGNALS)
        else:
            is_preempted = False
        if not is_preempted:
            return result
        return replace(result, state=PREEMPTED, problem=self.describe(tracker), first_failure=None)


def environment(run_dir: Path) -> dict[str, str]:
    """Return the variables of a run.

    This process' environment overrides the plan, which overrides what `orch provision` has stored.
    """
    try:
        planned = read_env_file(run_dir / files.ENVIRONMENT)
        return {**provisioned_environment(), **planned, **os.environ}
    except (OSError, ValueError):  # the ranks report what is wrong with the files
        return dict(os.environ)


def checkpoint_seconds(environ: Mapping[str, str]) -> float:
    """Return the seconds that ranks have for a checkpoint; ignore a value that is not a number."""
    try:
        return float(environ.get(SECONDS_VARIABLE, DEFAULT_SECONDS))
    except ValueError:
        return DEFAULT_SECONDS


def preemption_signal(run_dir: Path) -> int:
    """Return the signal that requests a preemption, in addition to SIGTERM; 0 if there is none."""
    try:
        return configured_signal(environment(run_dir), PREEMPT_SIGNAL)
    except ValueError:  # the ranks report it
        return 0
