"""Watches one node of a run: `python warden.py RUN_DIR NODE CLAIMS_FOLDER`.

The supervisor starts one on each node, over ssh, and asks it through a pipe: JSON lines in and out.
It holds the claim on the node's cores, answers that the node is alive, collects stacks, ends the
run's processes and sees to it that none is left. When the supervisor is silent for too long it
ends them unasked: a node that was cut off must not go on for ever.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any

import containers
import processes
import shared_memory
import stacks
from claims import Claims

SILENCE_SECONDS = 30.0  # the supervisor speaks every 2 s
# A dropped ssh connection is not the end: the supervisor may come back with a new warden.
RETURN_SECONDS = 15.0
SHM_SECONDS = 10.0  # between looks at who uses /dev/shm; at once where a new name appears in it
LISTEN_SECONDS = 0.25
TERM_SECONDS = 5.0
END_SECONDS = 8.0


class Warden:
    """One node of one run."""

    def __init__(self, run_dir: Path, node: str, claims: Claims) -> None:
        self.run_dir = run_dir
        self.node = node
        self.claims = claims
        self.supervisor_here = os.getppid() if parent_supervises() else None
        self.noted = 0.0
        self.names: set[str] = set()  # in /dev/shm

    def serve(self) -> None:
        """Answer until the supervisor is gone, then leave nothing of the run here."""
        heard = time.monotonic()
        pending = b""
        while time.monotonic() - heard < SILENCE_SECONDS:
            if select.select([0], [], [], LISTEN_SECONDS)[0]:
                chunk = os.read(0, 65536)
                if not chunk:
                    break
                heard = time.monotonic()
                *asked, pending = (pending + chunk).split(b"\n")
                for line in asked:
                    if not self.answer(json.loads(line)):
                        return
            self.note_segments()
        self.orphaned()

    def answer(self, question: dict[str, Any]) -> bool:
        """Do what is asked and say so; -> whether to go on."""
        what = question["ask"]
        fields = ANSWERS[what](self, question)
        os.write(1, json.dumps({"answer": what, "node": self.node, **fields}).encode() + b"\n")
        return bool(what != "leave")

    def claim(self, question: dict[str, Any]) -> dict[str, Any]:
        return {"taken": self.claims.take(self.run_dir.name, question["claim"])}

    def release(self, question: dict[str, Any]) -> dict[str, Any]:
        self.claims.release(self.run_dir.name)
        return {}

    def ping(self, question: dict[str, Any]) -> dict[str, Any]:
        return {"host": socket.gethostname(), "time": time.time()}

    def stacks(self, question: dict[str, Any]) -> dict[str, Any]:
        asked = set(question["ranks"])
        ranks = [one for one in self.others() if one.role == "rank" and one.rank in asked]
        return {"ranks": stacks.collect(self.run_dir, ranks)}

    def contain(self, question: dict[str, Any]) -> dict[str, Any]:
        """Start the container of this node."""
        spec = containers.read_spec(self.run_dir)
        assert spec is not None
        try:
            cpus = question["cpus"]
            return {"id": containers.start(self.run_dir, spec, node=self.node, cpus=cpus)}
        except containers.ContainerError as error:
            return {"problem": str(error)}

    def end(self, question: dict[str, Any]) -> dict[str, Any]:
        self.note_segments(now=True)
        ended = processes.end(self.others, term_seconds=TERM_SECONDS, seconds=END_SECONDS).record()
        removed, left = self.clear_containers()
        return {
            **ended,
            "ended": [*ended["ended"], *removed],
            "left": [*ended["left"], *left],
            "segments": shared_memory.remove(self.notes),
        }

    def clear_containers(self) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        if containers.read_spec(self.run_dir) is None:
            return [], []
        return containers.clear(self.run_dir, self.node)

    def write(self, question: dict[str, Any]) -> dict[str, Any]:
        target = self.run_dir / question["name"]
        staging = target.with_name(target.name + ".tmp")
        staging.write_text(question["content"])
        staging.replace(target)
        return {}

    def others(self) -> list[processes.Process]:
        """The run's processes here but those that watch it."""
        found = processes.of_run(str(self.run_dir))
        return [one for one in found if one.role not in processes.WATCHERS]

    @property
    def notes(self) -> Path:
        return self.run_dir / f"shm-{self.node}.json"

    def note_segments(self, *, now: bool = False) -> None:
        names = shared_memory.names()
        new, self.names = names - self.names, names
        if now or new or time.monotonic() - self.noted > SHM_SECONDS:
            self.noted = time.monotonic()
            shared_memory.note(self.notes, self.others())

    def orphaned(self) -> None:
        """The supervisor is gone, or cannot be heard: end the run here, unless it comes back."""
        if self.supervisor_here is None:
            time.sleep(RETURN_SECONDS)  # its next warden ends this one
        processes.end(self.others, term_seconds=TERM_SECONDS, seconds=END_SECONDS)
        self.clear_containers()
        shared_memory.remove(self.notes)


ANSWERS = {
    "claim": Warden.claim,
    "release": Warden.release,
    "ping": Warden.ping,
    "stacks": Warden.stacks,
    "contain": Warden.contain,
    "end": Warden.end,
    "write": Warden.write,
    "leave": Warden.release,
}


def parent_supervises() -> bool:
    return processes.role_of(processes.argv_of(os.getppid())) == "supervisor"


def relieve(run_dir: str, node: str) -> None:
    """End an earlier warden of this run here: its connection was lost."""
    for process in processes.of_run(run_dir):
        argv = processes.argv_of(process.pid)
        if process.role == "warden" and os.fsencode(node) in argv:
            processes.send(process.pid, signal.SIGKILL)


def main(argv: list[str]) -> int:
    if len(argv) != 3:
        print("usage: warden.py RUN_DIR NODE CLAIMS_FOLDER", file=sys.stderr)
        return 2
    # The run is ended through the supervisor; a hang-up of the connection is seen on the pipe.
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    run_dir, node, folder = argv
    relieve(run_dir, node)
    Path(run_dir).mkdir(parents=True, exist_ok=True)
    warden = Warden(Path(run_dir), node, Claims(Path(folder)))
    try:
        warden.serve()
    except BrokenPipeError:
        warden.orphaned()
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
