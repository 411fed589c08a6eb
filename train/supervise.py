"""Runs a launcher and watches its ranks: `python supervise.py RUN_DIR -- mpiexec.hydra ...`.

It lives on node0, apart from whoever started it. The ranks' events arrive on the launcher's
standard output. At the first rank that fails it asks the other ranks for their stacks, stops all
of them, makes sure that none is left, and writes RUN_DIR/outcome.json. Exit code: 0 if all ranks
finished, 1 if not, 130 if it was asked to stop.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

STACKS_SECONDS = 0.3  # faulthandler writes the stacks of a rank within milliseconds
TERM_SECONDS = 8.0  # longer than rank.py's own grace for its child
TICK_SECONDS = 0.2


def main(argv: list[str]) -> int:
    if len(argv) < 3 or argv[1] != "--":
        print("usage: supervise.py RUN_DIR -- LAUNCHER [ARGS...]", file=sys.stderr)
        return 2
    run_dir = Path(argv[0])
    world_size = json.loads((run_dir / "layout.json").read_text())["world_size"]
    write_atomically(run_dir / "supervisor.json", {"pid": os.getpid(), "started": time.time()})
    return Supervisor(run_dir, world_size).run(argv[2:])


class Supervisor:
    """One launcher, its ranks and what became of them."""

    def __init__(self, run_dir: Path, world_size: int) -> None:
        self.run_dir = run_dir
        self.world_size = world_size
        self.started = time.time()
        self.pids: dict[int, int] = {}  # rank -> pid of its training process, on this node
        self.wrappers: dict[int, int] = {}
        self.exits: dict[int, dict[str, Any]] = {}
        self.exceptions: dict[int, str] = {}
        self.stop_signal: int | None = None
        self.first_failure: dict[str, Any] | None = None

    def run(self, launcher: list[str]) -> int:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self.ask_to_stop)
        with (self.run_dir / "launcher.log").open("ab", buffering=0) as log:
            try:
                process = subprocess.Popen(
                    launcher,
                    env=launcher_environment(launcher[0]),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    start_new_session=True,
                )
            except OSError as error:
                return self.finish(None, f"{launcher[0]} could not be started: {error}")
            self.watch(process, log)
        return self.finish(process.returncode, None)

    def ask_to_stop(self, number: int, frame: FrameType | None) -> None:
        self.stop_signal = number

    def watch(self, process: subprocess.Popen[bytes], log: Any) -> None:
        """Follow the launcher until it has ended; stop it when a rank fails or on request."""
        deadline: float | None = None
        with (self.run_dir / "events.jsonl").open("ab", buffering=0) as events:
            for line in lines(process):
                if line:
                    self.take(line, events, log)
                if deadline is None and (self.first_failure or self.stop_signal):
                    self.stop(process)
                    deadline = time.monotonic() + TERM_SECONDS
                elif deadline is not None and time.monotonic() > deadline:
                    signal_group(process.pid, signal.SIGKILL)
        process.wait()

    def take(self, line: bytes, events: Any, log: Any) -> None:
        """One line of the launcher: an event of a rank, or the launcher's own words."""
        event = parse_event(line)
        if event is None:
            log.write(line)
            return
        events.write(line)
        rank = event["rank"]
        if event["event"] == "started" and event["host"] == socket.gethostname():
            # Only of this node: the same number is another process on another node, maybe this one.
            self.pids[rank], self.wrappers[rank] = event["pid"], event["wrapper"]
        elif event["event"] == "exception":
            self.exceptions.setdefault(rank, event["text"])
            self.note_failure(rank, event)
        elif event["event"] == "exit":
            self.exits[rank] = event
            if event["code"] or event["signal"]:
                self.note_failure(rank, event)

    def note_failure(self, rank: int, event: dict[str, Any]) -> None:
        """The first failing rank of the job; a rank that died because we stopped it is not."""
        if event.get("stopped") or self.stop_signal:
            return
        if self.first_failure is None:
            self.first_failure = {"rank": rank, "node": None, "code": None, "signal": None}
        if self.first_failure["rank"] == rank and event["event"] == "exit":
            self.first_failure.update(
                node=event["node"], code=event["code"], signal=event["signal"]
            )

    def stop(self, process: subprocess.Popen[bytes]) -> None:
        """Ask the living ranks for their stacks (rank logs), then end the launcher and them."""
        if self.first_failure:
            for rank, pid in self.pids.items():
                if rank not in self.exits and rank != self.first_failure["rank"]:
                    send(pid, signal.SIGUSR1)
            time.sleep(STACKS_SECONDS)
        signal_group(process.pid, signal.SIGTERM)

    def finish(self, launcher_code: int | None, problem: str | None) -> int:
        """Make sure that no rank is left, write outcome.json; -> exit code."""
        leftovers = self.reap()
        missing = sorted(set(range(self.world_size)) - set(self.exits))
        complete = not missing and not launcher_code and self.first_failure is None
        state = "stopped" if self.stop_signal else "done" if complete else "failed"
        if state == "failed" and self.first_failure is None and problem is None:
            problem = describe_end(launcher_code, missing)
        failure = self.first_failure
        if failure:
            failure["text"] = self.exceptions.get(failure["rank"], "")
        write_atomically(
            self.run_dir / "outcome.json",
            {
                "schema": 1,
                "state": state,
                "first_failure": failure,
                "problem": problem,
                "launcher_code": launcher_code,
                "killed_leftovers": leftovers,
                "started": self.started,
                "ended": time.time(),
            },
        )
        return {"done": 0, "failed": 1, "stopped": 130}[state]

    def reap(self) -> int:
        """Kill what is left of this run on this node; -> how many processes that were."""
        run = os.path.realpath(self.run_dir)
        left = [
            pid for pid in (*self.wrappers.values(), *self.pids.values()) if belongs_to(pid, run)
        ]
        for pid in left:
            send(pid, signal.SIGKILL)
        return len(left)


def launcher_environment(program: str) -> dict[str, str]:
    """hydra looks for its proxy in PATH, not beside itself."""
    return {**os.environ, "PATH": f"{os.path.dirname(program)}:{os.environ.get('PATH', '')}"}


def lines(process: subprocess.Popen[bytes]) -> Iterator[bytes]:
    """Whole lines of the launcher as they come; b'' at every tick without one, and at the end."""
    assert process.stdout is not None
    fd = process.stdout.fileno()
    pending = b""
    with selectors.DefaultSelector() as selector:
        selector.register(fd, selectors.EVENT_READ)
        while True:
            if selector.select(TICK_SECONDS):
                chunk = os.read(fd, 65536)
                if not chunk:
                    break
                *whole, pending = (pending + chunk).split(b"\n")
                yield from (line + b"\n" for line in whole)
            elif process.poll() is not None:
                break  # a grandchild may hold the pipe open for longer than the launcher lives
            yield b""
    while process.poll() is None:
        time.sleep(TICK_SECONDS / 4)
        yield b""


def parse_event(line: bytes) -> dict[str, Any] | None:
    try:
        event = json.loads(line)
    except ValueError:
        return None
    return event if isinstance(event, dict) and {"event", "rank"} <= event.keys() else None


def describe_end(code: int | None, missing: list[int]) -> str:
    ranks = ", ".join(map(str, missing)) or "none"
    return f"the launcher ended with exit code {code}; ranks that never reported an end: {ranks}"


def belongs_to(pid: int, run_dir: str) -> bool:
    """Whether the process lives and was started for this run (pids are used again)."""
    try:
        environ = Path(f"/proc/{pid}/environ").read_bytes()
        argv = Path(f"/proc/{pid}/cmdline").read_bytes()
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    name = os.fsencode(run_dir)
    return state != "Z" and (b"ORCH_RUN_DIR=" + name in environ or name in argv)


def send(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        pass


def signal_group(leader: int, number: int) -> None:
    try:
        os.killpg(leader, number)
    except (ProcessLookupError, PermissionError):
        pass


def write_atomically(path: Path, value: object) -> None:
    staging = path.with_name(path.name + ".tmp")
    staging.write_text(json.dumps(value, indent=1) + "\n")
    staging.replace(path)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
