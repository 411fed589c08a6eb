"""The small files in which a run says how it stands: what cannot be read counts as not there."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from orch_node.protocol import files, values
from orch_node.protocol import outcome as outcomes
from orch_node.protocol.outcome import Outcome
from orch_node.protocol.values import ProtocolError

from orchestrator.files import write_whole

PLAN = "plan.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """What outcome.json holds; None where there is none. `problem`: why it cannot be read."""

    value: Outcome | None
    problem: str = ""


def outcome_in(folder: Path) -> Ended:
    """A run whose outcome.json is damaged has ended; how, nobody knows any more."""
    path = folder / files.OUTCOME
    try:
        found = outcomes.parse(path.read_bytes())
    except FileNotFoundError:
        return Ended(value=None)
    except (OSError, ProtocolError) as error:
        return Ended(value=None, problem=f"{path} is damaged, and left out: {error}")
    return Ended(value=found)


def supervisor_in(folder: Path) -> int | None:
    """The pid in supervisor.json; None where there is none, or none that can be read."""
    try:
        pid = outcomes.parse_supervisor((folder / files.SUPERVISOR).read_bytes()).pid
    except (OSError, ProtocolError):
        return None
    return pid if pid > 1 else None


def supervises(pid: int, folder: Path) -> bool:
    """Whether the process is this run's supervisor: pids are used again."""
    try:
        argv = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    named = [os.path.basename(run) for word, run in pairwise(argv) if word == b"supervise"]
    return os.fsencode(folder.name) in named


def read_json(path: Path) -> dict[str, Any] | None:
    """None if it is not there, or holds no object."""
    try:
        found = values.loads(path.read_bytes(), path.name)
    except (OSError, ProtocolError):
        return None
    return found if isinstance(found, dict) else None


def write_json(path: Path, value: object) -> None:
    write_whole(path, json.dumps(value, indent=1) + "\n")
