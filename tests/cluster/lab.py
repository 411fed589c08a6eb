"""Runs on the test cluster: started, watched, hurt, and looked for in /proc when they are over."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.cluster.sites import Site, said

FAULTY = Path(__file__).with_name("programs") / "faulty.py"
ON_TWO = ("--nodes", "2", "--ppn", "1")
# bert-qa, small enough for a test of what happens around it.
SMALL = {
    "max_steps": 6,
    "save_steps": 1,
    "logging_steps": 1,
    "max_train_samples": 40,
    "max_eval_samples": 8,
    "evaluate_before_training": "false",
    "do_eval": "false",
    "max_seq_length": 64,
    "doc_stride": 16,
    "per_device_train_batch_size": 2,
}


def small(**changes: Any) -> tuple[str, ...]:
    settings = {**SMALL, **changes}
    words = (("--set", f"{name}={value}") for name, value in settings.items())
    return ("bert-qa", *(word for pair in words for word in pair))


@dataclass
class Running:
    """`orch train` that is under way."""

    site: Site
    process: subprocess.Popen[str]
    folder: Path

    @property
    def id(self) -> str:
        return self.folder.name

    def events(self, kind: str = "") -> list[dict[str, Any]]:
        path = self.folder / "events.jsonl"
        if not path.exists():
            return []
        lines = path.read_text().splitlines()
        return [event for event in map(json.loads, lines) if event["event"] == kind or not kind]

    def await_event(self, kind: str, count: int = 1, **fields: Any) -> None:
        def there() -> bool:
            found = [e for e in self.events(kind) if fields.items() <= e.items()]
            return len(found) >= count

        self.until(there, f"{count} x {kind} {fields}")

    def await_step(self) -> None:
        """Until both ranks of the plain script have begun to train."""
        self.await_event("first_step", 2)

    def until(self, true: Callable[[], bool], what: str, seconds: float = 120) -> None:
        deadline = time.monotonic() + seconds
        while not true():
            assert self.process.poll() in (None, 0) or true(), self.said(what)
            assert time.monotonic() < deadline, f"not seen in {seconds:.0f} s: {what}"
            time.sleep(0.05)

    def said(self, what: str) -> str:
        out, err = self.process.communicate()
        return f"ended without {what}:\n{out}\n{err}"

    def end(self, *, code: int, seconds: float = 120) -> dict[str, Any]:
        """Wait for it; -> the run, as it told it."""
        out, err = self.process.communicate(timeout=seconds)
        assert self.process.returncode == code, f"exit {self.process.returncode}\n{out}\n{err}"
        assert "Traceback" not in err, err
        return dict(json.loads(out))


def start(site: Site, *arguments: str) -> Running:
    """`orch train` with --json; returns once it has recorded its run."""
    before = set((site.folder / "runs").glob("*"))
    given = ("--inventory", str(site.inventory), "--json", "--show", "none")
    process = site.spawn("train", *given, *arguments)
    running = Running(site=site, process=process, folder=site.folder)

    def recorded() -> set[Path]:
        return {path.parent for path in (site.folder / "runs").glob("*/plan.json")} - before

    running.until(lambda: bool(recorded()), "the record of its run")
    (running.folder,) = recorded()
    return running


def faulty(site: Site, fault: str = "none", *options: str, script: tuple[str, ...] = ()) -> Running:
    """The plain script on two nodes, one rank each."""
    arguments = ("--", "--fault", fault, *script)
    return start(site, str(FAULTY), *ON_TWO, "--backend", "gloo", *options, *arguments)


def ask(site: Site, *arguments: str, code: int = 0, seconds: float = 60) -> dict[str, Any]:
    """Another command of orch with --json; -> what it printed."""
    done = site.run(*arguments, "--json", seconds=seconds)
    assert done.returncode == code, said(done)
    return dict(json.loads(done.stdout))


def processes(run_id: str) -> dict[int, str]:
    """Living processes that have the run in their arguments or their environment, on all nodes:
    these are containers of this machine, so its /proc shows them."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            arguments = (folder / "cmdline").read_bytes()
            text = arguments + (folder / "environ").read_bytes()
            state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if run_id.encode() in text and state not in "ZX" and container(folder):
            found[int(folder.name)] = arguments.replace(b"\0", b" ").decode(errors="replace")
    return found


def container(folder: Path) -> bool:
    """Whether it is in a node, and not a program of this machine that watches the run."""
    return os.readlink(folder / "ns/mnt") != os.readlink("/proc/self/ns/mnt")


def await_nothing_left(run_id: str, seconds: float) -> float:
    """-> the seconds that it took until no process of the run was left."""
    began = time.monotonic()
    while living := processes(run_id):
        assert time.monotonic() - began < seconds, living
        time.sleep(0.1)
    return time.monotonic() - began


def pid_of(run_id: str, *words: str) -> int:
    """The one process of the run whose arguments hold all the words."""
    found = [pid for pid, line in processes(run_id).items() if all(word in line for word in words)]
    assert len(found) == 1, (words, processes(run_id))
    return found[0]


def send(pid: int, number: int = signal.SIGKILL) -> None:
    os.kill(pid, number)


def rank_pid(run_id: str, rank: int) -> int | None:
    """The training process of a rank, as soon as it is there."""
    for pid, line in processes(run_id).items():
        if " run-script " in line:
            variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            if f"RANK={rank}".encode() in variables:
                return pid
    return None


@contextmanager
def altered(site: Site, node: str, path: str, content: str) -> Iterator[None]:
    """A file of a node with another content, for a while."""
    write = ("sh", "-c", 'cp -p "$1" "$1.kept" 2>/dev/null; printf %s "$2" > "$1"', "sh", path)
    site.cluster.exec(node, (*write, content), user="vagrant")
    try:
        yield
    finally:
        back = 'if [ -e "$1.kept" ]; then mv "$1.kept" "$1"; else rm -f "$1"; fi'
        site.cluster.exec(node, ("sh", "-c", back, "sh", path), user="vagrant")
