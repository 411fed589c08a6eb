"""An attempt that has to make room: its ranks are told, and have some time for a checkpoint."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from orch_node import stack_signal
from orch_node.protocol import files
from orch_node.protocol.agent import PreemptedRanks, PreemptRanks
from orch_node.protocol.events import Event, Stopping
from orch_node.protocol.outcome import DONE, FAILED, PREEMPTED
from orch_node.rank.environment import provisioned_environment, read_env_file
from orch_node.supervisor.agents import Agents
from orch_node.supervisor.core_reservation import AttemptResult
from orch_node.supervisor.rank_tracker import RankTracker

VARIABLE = "ORCH_PREEMPT_SECONDS"
SECONDS = 120.0  # for the checkpoint, where the variable says nothing else
TOLD_SECONDS = 3.0
ENDED_BY = ("SIGTERM", "SIGKILL")  # as the ranks end when their cores are taken away


class PreemptionMonitor:
    """`asked`: whether the run has been told to make room. A rank may have been told by others,
    and end by itself."""

    def __init__(self, run_dir: Path, agents: Agents, asked: Callable[[], bool], tell: Callable[[Event], None]) -> None:
        self.agents = agents
        self.asked = asked
        self.tell = tell
        self.seconds = seconds_of(environment(run_dir))
        self.began: float | None = None
        self.problem = ""

    def look(self, tracker: RankTracker) -> AttemptResult | None:
        """How the attempt ends, if it is not its ranks that end it."""
        if self.began is None and (self.asked() or tracker.any_preempted()):
            self.begin(tracker)
        if self.began is not None and time.monotonic() - self.began > self.seconds:
            self.problem = f"none was written within {self.seconds:.0f} s"
        return AttemptResult(PREEMPTED, self.words(tracker)) if self.problem else None

    def begin(self, tracker: RankTracker) -> None:
        self.began = time.monotonic()
        self.tell(Stopping(text="told to make room: the ranks write a checkpoint and end"))
        answers = self.agents.ask(PreemptRanks(), PreemptedRanks, seconds=TOLD_SECONDS)
        if not answers and not tracker.any_preempted():
            self.problem = "no agent of its nodes answers"
        elif not any(one.ranks for one in answers.values()) and not tracker.any_preempted():
            self.problem = "the script does not ask for it, or does not train yet"

    def words(self, tracker: RankTracker) -> str:
        if tracker.checkpoints:
            return f"checkpoint at step {max(tracker.checkpoints.values())}"
        if tracker.any_preempted():
            return "the ranks ended for it, and told no step"
        return f"without a checkpoint: {self.problem or 'the ranks were ended before it'}"

    def judge(self, ending: AttemptResult, tracker: RankTracker) -> AttemptResult:
        """What the end of an attempt comes to that was to make room: a rank that failed by itself
        meanwhile is a failure still."""
        failure = ending.failure
        own = failure is not None and (failure.oom or failure.signal not in ENDED_BY)
        left = tracker.any_preempted() and ending.state == DONE
        taken = ending.state == FAILED and not own and (self.began or tracker.any_preempted())
        if not (left or taken):
            return ending
        return replace(ending, state=PREEMPTED, problem=self.words(tracker), failure=None)


def environment(run_dir: Path) -> dict[str, str]:
    """What the run is told: by its plan, by what `orch provision` has laid on this node, and by
    this program's own environment, which counts most."""
    try:
        planned = read_env_file(run_dir / files.ENVIRONMENT)
        return {**provisioned_environment(), **planned, **os.environ}
    except (OSError, ValueError):  # the ranks say what is wrong with them
        return dict(os.environ)


def seconds_of(environ: Mapping[str, str]) -> float:
    """What is no number is not taken."""
    try:
        return float(environ.get(VARIABLE, SECONDS))
    except ValueError:
        return SECONDS


def preempt_signal(run_dir: Path) -> int:
    """The one besides SIGTERM."""
    try:
        return stack_signal.chosen(environment(run_dir), stack_signal.PREEMPT)
    except ValueError:  # the ranks say so
        return 0
