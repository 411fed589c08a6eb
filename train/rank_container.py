"""The training process of one rank in a container, as rank.py on the node starts and awaits it."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import containers
from rank_events import report

PR_SET_PDEATHSIG = 1  # linux/prctl.h
PULSE_SECONDS = 2.0
# Of the launcher's environment; the rest is the node's, and not that of the image.
CARRIED = ("ACCELERATE_", "TORCHELASTIC_", "ORCH_")


def of_launcher(environ: Mapping[str, str]) -> dict[str, str]:
    """What a rank in a container gets of the environment that rank.py was started with."""
    return {name: value for name, value in environ.items() if name.startswith(CARRIED)}


class Contained:
    """`pid` is that of the training process: the container has the node's process ids.

    `docker exec` passes on no signals, and its exit code tells no signal from an exit code.
    """

    def __init__(self, run_dir: Path, spec: dict[str, Any], order: dict[str, Any]) -> None:
        place = order["place"]
        command = containers.exec_command(run_dir, spec, node=place["node"], rank=place["rank"])
        self.told: dict[str, Any] = {}
        with open(order["log"], "ab") as words:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=words,
                preexec_fn=die_with_parent,
            )
        # Over a pipe: secrets are neither in arguments nor in a file more.
        assert self.process.stdin is not None
        line = json.dumps({**order, "preload": spec["preload"]}).encode() + b"\n"
        try:
            self.process.stdin.write(line)
            self.process.stdin.flush()
        except BrokenPipeError:  # it could not be started, and says why
            pass
        self.pump(until="pid")
        self.pid = int(self.told.get("pid", self.process.pid))

    def pump(self, until: str = "") -> None:
        """Pass the rank's events on, whole lines; to the end, or until this has been told."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith(containers.MARK):
                self.told.update(json.loads(line)["contained"])
                if until in self.told:
                    return
            else:
                os.write(1, line)

    def wait(self) -> tuple[int, int, float]:
        """-> exit code (negative: a signal), most memory in bytes, CPU seconds."""
        self.pump()
        code = self.process.wait()
        if "status" in self.told:
            code = os.waitstatus_to_exitcode(self.told["status"])
        else:
            code = as_signal(code) or 1
        return code, self.told.get("max_rss_bytes", 0), self.told.get("cpu_seconds", 0.0)


class Entry:
    """A container whose own entrypoint starts the ranks of this node.

    `pid` is that of `docker run`, which passes signals on. It says what orch's ranks would say, but
    for events of the script, which have no way here.
    """

    def __init__(self, run_dir: Path, spec: dict[str, Any], order: dict[str, Any]) -> None:
        environment, place = order["environment"], order["place"]
        del environment["ORCH_EVENTS_FD"]
        processes = spec["processes"][place["node"]]
        environment["NPROC_PER_NODE"] = str(processes)
        environment["OMP_NUM_THREADS"] = str(max(1, place["threads"] // processes))
        command = containers.entry_command(
            run_dir, spec, place, sorted(environment), order["command"]
        )
        self.log = Path(order["log"])
        with self.log.open("ab") as words:
            self.process = subprocess.Popen(
                command,
                env={**os.environ, **environment},
                stdin=subprocess.DEVNULL,
                stdout=words,
                stderr=words,
                preexec_fn=die_with_parent,
            )
        self.pid = self.process.pid
        self.joined = {"node": place["node"], "pid": self.pid, "cpus": place["cpus"]}

    def wait(self) -> tuple[int, int, float]:
        """-> exit code (negative: a signal); memory and CPU seconds are not known."""
        report("joined", **self.joined, threads=0, backend="the image's own", torch="its own")
        size = 0
        while True:
            try:
                return as_signal(self.process.wait(PULSE_SECONDS)), 0, 0.0
            except subprocess.TimeoutExpired:
                size, before = self.log.stat().st_size, size
            if size != before:
                report("pulse", collectives=0, steps=0, log=size)


def start(run_dir: Path, spec: dict[str, Any], order: dict[str, Any]) -> Contained | Entry:
    kind = Contained if spec["start"] == "rank" else Entry
    return kind(run_dir, spec, order)


def as_signal(code: int) -> int:
    """An exit code of docker's, where 137 stands for SIGKILL."""
    return 128 - code if code - 128 in set(signal.Signals) else code


def die_with_parent() -> None:
    """The order's pipe closes with it, which ends the training process."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
