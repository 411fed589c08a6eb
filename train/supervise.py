"""Runs a launcher and watches its ranks: `python supervise.py RUN_DIR -- mpiexec.hydra ...`.

It lives on node0, apart from whoever started it, with a warden on every node. The ranks' events
arrive on the launcher's standard output. When a rank fails, a node is lost or nothing gets on any
more, it names the culprit, asks the other ranks for their stacks, ends what is left on all nodes,
and starts again if it may. RUN_DIR/outcome.json says how it ended. Exit code: 0 if all ranks
finished, 1 if not, 130 if it was asked to stop.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Any

import layouts
from containers import START_SECONDS, read_spec
from launcher import Launcher, launcher_environment
from layouts import nodes_of
from mending import Mended, mend
from roll_call import RollCall
from start import Ending, Start
from story import STOP, Story, parse_event, write_atomically
from wardens import Wardens
from whole_lines import Pipes

TICK_SECONDS = 0.1
# To join takes seconds; a script may well be silent for longer than that.
JOIN_SECONDS = 300.0
STACKS_SECONDS = 1.0
SETTLE_SECONDS = 0.3  # other ranks' failures that are on their way
LAST_WORDS_SECONDS = 1.0  # between a rank's traceback and its exit code
END_SECONDS = 12.0  # longer than a warden's own limit, and what its engine takes
EXIT_CODES = {"done": 0, "failed": 1, "refused": 1, "stopped": 130}


def main(argv: list[str]) -> int:
    options = parse(argv)
    run_dir = Path(options.run_dir)
    write_atomically(run_dir / "supervisor.json", {"pid": os.getpid(), "started": time.time()})
    return Supervisor(run_dir, options).run()


def parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="supervise.py")
    parser.add_argument("run_dir")
    parser.add_argument("--claims", help="the folder of all runs' claims on a node's cores")
    parser.add_argument("--queue", action="store_true", help="wait for cores that are taken")
    parser.add_argument("--stall-timeout", type=float, default=0.0, help="seconds; 0: for ever")
    parser.add_argument("--max-restarts", type=int, default=0)
    parser.add_argument("--elastic", action="store_true", help="restart without lost nodes")
    parser.add_argument("--min-nodes", type=int, default=1, help="the fewest for --elastic")
    parser.add_argument(
        "--launcher-restarts", action="store_true", help="the launcher itself restarts ranks"
    )
    parser.add_argument("--path", help="a folder whose programs the launcher finds first")
    parser.add_argument("--size-at", type=int, help="the word of it that is the number of ranks")
    parser.add_argument("--nodes-at", type=int, help="the word of it that is the number of nodes")
    ours, launcher = argv[: argv.index("--")], argv[argv.index("--") + 1 :]
    options = parser.parse_args(ours)
    options.launcher = launcher
    return options


class Supervisor:
    """One run: its launcher, its nodes and what became of them."""

    def __init__(self, run_dir: Path, options: argparse.Namespace) -> None:
        self.run_dir = run_dir
        self.options = options
        self.launcher_argv: list[str] = options.launcher
        self.layout = json.loads((run_dir / "layout.json").read_text())
        self.started = time.time()
        self.attempts = 0
        self.generation = 0  # of the ranks that the launcher itself has restarted, in this attempt
        self.restarts = 0  # of both kinds
        self.stop_signal: int | None = signal.SIGTERM if (run_dir / STOP).exists() else None
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self.ask_to_stop)
        self.nodes: dict[str, dict[str, Any]] = {}  # what the end left on each node
        self.story = Story(run_dir)
        self.pipes = Pipes()
        self.roll = RollCall(self.layout, time.monotonic())

    def run(self) -> int:
        """-> exit code. A run that was stopped before it began touches no other node."""
        return self.finish(Ending("stopped") if self.stop_signal else self.supervise())

    def supervise(self) -> Ending:
        claims = self.options.claims or str(self.run_dir.parent / ".claims")
        nodes = [*nodes_of(self.layout), *layouts.spares_of(self.layout)]
        self.wardens = Wardens(self.run_dir, nodes, claims, self.pipes)
        start = Start(self.run_dir, self.layout, self.wardens, lambda: bool(self.stop_signal))
        ending = start.claim(queue=self.options.queue, tell=self.story.tell)
        while ending is None or self.may_restart(ending):
            ending = self.attempt()
        self.wardens.leave()  # the cores are free before outcome.json says that it has ended
        return ending

    def ask_to_stop(self, number: int, frame: FrameType | None) -> None:
        self.stop_signal = number

    # One attempt.

    def attempt(self) -> Ending:
        self.attempts += 1
        self.generation = 0
        self.roll = RollCall(self.layout, time.monotonic())
        self.story.tell(
            "launched",
            attempt=self.attempts,
            ranks=self.layout["world_size"],
            nodes=nodes_of(self.layout),
        )
        if problem := self.contain():
            self.wardens.ask("end", seconds=END_SECONDS)
            return Ending("failed", problem)
        try:
            launcher = Launcher(
                self.launcher_argv,
                launcher_environment(
                    self.options.path or os.path.dirname(self.launcher_argv[0]),
                    self.run_dir,
                    self.attempts,
                ),
                self.run_dir / "launcher.log",
                self.pipes,
                self.take,
            )
        except OSError as error:
            return Ending("failed", f"{self.launcher_argv[0]} could not be started: {error}")
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

    def watch(self, launcher: Launcher) -> Ending | None:
        """Until something calls for an end; None if the launcher has ended by itself."""
        while launcher.running():
            self.pipes.pump(TICK_SECONDS)
            self.wardens.watch()
            self.tell_news()
            if ending := self.reason_to_end():
                return ending
        return self.failure() if self.roll.failed else None

    def reason_to_end(self) -> Ending | None:
        if self.stop_signal:
            return Ending("stopped")
        if self.roll.failed:
            ending = self.failure()
            return None if self.left_to_launcher(ending) else ending
        if lost := self.lost():
            self.story.tell("lost", text=self.lost_words(), nodes=list(lost))
            return Ending("failed", problem=self.lost_words())
        limit = self.options.stall_timeout
        if limit and self.roll.waiting_to_join():
            limit = min(limit, JOIN_SECONDS)
        return self.stall(limit) if limit and self.roll.quiet(time.monotonic()) > limit else None

    def left_to_launcher(self, ending: Ending) -> bool:
        """Whether the launcher starts all ranks again; if so, they are awaited anew."""
        if not self.options.launcher_restarts or self.restarts >= self.options.max_restarts:
            return False
        self.restarts += 1
        self.generation += 1
        self.roll = RollCall(self.layout, time.monotonic())
        self.tell_restart(ending)
        return True

    def tell_restart(self, ending: Ending) -> None:
        self.story.tell(
            "restarting", attempt=self.restarts + 1, of=self.options.max_restarts,
            after=ending.problem or ending.failure,
        )  # fmt: skip

    def tell_news(self) -> None:
        for node, text in self.wardens.news:
            self.story.tell("node", node=node, text=f"{node}: {text}")
        self.wardens.news.clear()

    def failure(self) -> Ending:
        """The first rank that failed. The other ranks' failures that are already on their way
        are waited for: one that only lost its peer may have been quicker."""
        others = set(self.roll.unfinished()) - set(self.roll.failed)
        self.take_stacks(others)
        settled = time.monotonic() + SETTLE_SECONDS
        while time.monotonic() < settled:
            self.pipes.pump(TICK_SECONDS)
        deadline = time.monotonic() + LAST_WORDS_SECONDS
        while self.roll.undecided() and time.monotonic() < deadline:
            self.pipes.pump(TICK_SECONDS)
        failure = self.roll.first_failure()
        self.story.tell("failed", failure=failure)
        return Ending("failed", failure=failure)

    def stall(self, limit: float) -> Ending:
        text = f"no progress for {limit:.0f} s: {self.roll.absent()}"
        stands = self.take_stacks(self.roll.unfinished())
        self.story.tell("stalled", text=text, stands=stands)
        return Ending("failed", problem=text)

    def take_stacks(self, ranks: Any) -> dict[str, str]:
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

    def may_restart(self, ending: Ending) -> bool:
        """Whether to try again; if so, everything is ready for it."""
        if ending.state != "failed" or self.stop_signal or not self.attempts:
            return False
        if self.restarts >= self.options.max_restarts:
            return False
        if left := [node for node, found in self.nodes.items() if found.get("left")]:
            self.story.tell("node", text=f"no restart: processes are left on {', '.join(left)}")
            return False
        lost = set(self.lost())
        if lost and not self.mend(lost):
            return False
        self.restarts += 1
        self.tell_restart(ending)
        return True

    def mend(self, lost: set[str]) -> bool:
        """Make ready for an attempt on other nodes; -> whether there can be one."""
        mended = mend(
            self.run_dir,
            Mended(self.layout, self.launcher_argv),
            lost=lost,
            gone=set(self.wardens.lost),
            options=self.options,
            tell=lambda text: self.story.tell("node", text=text),
        )
        if mended is None:
            return False
        self.layout, self.launcher_argv = mended.layout, mended.argv
        content = json.dumps(self.layout, indent=1) + "\n"
        answers = self.wardens.ask("write", name="layout.json", content=content, seconds=5.0)
        return set(answers) >= set(nodes_of(self.layout))

    def finish(self, ending: Ending) -> int:
        """Write outcome.json; -> exit code."""
        self.story.end(
            {
                "state": ending.state,
                "first_failure": ending.failure,
                "problem": ending.problem,
                "launcher_code": ending.launcher_code,
                "attempts": self.attempts,
                "nodes": self.nodes,
                "started": self.started,
                "ended": time.time(),
            }
        )
        return EXIT_CODES[ending.state]


def describe_end(code: int, missing: list[int]) -> str:
    ranks = ", ".join(map(str, missing)) or "none"
    return f"the launcher ended with exit code {code}; ranks that never reported an end: {ranks}"


if __name__ == "__main__":
    if "--" not in sys.argv:
        print("usage: supervise.py RUN_DIR [OPTIONS] -- LAUNCHER [ARGS...]", file=sys.stderr)
        raise SystemExit(2)
    raise SystemExit(main(sys.argv[1:]))
