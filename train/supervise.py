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
from attempt import Attempt
from launcher import launcher_environment
from layouts import nodes_of
from mending import Mended, mend
from start import Ending, Start
from story import STOP, Story, write_atomically
from wardens import Wardens
from whole_lines import Pipes

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
        self.restarts = 0  # of ours and of those that the launcher itself does
        self.stop_signal: int | None = signal.SIGTERM if (run_dir / STOP).exists() else None
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self.ask_to_stop)
        self.nodes: dict[str, dict[str, Any]] = {}  # what the end left on each node
        self.story = Story(run_dir)

    def run(self) -> int:
        """-> exit code. A run that was stopped before it began touches no other node."""
        return self.finish(Ending("stopped") if self.stop_signal else self.supervise())

    def supervise(self) -> Ending:
        claims = self.options.claims or str(self.run_dir.parent / ".claims")
        nodes = [*nodes_of(self.layout), *layouts.spares_of(self.layout)]
        self.wardens = Wardens(self.run_dir, nodes, claims, Pipes())
        start = Start(self.run_dir, self.layout, self.wardens, lambda: bool(self.stop_signal))
        ending = start.claim(queue=self.options.queue, tell=self.story.tell)
        while ending is None or self.may_restart(ending):
            ending = self.attempt()
        self.wardens.leave()  # the cores are free before outcome.json says that it has ended
        return ending

    def ask_to_stop(self, number: int, frame: FrameType | None) -> None:
        self.stop_signal = number

    def attempt(self) -> Ending:
        """Start the launcher once; -> how that ended."""
        self.attempts += 1
        self.story.tell(
            "launched",
            attempt=self.attempts,
            ranks=self.layout["world_size"],
            nodes=nodes_of(self.layout),
        )
        self.latest = Attempt(
            self.run_dir,
            self.layout,
            self.wardens,
            self.story,
            stopped=lambda: self.stop_signal is not None,
            launcher_restarts=self.left_to_launcher,
            stall_timeout=self.options.stall_timeout,
        )
        folder = self.options.path or os.path.dirname(self.launcher_argv[0])
        environment = launcher_environment(folder, self.run_dir, self.attempts)
        ending = self.latest.run(self.launcher_argv, environment)
        self.nodes.update(self.latest.nodes)
        return ending

    # Restarts.

    def left_to_launcher(self, ending: Ending) -> bool:
        """Whether the launcher itself starts all ranks again."""
        if not self.options.launcher_restarts or self.restarts >= self.options.max_restarts:
            return False
        self.restarts += 1
        self.tell_restart(ending)
        return True

    def tell_restart(self, ending: Ending) -> None:
        self.story.tell(
            "restarting", attempt=self.restarts + 1, of=self.options.max_restarts,
            after=ending.problem or ending.failure,
        )  # fmt: skip

    def may_restart(self, ending: Ending) -> bool:
        """Whether to try again; if so, everything is ready for it."""
        if ending.state != "failed" or self.stop_signal or not self.attempts:
            return False
        if self.restarts >= self.options.max_restarts:
            return False
        if left := [node for node, found in self.nodes.items() if found.get("left")]:
            self.story.tell("node", text=f"no restart: processes are left on {', '.join(left)}")
            return False
        lost = set(self.latest.lost())
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


if __name__ == "__main__":
    if "--" not in sys.argv:
        print("usage: supervise.py RUN_DIR [OPTIONS] -- LAUNCHER [ARGS...]", file=sys.stderr)
        raise SystemExit(2)
    raise SystemExit(main(sys.argv[1:]))
