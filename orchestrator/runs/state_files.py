"""The small files that hold a run's state and accounting; a file that cannot be read is treated as missing."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from orch_node import atomic_write, lease
from orch_node.agent.processes import read_argv
from orch_node.protocol import files, values
from orch_node.protocol import outcome as outcomes

from orchestrator.files import write_whole

ACCOUNTING = "accounting.json"  # the batch system's record of the job
supervisor_of = lease.read_supervisor  # which nodes use, too


def outcome_in(folder: Path) -> outcomes.Outcome | None:
    """Return the outcome in a run's folder, or None if there is none that can be read."""
    return read_outcome(folder)[0]


def read_outcome(folder: Path) -> tuple[outcomes.Outcome | None, str]:
    """Return the outcome in a run's folder, and a message if it is damaged.

    A run whose outcome.json is damaged has ended in an unknown way.
    """
    path = folder / files.OUTCOME
    try:
        outcome = outcomes.parse(atomic_write.read(path))
    except FileNotFoundError:
        return None, ""
    except (OSError, values.ProtocolError) as error:
        return None, f"{path} is damaged, and left out: {error}"
    return outcome, ""


def supervises(pid: int, folder: Path) -> bool:
    """Return whether the process is this run's supervisor, since pids are reused."""
    arguments = pairwise(read_argv(pid))
    supervised_runs = [os.path.basename(run) for argument, run in arguments if argument == b"supervise"]
    return os.fsencode(folder.name) in supervised_runs


def read_json(path: Path) -> dict[str, Any] | None:
    """Return the JSON object in a file, or None if the file is missing or holds no object."""
    value = values.load(lambda content: values.loads(content, path.name), path)
    return value if isinstance(value, dict) else None


def write_json(path: Path, value: object) -> None:
    """Write a value to a file as JSON, replacing the file as a whole."""
    write_whole(path, json.dumps(value, indent=1) + "\n")


@dataclass(frozen=True, slots=True, kw_only=True)
class Accounting:
    """A job as the batch system recorded it."""

    source: str  # the program that reported it: sacct, or scontrol if there is no accounting
    job: str
    state: str  # CANCELLED, TIMEOUT, ...
    elapsed_seconds: int
    max_rss_bytes: int | None = None  # if the site measures it
    measured: str = "in its largest task"  # what used that memory

    def describe(self) -> str:
        """Return the recorded figures on one line."""
        memory = self.max_rss_bytes
        size = f", {memory / (1 << 20):.0f} MiB {self.measured}" if memory else ""
        return f"job {self.job}: {self.state}, {self.elapsed_seconds} s{size} ({self.source})"


def read_accounting(folder: Path) -> Accounting | None:
    """Return the accounting in a run's folder, or None if there is none or it cannot be read."""
    return values.load(lambda content: values.parse(Accounting, content, ACCOUNTING), folder / ACCOUNTING)
