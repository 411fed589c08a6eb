"""Runs whose launcher is a script: supervisors without MPI and torch."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orch_node.protocol.layout import render

from orchestrator.files import TRAIN
from tests.support.layouts import make_layout
from tests.support.processes import find_processes
from tests.support.waiting import wait_until

NODE_PROGRAM = (sys.executable, str(TRAIN / "node.py"))
LAYOUT = render(make_layout("node0", "node0"))
# Stand in for mpiexec.hydra and two ranks: processes that send the events of ranks.
LAUNCHER = """
import json, os, signal, sys, time

def send(event, rank, **fields):
    os.write(1, (json.dumps({"event": event, "rank": rank, "time": 0, **fields}) + "\\n").encode())

def exit(rank, code=0, signal=None):
    send("exit", rank, code=code, signal=signal, stopped=False, oom=None)

def rank_main(rank):
    send("started", rank)
    %s

children = []
for rank in (0, 1):
    child = os.fork()
    if child == 0:
        rank_main(rank)
        os._exit(0)
    children.append(child)
codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
sys.exit(max(codes))
"""
SLEEP = "time.sleep(60)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Runs:
    """A folder for runs whose supervisors share one folder of core reservations."""

    base: Path

    def supervise(self, name: str, *launcher: str, options: tuple[str, ...] = ()) -> subprocess.Popen[bytes]:
        """Start the supervisor of a run with this launcher."""
        run = self.base / name
        run.mkdir(exist_ok=True)
        (run / "layout.json").write_text(LAYOUT)
        return subprocess.Popen([*NODE_PROGRAM, "supervise", str(run), *options, "--", *launcher])

    def start(self, body: str, *options: str, name: str = "run") -> subprocess.Popen[bytes]:
        """Start a run whose ranks execute this code."""
        script = self.base / f"{name}.py"
        script.write_text(LAUNCHER % "\n    ".join(body.strip().splitlines()))
        return self.supervise(name, sys.executable, str(script), options=options)

    def start_ranks(self, *, name: str = "run") -> subprocess.Popen[bytes]:
        """Start a run and wait until its two ranks sleep."""
        process = self.start(SLEEP, name=name)
        wait_until(lambda: len(self.events("started", name)) == 2, "both ranks have started", 20)
        return process

    def run(self, body: str, *options: str, name: str = "run") -> dict[str, Any]:
        """Return the outcome of a run whose ranks execute this code."""
        self.start(body, *options, name=name).wait(30)
        return self.outcome(name)

    def outcome(self, name: str = "run") -> dict[str, Any]:
        return dict(json.loads((self.base / name / "outcome.json").read_text()))

    def events(self, kind: str, name: str = "run") -> list[dict[str, Any]]:
        path = self.base / name / "events.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return [event for event in map(json.loads, lines) if event["event"] == kind]

    def processes(self, name: str = "run") -> list[int]:
        """Return the processes that have the run's folder in their arguments or environment."""
        return list(find_processes(str(self.base / name)))
