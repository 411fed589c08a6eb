"""One start of the launcher: watched until its ranks end, or until something calls for an end."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import layouts
from containers import START_SECONDS, read_spec
from launcher import Launcher
from layouts import nodes_of
from roll_call import RollCall
from start import Ending
from story import Story, parse_event
from wardens import Wardens

TICK_SECONDS = 0.1
# To join takes seconds; a script may well be silent for longer than that.
JOIN_SECONDS = 300.0
STACKS_SECONDS = 1.0
SETTLE_SECONDS = 0.3  # other ranks' failures that are on their way
LAST_WORDS_SECONDS = 1.0  # between a rank's traceback and its exit code
END_SECONDS = 12.0  # longer than a warden's own limit, and what its engine takes


class Attempt:
    """`stopped`: whether the run was asked to stop. `launcher_restarts`: told of an ending,
    whether the launcher itself starts all ranks again. `stall_timeout`: seconds; 0: for ever.

    `nodes`: what the end left on each node.
    """

    def __init__(
        self,
        run_dir: Path,
        layout: layouts.Layout,
        wardens: Wardens,
        story: Story,
        *,
        stopped: Callable[[], bool],
        launcher_restarts: Callable[[Ending], bool],
        stall_timeout: float,
    ) -> None:
        self.run_dir = run_dir
        self.layout = layout
        self.wardens = wardens
        self.story = story
        self.stopped = stopped
        self.launcher_restarts = launcher_restarts
        self.stall_timeout = stall_timeout
        self.nodes: dict[str, dict[str, Any]] = {}
        self.generation = 0  # of the ranks that the launcher itself has restarted
        self.roll = RollCall(layout, time.monotonic())

    def run(self, argv: list[str], environment: dict[str, str]) -> Ending:
        if problem := self.contain():
            self.wardens.ask("end", seconds=END_SECONDS)
            return Ending("failed", problem)
        log, pipes = self.run_dir / "launcher.log", self.wardens.pipes
        try:
            launcher = Launcher(argv, environment, log, pipes, self.take)
        except OSError as error:
            return Ending("failed", f"{argv[0]} could not be started: {error}")
        ending = self.watch(launcher)
        self.clear(launcher, ending)
        return self.judge(ending, launcher.close())

    def contain(self) -> str:
        """Start the containers of this attempt's nodes, if it has any; -> why that cannot be."""
        spec = read_spec(self.run_dir)
        if spec is None or spec["start"] == "node":  # rank.py starts those
            return ""
        fields = {
            node: {"cpus": layouts.claim_of(str(self.run_dir), self.layout, node)["cpus"]}
            for node in nodes_of(self.layout)
        }
        answers = self.wardens.ask_each(fields, "contain", seconds=START_SECONDS)
        words = {
            node: answers.get(node, {"problem": "no answer"}).get("problem") for node in fields
        }
        told = [f"{node} started no container: {why}" for node, why in words.items() if why]
        return "; ".join(told)

    def take(self, line: bytes) -> None:
        """One line of the launcher: an event of a rank, or the launcher's own words."""
        event = parse_event(line)
        if event is None:
            self.story.words.write(line)
            return
        if event["event"] != "pulse":
            self.story.events.write(line)
        if event.get("restart", 0) == self.generation:  # else of ranks that are no more
            self.roll.take(event, time.monotonic())

    # Watching.

    def watch(self, launcher: Launcher) -> Ending | None:
        """Until something calls for an end; None if the launcher has ended by itself."""
        while launcher.running():
            self.wardens.pipes.pump(TICK_SECONDS)
            self.wardens.watch()
            self.tell_news()
            if ending := self.reason_to_end():
                return ending
        return self.failure() if self.roll.failed else None

    def tell_news(self) -> None:
        for node, text in self.wardens.news:
            self.story.tell("node", node=node, text=f"{node}: {text}")
        self.wardens.news.clear()

    def reason_to_end(self) -> Ending | None:
        if self.stopped():
            return Ending("stopped")
        if self.roll.failed:
            ending = self.failure()
            return None if self.left_to_launcher(ending) else ending
        if lost := self.lost():
            self.story.tell("lost", text=self.lost_words(), nodes=list(lost))
            return Ending("failed", problem=self.lost_words())
        limit = self.stall_timeout
        if limit and self.roll.waiting_to_join():
            limit = min(limit, JOIN_SECONDS)
        return self.stall(limit) if limit and self.roll.quiet(time.monotonic()) > limit else None

    def left_to_launcher(self, ending: Ending) -> bool:
        """Whether the launcher starts all ranks again; if so, they are awaited anew."""
        if not self.launcher_restarts(ending):
            return False
        self.generation += 1
        self.roll = RollCall(self.layout, time.monotonic())
        return True

    def failure(self) -> Ending:
        """The first rank that failed. The other ranks' failures that are already on their way
        are waited for: one that only lost its peer may have been quicker."""
        others = set(self.roll.unfinished()) - set(self.roll.failed)
        self.take_stacks(others)
        settled = time.monotonic() + SETTLE_SECONDS
        while time.monotonic() < settled:
            self.wardens.pipes.pump(TICK_SECONDS)
        deadline = time.monotonic() + LAST_WORDS_SECONDS
        while self.roll.undecided() and time.monotonic() < deadline:
            self.wardens.pipes.pump(TICK_SECONDS)
        failure = self.roll.first_failure()
        self.story.tell("failed", failure=failure)
        return Ending("failed", failure=failure)

    def stall(self, limit: float) -> Ending:
        text = f"no progress for {limit:.0f} s: {self.roll.absent()}"
        stands = self.take_stacks(self.roll.unfinished())
        self.story.tell("stalled", text=text, stands=stands)
        return Ending("failed", problem=text)

    def take_stacks(self, ranks: Iterable[int]) -> dict[str, str]:
        """Stacks of these ranks into files (and into their logs); -> where each stands."""
        answers = self.wardens.ask("stacks", ranks=sorted(ranks), seconds=STACKS_SECONDS)
        found = {int(r): one for a in answers.values() for r, one in a["ranks"].items()}
        return self.story.keep_stacks(found)

    # After it: nothing is left.

    def clear(self, launcher: Launcher, ending: Ending | None) -> None:
        """End all processes of the run on all nodes, and note what each node says of it."""
        if ending is not None and ending.state == "stopped":
            self.story.tell("stopping", text="asked to stop")
        if self.lost():
            launcher.kill()
        answers = self.wardens.ask("end", seconds=END_SECONDS)
        launcher.kill()
        for node, answer in answers.items():
            self.nodes[node] = {
                "ended": len(answer["ended"]),
                "left": answer["left"],
                "segments": answer["segments"],
                "seconds": answer["seconds"],
            }
        for channel in self.wardens.living:
            if channel.node not in answers:
                self.wardens.lose(channel, "no answer at the end")
        for node, why in self.wardens.lost.items():
            self.nodes[node] = {"lost": why}
        if ending is not None:
            self.story.tell("ended", nodes=self.nodes)

    def judge(self, ending: Ending | None, code: int) -> Ending:
        """What the attempt comes to, now that all is known."""
        if ending is None:
            missing = self.roll.unfinished()
            if not missing and code == 0:
                return Ending("done", launcher_code=code)
            return Ending("failed", problem=describe_end(code, missing), launcher_code=code)
        problem = ending.problem or self.lost_words() or None
        return Ending(ending.state, problem, ending.failure, code)

    def lost_words(self) -> str:
        return "; ".join(f"{node} was lost: {why}" for node, why in self.lost().items())

    def lost(self) -> dict[str, str]:
        """Nodes of this attempt that are lost, and why."""
        own = nodes_of(self.layout)
        return {node: why for node, why in self.wardens.lost.items() if node in own}


def describe_end(code: int, missing: list[int]) -> str:
    ranks = ", ".join(map(str, missing)) or "none"
    return f"the launcher ended with exit code {code}; ranks that never reported an end: {ranks}"
