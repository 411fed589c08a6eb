"""A real PBS of two hosts, which are namespaces of this machine; its programs are in the folder that ORCH_PBS names."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.conftest import ORCH
from tests.support.waiting import wait_until

BOOT = Path(__file__).parent / "boot"
CHECKOUT = BOOT.parents[2]
SERVER, NODE = "pbs1", "pbs2"


class Site:
    """A PBS, and a folder in which orch runs on its first host.

    Args:
        prefix: the folder with PBS's programs.
        folder: a new folder, which both hosts see.
    """

    def __init__(self, prefix: Path, folder: Path) -> None:
        self.prefix = prefix
        self.state = folder / "pbs"
        self.home = folder / "home"
        self.home.mkdir()
        with (folder / "boot.log").open("wb") as log:
            self.process = subprocess.Popen(
                [str(BOOT), str(prefix), str(self.state)], stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def wait_for_free_nodes(self, seconds: float = 90) -> None:
        def are_free() -> bool:
            listed = self.run("pbsnodes", "-a", "-F", "json")
            if listed.returncode != 0:
                return False
            return [node["state"] for node in json.loads(listed.stdout)["nodes"].values()] == ["free", "free"]

        wait_until(are_free, "two free nodes", seconds)

    def is_ready(self) -> bool:
        assert self.process.poll() is None, "tests/pbs/boot has ended"
        return all((self.state / host / "ready").exists() for host in (SERVER, NODE))

    def command(self, *argv: str, host: str = SERVER) -> list[str]:
        """Return the command that runs a program in a host's namespaces."""
        variables = {
            "PATH": f"{Path(sys.executable).parent}:{self.prefix}/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME": str(self.home),
            "PYTHONPATH": f"{CHECKOUT}:{CHECKOUT}/train/lib",
            "NO_COLOR": "1",
            "COLUMNS": "200",
        }
        enter = ["nsenter", "-t", (self.state / f"{host}.pid").read_text().strip(), "-a", f"-w{self.home}"]
        return [*enter, "env", "-i", *(f"{name}={value}" for name, value in variables.items()), *argv]

    def run(self, *argv: str, host: str = SERVER, seconds: float = 300) -> subprocess.CompletedProcess[str]:
        """Run a program on a host, which may fail."""
        command = self.command(*argv, host=host)
        return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=seconds)

    def orch(self, *arguments: str, code: int = 0) -> str:
        """Run orch, check its exit code, and return its standard output."""
        done = self.run(*ORCH, *arguments)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout

    def train(self, *arguments: str, code: int = 0) -> dict[str, Any]:
        """Train, and return what orch printed with --json."""
        split = arguments.index("--") if "--" in arguments else len(arguments)
        return json.loads(self.orch("train", *arguments[:split], "--json", *arguments[split:], code=code))

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start `orch train` in the background."""
        command = self.command(*ORCH, "train", *arguments)
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    def newest_run(self) -> Path:
        return max((path.parent for path in (self.home / "runs").glob("*/plan.json")), key=lambda path: path.name)

    def wait_for_event(self, kind: str) -> Path:
        """Wait until the only run has an event of this kind, and return its folder."""

        def has_event() -> bool:
            logs = [path.read_text() for path in (self.home / "runs").glob("*/events.jsonl")]
            return any(f'"event": "{kind}"' in events for events in logs)

        wait_until(has_event, f"an event {kind}", 60)
        return self.newest_run()

    def active_jobs(self) -> list[str]:
        return self.run("qselect").stdout.split()

    def wait_for_no_jobs(self) -> None:
        wait_until(lambda: not self.active_jobs(), "the end of all jobs", 60)

    def processes(self, pattern: str) -> str:
        """Return the processes on both hosts whose command line matches the pattern."""
        return "".join(self.run("pgrep", "-f", pattern, host=host).stdout for host in (SERVER, NODE))

    def reset(self) -> None:
        """Delete what a test has left, and wait until both nodes are free."""
        self.run("ip", "link", "set", "eth0", "up", host=NODE)
        for job in self.active_jobs():
            self.run("qdel", "-W", "force", job)
        self.wait_for_no_jobs()
        self.wait_for_free_nodes()
        shutil.rmtree(self.home / "runs", ignore_errors=True)

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(30)
