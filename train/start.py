"""Before the start: every node of the run answers, and its cores are the run's."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import layouts
from wardens import Wardens

TICK_SECONDS = 0.1
QUEUE_SECONDS = 2.0


@dataclass(frozen=True)
class Ending:
    """How an attempt ended. `state`: done, failed, stopped or refused."""

    state: str
    problem: str | None = None
    failure: dict[str, Any] | None = None
    launcher_code: int | None = None


class Start:
    """The claims of one run. Nodes are asked in one order by all runs, so of two that ask at the
    same time one gets them all."""

    def __init__(
        self, run_dir: Path, layout: layouts.Layout, wardens: Wardens, stopped: Callable[[], bool]
    ) -> None:
        self.run_dir = run_dir
        self.layout = layout
        self.wardens = wardens
        self.stopped = stopped

    def claim(self, *, queue: bool, tell: Callable[..., None]) -> Ending | None:
        """None once all cores are claimed; with `queue` it waits for those that are taken."""
        waiting = False
        while (refusal := self.claim_once()) is not None:
            self.wardens.ask("release", seconds=2.0)
            if refusal.state != "refused" or not queue:
                return refusal
            if not waiting:
                tell("waiting", text=refusal.problem)
            waiting = True
            self.pump(QUEUE_SECONDS)
        return None

    def claim_once(self) -> Ending | None:
        for node in sorted([*layouts.nodes_of(self.layout), *layouts.spares_of(self.layout)]):
            claim = layouts.claim_of(str(self.run_dir), self.layout, node)
            answer = self.answer(node, claim)
            if self.stopped():
                return Ending("stopped")
            if answer is None:
                return Ending("failed", f"{node} cannot be reached: {self.wardens.lost[node]}")
            if answer["taken"]:
                return Ending("refused", layouts.taken_words(node, answer["taken"]))
        return None

    def answer(self, node: str, claim: dict[str, Any]) -> dict[str, Any] | None:
        """A node's answer; None once it counts as lost. Connecting may take its time."""
        channel = self.wardens.channels[node]
        if node not in self.wardens.lost:
            channel.ask("claim", {"claim": claim})
        while node not in self.wardens.lost and not self.stopped():
            if "claim" in channel.answers:
                return channel.answers["claim"]
            self.pump(TICK_SECONDS)
        return None

    def pump(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not self.stopped() and (left := deadline - time.monotonic()) > 0:
            self.wardens.pipes.pump(min(left, TICK_SECONDS))
            self.wardens.watch()
