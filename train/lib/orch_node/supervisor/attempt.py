"""One start of the launcher: watched until its ranks end, or until something calls for an end."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path

from orch_node.agent.containers import START_SECONDS, read_spec
from orch_node.protocol import events, files
from orch_node.protocol.agent import (
    AllEnded,
    ContainerStarted,
    EndAll,
    StackTraces,
    StartContainer,
    TakeStackTraces,
)
from orch_node.protocol.events import (
    Ended,
    Failed,
    Heartbeat,
    LeftOut,
    NodeNews,
    NodesLost,
    Raised,
    Stalled,
    Stopping,
)
from orch_node.protocol.layout import RunLayout
from orch_node.protocol.outcome import DONE, FAILED, STOPPED, NodeEnd
from orch_node.supervisor import layouts
from orch_node.supervisor.agents import Agents
from orch_node.supervisor.event_log import EventLog
from orch_node.supervisor.launcher_process import Launcher
from orch_node.supervisor.making_room import Room
from orch_node.supervisor.rank_tracker import RankTracker
from orch_node.supervisor.reservation import Ending

TICK_SECONDS = 0.1
# To join takes seconds; a script may well be silent for longer than that.
JOIN_SECONDS = 300.0
STACK_TRACES_SECONDS = 1.0
SETTLE_SECONDS = 0.3  # other ranks' failures that are on their way
LAST_WORDS_SECONDS = 1.0  # between a rank's traceback and its exit code
END_SECONDS = 12.0  # longer than an agent's own limit, and what its engine takes


class Attempt:
    """`stopped`: whether the run was asked to stop, `preempted`: to make room.
    `launcher_restarts`: told of an ending, whether the launcher itself starts all ranks again.
    `stall_timeout`: seconds; 0: for ever.

    `nodes`: what the end left on each node.
    """

    def __init__(
        self,
        run_dir: Path,
        layout: RunLayout,
        agents: Agents,
        event_log: EventLog,
        *,
        stopped: Callable[[], bool],
        preempted: Callable[[], bool],
        launcher_restarts: Callable[[Ending], bool],
        stall_timeout: float,
    ) -> None:
        self.run_dir = run_dir
        self.layout = layout
        self.agents = agents
        self.event_log = event_log
        self.stopped = stopped
        self.launcher_restarts = launcher_restarts
        self.stall_timeout = stall_timeout
        self.room = Room(run_dir, agents, preempted, event_log.tell)
        self.nodes: dict[str, NodeEnd] = {}
        self.generation = 0  # of the ranks that the launcher itself has restarted
        self.tracker = RankTracker(layout, time.monotonic())

    def run(self, argv: list[str], environment: dict[str, str]) -> Ending:
        if problem := self.contain():
            self.agents.ask(EndAll(), AllEnded, seconds=END_SECONDS)
            return Ending(FAILED, problem)
        log, pipes = self.run_dir / files.LAUNCHER_LOG, self.agents.pipes
        try:
            launcher = Launcher(argv, environment, log, pipes, self.take)
        except OSError as error:
            return Ending(FAILED, f"{argv[0]} could not be started: {error}")
        ending = self.watch(launcher)
        self.clear(launcher, ending)
        return self.judge(ending, launcher.close())

    def contain(self) -> str:
        """Start the containers of this attempt's nodes, if it has any; -> why that cannot be."""
        spec = read_spec(self.run_dir)
        if spec is None or spec.starts_ranks:  # the wrapper starts those
            return ""
        questions = {
            node: StartContainer(layouts.claim_of(str(self.run_dir), self.layout, node).cpus)
            for node in self.layout.node_names
        }
        answers = self.agents.ask_each(questions, ContainerStarted, seconds=START_SECONDS)
        silent = ContainerStarted(problem="no answer")
        words = {node: answers.get(node, silent).problem for node in questions}
        told = [f"{node} started no container: {why}" for node, why in words.items() if why]
        return "; ".join(told)

    def take(self, line: bytes) -> None:
        """One line of the launcher: an event of a rank, or the launcher's own words."""
        event = events.parse_of_rank(line)
        if event is None:
            self.event_log.words.write(line)
            return
        if not self.tracker.knows(event.rank) and not isinstance(event, Raised):
            event = LeftOut(text=f"rank {event.rank} is none of this run")
        if isinstance(event, LeftOut):
            self.event_log.leave_out(event, line)
            return
        if not isinstance(event, Heartbeat):
            self.event_log.events.write(line)
        if event.restart == self.generation:  # else of ranks that are no more
            self.tracker.take(event, time.monotonic())

    # Watching.

    def watch(self, launcher: Launcher) -> Ending | None:
        """Until something calls for an end; None if the launcher has ended by itself."""
        while launcher.running():
            self.agents.pipes.pump(TICK_SECONDS)
            self.agents.watch()
            self.tell_news()
            if ending := self.reason_to_end():
                return ending
        return self.failure() if self.tracker.failed else None

    def tell_news(self) -> None:
        for node, text in self.agents.news:
            self.event_log.tell(NodeNews(node=node, text=f"{node}: {text}"))
        self.agents.news.clear()

    def reason_to_end(self) -> Ending | None:
        if self.stopped():
            return Ending(STOPPED)
        if room := self.room.look(self.tracker):
            return room
        if self.tracker.failed:
            ending = self.failure()
            return None if self.left_to_launcher(ending) else ending
        if problem := self.event_log.problem():
            return Ending(FAILED, problem)
        if lost := self.lost():
            self.event_log.tell(NodesLost(text=self.lost_words(), nodes=tuple(lost)))
            return Ending(FAILED, problem=self.lost_words())
        limit = self.stall_timeout
        if limit and self.tracker.waiting_to_join():
            limit = min(limit, JOIN_SECONDS)
        return self.stall(limit) if limit and self.tracker.quiet(time.monotonic()) > limit else None

    def left_to_launcher(self, ending: Ending) -> bool:
        """Whether the launcher starts all ranks again; if so, they are awaited anew."""
        if not self.launcher_restarts(ending):
            return False
        self.generation += 1
        self.tracker = RankTracker(self.layout, time.monotonic())
        return True

    def failure(self) -> Ending:
        """The first rank that failed. The other ranks' failures that are already on their way
        are waited for: one that only lost its peer may have been quicker."""
        others = set(self.tracker.unfinished()) - set(self.tracker.failed)
        self.take_stack_traces(others)
        settled = time.monotonic() + SETTLE_SECONDS
        while time.monotonic() < settled:
            self.agents.pipes.pump(TICK_SECONDS)
        deadline = time.monotonic() + LAST_WORDS_SECONDS
        while self.tracker.undecided() and time.monotonic() < deadline:
            self.agents.pipes.pump(TICK_SECONDS)
        failure = self.tracker.first_failure()
        self.event_log.tell(Failed(failure=failure))
        return Ending(FAILED, failure=failure)

    def stall(self, limit: float) -> Ending:
        text = f"no progress for {limit:.0f} s: {self.tracker.absent()}"
        stands = self.take_stack_traces(self.tracker.unfinished())
        self.event_log.tell(Stalled(text=text, stands=stands))
        return Ending(FAILED, problem=text)

    def take_stack_traces(self, ranks: Iterable[int]) -> dict[str, str]:
        """Those of these ranks into files (and into their logs); -> where each stands."""
        question = TakeStackTraces(tuple(sorted(set(ranks) - self.tracker.unanswered)))
        answers = self.agents.ask(question, StackTraces, seconds=STACK_TRACES_SECONDS)
        found = {int(rank): one for all in answers.values() for rank, one in all.ranks.items()}
        return self.event_log.keep_stack_traces(found)

    # After it: nothing is left.

    def clear(self, launcher: Launcher, ending: Ending | None) -> None:
        """End all processes of the run on all nodes, and note what each node says of it."""
        if ending is not None and ending.state == STOPPED:
            self.event_log.tell(Stopping(text="asked to stop"))
        if self.lost():
            launcher.kill()
        answers = self.agents.ask(EndAll(), AllEnded, seconds=END_SECONDS)
        launcher.kill()
        for node, answer in answers.items():
            self.nodes[node] = NodeEnd(
                ended=len(answer.ended),
                left=answer.left,
                segments=answer.segments,
                segments_left=answer.segments_left,
                seconds=answer.seconds,
            )
        for channel in self.agents.living:
            if channel.node not in answers:
                self.agents.lose(channel, "no answer at the end")
        for node, why in self.agents.lost.items():
            self.nodes[node] = NodeEnd(lost=why)
        if ending is not None:
            self.event_log.tell(Ended(nodes=dict(self.nodes)))

    def judge(self, ending: Ending | None, code: int) -> Ending:
        """What the attempt comes to, now that all is known."""
        return self.room.judge(self.of_attempt(ending, code), self.tracker)

    def of_attempt(self, ending: Ending | None, code: int) -> Ending:
        if ending is None:
            missing = self.tracker.unfinished()
            if not missing and code == 0:
                return Ending(DONE, launcher_code=code)
            return Ending(FAILED, problem=describe_end(code, missing), launcher_code=code)
        problem = ending.problem or self.lost_words() or self.event_log.problem() or None
        return Ending(ending.state, problem, ending.failure, code)

    def lost_words(self) -> str:
        return "; ".join(f"{node} was lost: {why}" for node, why in self.lost().items())

    def lost(self) -> dict[str, str]:
        """Nodes of this attempt that are lost, and why."""
        own = self.layout.node_names
        return {node: why for node, why in self.agents.lost.items() if node in own}


def describe_end(code: int, missing: list[int]) -> str:
    ranks = ", ".join(map(str, missing)) or "none"
    return f"the launcher ended with exit code {code}; ranks that never reported an end: {ranks}"
