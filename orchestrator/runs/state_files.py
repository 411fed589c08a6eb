"""The small files in which a run says how it stands: what cannot be read counts as not there."""

from __future__ import annotations

import json
import os
from itertools import pairwise
from pathlib import Path
from typing import Any

from orch_node.protocol import files, values
from orch_node.protocol import outcome as outcomes
from orch_node.protocol.outcome import Outcome, SupervisorProcess
from orch_node.protocol.values import ProtocolError

from orchestrator.files import write_whole

PLAN = files.PLAN


def outcome_in(folder: Path) -> Outcome | None:
    """None where there is none, or none that can be read."""
    return read_outcome(folder)[0]


def read_outcome(folder: Path) -> tuple[Outcome | None, str]:
    """A run whose outcome.json is damaged has ended; how, nobody knows any more."""
    path = folder / files.OUTCOME
    try:
        found = outcomes.parse(path.read_bytes())
    except FileNotFoundError:
        return None, ""
    except (OSError, ProtocolError) as error:
        return None, f"{path} is damaged, and left out: {error}"
    return found, ""


def supervisor_of(folder: Path) -> SupervisorProcess | None:
    """None where there is no supervisor.json, or none that can be read."""
    try:
        found = outcomes.parse_supervisor((folder / files.SUPERVISOR).read_bytes())
    except (OSError, ProtocolError):
        return None
    return found if found.pid > 1 else None


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
