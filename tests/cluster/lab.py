"""Start runs on the test cluster, wait for their events, and find their processes in /proc."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.cluster.sites import Site, describe_end
from tests.support.processes import find_processes
from tests.support.waiting import SECONDS

FAULTY = Path(__file__).with_name("programs") / "faulty.py"
TWO_NODES = ("--nodes", "2", "--ppn", "1")


@dataclass
class ActiveRun:
    """A run and the process of its `orch train`."""

    site: Site
    process: subprocess.Popen[str]
    folder: Path

    @property
    def id(self) -> str:
        return self.folder.name

    def events(self, kind: str = "") -> list[dict[str, Any]]:
        """Return the recorded events of this kind, or all events."""
        path = self.folder / "events.jsonl"
        if not path.exists():
            return []
        lines = path.read_text().splitlines()
        return [event for event in map(json.loads, lines) if event["event"] == kind or not kind]

    def wait_for_event(self, kind: str, count: int = 1, **fields: Any) -> None:
        """Wait until this many events of a kind, with these fields, are recorded."""

        def are_recorded() -> bool:
            return sum(fields.items() <= event.items() for event in self.events(kind)) >= count

        self.wait_until(are_recorded, f"{count} x {kind} {fields}")

    def wait_for_first_step(self) -> None:
        """Wait until both ranks of the faulty script have trained for one step."""
        self.wait_for_event("first_step", 2)

    def wait_until(self, condition: Callable[[], bool], description: str, seconds: float = SECONDS) -> None:
        """Wait until a condition holds; fail the test if `orch train` fails before."""
        deadline = time.monotonic() + seconds
        while not condition():
            assert self.process.poll() in (None, 0) or condition(), self.describe_early_end(description)
            assert time.monotonic() < deadline, f"not within {seconds:.0f} s: {description}"
            time.sleep(0.05)

    def describe_early_end(self, description: str) -> str:
        out, err = self.process.communicate()
        return f"orch train ended without {description}:\n{out}\n{err}"

    def wait_for_report(self, *, code: int, seconds: float = SECONDS) -> dict[str, Any]:
        """Wait until `orch train` ends with this exit code, and return the report that it prints."""
        out, err = self.process.communicate(timeout=seconds)
        assert self.process.returncode == code, f"exit {self.process.returncode}\n{out}\n{err}"
        assert "Traceback" not in err, err
        return dict(json.loads(out))


def start_training(site: Site, *arguments: str) -> ActiveRun:
    """Start `orch train`, and return its run as soon as the run is recorded."""
    old_runs = set((site.folder / "runs").glob("*"))
    options = ("--inventory", str(site.inventory), "--json", "--show", "none")
    process = site.spawn("train", *options, *arguments)
    run = ActiveRun(site=site, process=process, folder=site.folder)

    def new_runs() -> set[Path]:
        return {path.parent for path in (site.folder / "runs").glob("*/plan.json")} - old_runs

    run.wait_until(lambda: bool(new_runs()), "the record of its run")
    (run.folder,) = new_runs()
    return run


def start_faulty(site: Site, *arguments: str) -> ActiveRun:
    """Start programs/faulty.py with these arguments on two nodes with one rank each."""
    return start_training(site, str(FAULTY), *TWO_NODES, "--backend", "gloo", "--", *arguments)


def run_orch_json(site: Site, *arguments: str, code: int = 0, seconds: float = 60) -> dict[str, Any]:
    """Run a command of orch with --json, and return what it prints."""
    done = site.run(*arguments, "--json", seconds=seconds)
    assert done.returncode == code, describe_end(done)
    return dict(json.loads(done.stdout))


def run_processes(run_id: str) -> dict[int, str]:
    """Return the command lines of the processes on all nodes that mention the run.

    The nodes are containers of this machine, so its /proc lists their processes, which have other mounts.
    """
    own_mounts = os.readlink("/proc/self/ns/mnt")
    command_lines = {}
    for pid, line in find_processes(run_id).items():
        with contextlib.suppress(OSError):  # it has ended
            if os.readlink(f"/proc/{pid}/ns/mnt") != own_mounts:
                command_lines[pid] = line
    return command_lines


def wait_for_no_processes(run_id: str, seconds: float) -> None:
    """Wait until no process of the run exists on any node."""
    began = time.monotonic()
    while living := run_processes(run_id):
        assert time.monotonic() - began < seconds, living
        time.sleep(0.1)
