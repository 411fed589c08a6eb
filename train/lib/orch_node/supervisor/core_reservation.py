"""Before the start: every node of the run answers, and its cores are the run's."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from orch_node.protocol.agent import Claim, ClaimConflicts, ReleaseClaim, Response, TakeClaim
from orch_node.protocol.events import Event, Waiting
from orch_node.protocol.layout import RunLayout
from orch_node.protocol.outcome import FAILED, REFUSED, STOPPED, Failure
from orch_node.supervisor import layouts
from orch_node.supervisor.agents import Agents

TICK_SECONDS = 0.1
QUEUE_SECONDS = 2.0


@dataclass(frozen=True)
class AttemptResult:
    """How an attempt ended. `state`: done, failed, stopped or refused."""

    state: str
    problem: str | None = None
    failure: Failure | None = None
    launcher_code: int | None = None


class CoreReservation:
    """The claims of one run. Nodes are asked in one order by all runs, so of two that ask at the
    same time one gets them all."""

    def __init__(self, run_dir: Path, layout: RunLayout, agents: Agents, stopped: Callable[[], bool]) -> None:
        self.run_dir = run_dir
        self.layout = layout
        self.agents = agents
        self.stopped = stopped

    def claim(self, *, queue: bool, tell: Callable[[Event], None]) -> AttemptResult | None:
        """None once all cores are claimed; with `queue` it waits for those that are taken."""
        waiting = False
        while (refusal := self.claim_once()) is not None:
            self.agents.ask(ReleaseClaim(), Response, seconds=2.0)
            if refusal.state != REFUSED or not queue:
                return refusal
            if not waiting:
                tell(Waiting(text=refusal.problem or ""))
            waiting = True
            self.pump(QUEUE_SECONDS)
        return None

    def claim_once(self) -> AttemptResult | None:
        for node in sorted([*self.layout.node_names, *self.layout.spare_hosts]):
            claim = layouts.claim_of(str(self.run_dir), self.layout, node)
            answer = self.answer(node, claim)
            if self.stopped():
                return AttemptResult(STOPPED)
            if answer is None:
                return AttemptResult(FAILED, f"{node} cannot be reached: {self.agents.lost[node]}")
            if answer.taken:
                return AttemptResult(REFUSED, layouts.taken_words(node, answer.taken))
        return None

    def answer(self, node: str, claim: Claim) -> ClaimConflicts | None:
        """A node's answer; None once it counts as lost. Connecting may take its time."""
        channel = self.agents.channels[node]
        if node not in self.agents.lost:
            channel.ask(TakeClaim(claim))
        while node not in self.agents.lost and not self.stopped():
            if answer := channel.answer(TakeClaim, ClaimConflicts):
                return answer
            self.pump(TICK_SECONDS)
        return None

    def pump(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not self.stopped() and (left := deadline - time.monotonic()) > 0:
            self.agents.pipes.pump(min(left, TICK_SECONDS))
            self.agents.watch()
