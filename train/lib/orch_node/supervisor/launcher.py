"""Run an attempt's launcher, such as mpiexec.hydra; find in its output why it ended and which ranks were killed."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from orch_node.agent.processes import has_children
from orch_node.atomic_write import private
from orch_node.line_pipes import MAX_LAUNCHER_LINE_BYTES
from orch_node.machine import die_with_parent
from orch_node.protocol import files
from orch_node.protocol.events import Exited, Started
from orch_node.protocol.layout import RunLayout
from orch_node.reach import JOINING, START_MARKER
from orch_node.supervisor.rank_tracker import RankTracker
from orch_node.supervisor.run import SupervisedRun
from orch_node.tail import last_text

# A grandchild may hold the pipe open for longer than the launcher lives.
DRAIN_SECONDS = 1.0
NO_CHILDREN_SECONDS = 30.0  # hydra took 6 s with 20 runnable processes per core, 11 s if no name server responds
# Launchers that start each rank by a child process: ssh, srun or a proxy.
PARENTS = ("mpiexec", "mpiexec.hydra", "mpirun")
# Without both variables, Open MPI refuses to run as root.
AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


class Launcher:
    """A running launcher."""

    def __init__(self, run: SupervisedRun, handle_line: Callable[[bytes], None]) -> None:
        """Start the launcher.

        Raises:
            OSError: if the program cannot be started.
        """
        self.pipes = run.agents.pipes
        self.ended: float | None = None
        # Hydra looks for its proxy in the first folder of PATH.
        folder = run.options.path or os.path.dirname(run.launcher_argv[0])
        environment = {
            **os.environ,
            **(AS_ROOT if os.getuid() == 0 else {}),
            "PATH": f"{folder}:{os.environ.get('PATH', '')}",
            "ORCH_RUN_DIR": str(run.run_dir),
            "ORCH_ATTEMPT": str(run.attempt_number),
        }
        with open(run.run_dir / files.LAUNCHER_LOG, "ab", opener=private) as log_file:
            self.process = subprocess.Popen(
                [*shlex.split(os.environ.get(JOINING, "")), *run.launcher_argv],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log_file,
                start_new_session=True,
                preexec_fn=die_with_parent,
            )
        assert self.process.stdout is not None
        self.stdout = self.process.stdout.fileno()
        self.pipes.add(self.stdout, handle_line, MAX_LAUNCHER_LINE_BYTES)

    def running(self) -> bool:
        """Return whether the launcher runs, or its last line has not been read yet."""
        if self.process.poll() is None:
            return True
        self.ended = self.ended or time.monotonic()
        return self.pipes.open(self.stdout) and time.monotonic() - self.ended < DRAIN_SECONDS

    def kill(self) -> None:
        """Kill the launcher if it still runs; agents end the processes that it leaves.

        mpiexec.hydra ignores SIGTERM for a quarter of an hour after a node is lost.
        """
        if self.process.poll() is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def close(self) -> int:
        """Wait for the end; return the exit code, negative for a signal."""
        self.pipes.drop(self.stdout)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return self.process.wait()


MAX_LINE_CHARACTERS = 300
LOG_CHARACTERS = 20_000  # of the end of the log
# Regular expressions of messages. MPICH names a signal like an exit code.
MESSAGES: dict[str, Any] = json.loads(Path(__file__).with_name("launcher_messages.json").read_text())
KILLED_RANKS = [re.compile(pattern) for pattern in MESSAGES["killed_ranks"].values()]
# What ssh says, and what hydra and PRRTE say about a node that they cannot reach.
SSH_ERRORS = re.compile("|".join(MESSAGES["ssh_errors"]))
NODE_ERRORS = [(re.compile(pattern, re.DOTALL), text) for pattern, text in MESSAGES["node_errors"].items()]
# Lines that frame others, warnings, positions in the source of hydra, and what follows a failure.
NO_REASON = re.compile("|".join(MESSAGES["no_reason"]))
HYDRA_PREFIX = re.compile(r"^\[\w+(?::\d+)*@(\S+?)\] ")


class LauncherLog:
    """The log of a launcher: its messages, without the events of ranks."""

    def __init__(self, path: Path, layout: RunLayout) -> None:
        """Read a log.

        Args:
            path: of the file.
            layout: which rank runs on which node.
        """
        self.path = path
        self.layout = layout
        self.begin = path.stat().st_size if path.exists() else 0  # earlier attempts write to the same file

    def text(self) -> str:
        """Return the end of the log since this object was made, '' if there is none."""
        return last_text(self.path, LOG_CHARACTERS, self.begin).replace(START_MARKER.decode(), "")

    def reason(self) -> str:
        """Return why the launcher has ended, else its last line that may be a reason, else ''."""
        text = self.text()
        lines = [line.strip() for line in text.splitlines()]
        nodes = [template.format(match[1]) for pattern, template in NODE_ERRORS if (match := pattern.search(text))]
        reasons = [*nodes[:1], *[line for line in lines if SSH_ERRORS.search(line)][-1:]]
        if not reasons:
            reasons = [HYDRA_PREFIX.sub(r"\1: ", line) for line in lines if not NO_REASON.match(line)][-1:]
        reason = ": ".join(line[:MAX_LINE_CHARACTERS] for line in reasons)
        for node in self.layout.nodes:  # launchers print their addresses
            if node.address:
                reason = re.sub(rf"(?<![\w.:]){re.escape(node.address)}(?!\.?\w|:\w)", node.name, reason)
        return reason

    def report(self) -> str:
        """Return what the launcher says about its trouble, to be added to a message, or ''."""
        reason = self.reason()
        return f"; the launcher reports: {reason}" if reason else ""

    def killed_ranks(self, started: Mapping[int, Started]) -> list[Exited]:
        """Return the ends of ranks that the launcher found killed.

        Launchers name only the process that they have started: the wrapper of the rank, which cannot
        report its own end.

        Args:
            started: the reports of the ranks' starts.
        """
        text, ends = self.text(), []
        for match in (match for pattern in KILLED_RANKS for match in pattern.finditer(text)):
            pid, number = int(match["pid"]), int(match["signal"])
            ranks = [rank for rank, event in started.items() if event.wrapper == pid]
            if "rank" in match.re.groupindex:
                ranks = [int(match["rank"])]
            if len(ranks) == 1 and number in signal.valid_signals() and 0 <= ranks[0] < self.layout.world_size:
                node = self.layout.placement(ranks[0]).node
                ends.append(Exited(rank=ranks[0], node=node, signal=signal.Signals(number).name))
        return ends


def startup_problem(launcher: int, program: str, log: LauncherLog, tracker: RankTracker, now: float) -> str:
    """Return why no rank can start any more, or ''.

    MPICH's hydra waits for ever for a proxy whose srun or ssh has failed.

    Args:
        launcher: its process number.
        program: its name.
        log: its output.
        tracker: the ranks.
        now: the time of the tracker's clock.
    """
    is_early = tracker.seconds_since_progress(now) < NO_CHILDREN_SECONDS
    if tracker.started or program not in PARENTS or is_early or has_children(launcher):
        return ""
    reason = f"{program} has no process left that could start a rank"
    return f"{reason}: none of {len(tracker.nodes)} has started{log.report()}"
