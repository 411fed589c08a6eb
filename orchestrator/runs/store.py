"""Run directories: RUNS/<id>/ with plan.json, the run's files, its logs and its outcome."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orch_node.protocol import files
from orch_node.protocol import outcome as outcomes
from orch_node.protocol import record as records
from orch_node.protocol.events import Event, Progress, Result
from orch_node.protocol.outcome import FAILED, REFUSED, STOPPED, Outcome, SupervisorProcess
from orch_node.protocol.record import RunRecord
from orch_node.protocol.values import ProtocolError

from orchestrator.errors import ExecuteError, RequestError, did_you_mean
from orchestrator.files import own_folder
from orchestrator.planning.plan import Plan
from orchestrator.planning.request import Resume
from orchestrator.runs import provenance as origins
from orchestrator.runs.events import events_in, whole_lines
from orchestrator.runs.provenance import Provenance, provenance

PLAN = "plan.json"
GONE = "gone"  # a file in the folder of a run on another node: its supervisor is no more


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A recorded run. `state`: planned, running, done, failed, refused, stopped, or killed."""

    id: str
    folder: Path
    record: RunRecord
    origin: Provenance
    outcome: Outcome | None
    state: str

    def events(self) -> list[Event]:
        return list(events_in(whole_lines(self.folder / files.EVENTS)))

    @property
    def nodes(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(place.node for place in self.record.layout))

    def progress(self) -> Progress | None:
        """The newest progress that a rank has reported."""
        found = [event for event in self.events() if isinstance(event, Progress)]
        return found[-1] if found else None

    def result(self) -> Result | None:
        """The figures that the script reported at its end."""
        found = [event for event in self.events() if isinstance(event, Result)]
        return found[-1] if found else None


def create(plan: Plan, folder: Path) -> None:
    """Make the run's folder with plan.json. Raises ExecuteError if that cannot be written."""
    keep(plan.run, folder, provenance(plan))


def keep(record: RunRecord, folder: Path, origin: Provenance | None = None) -> None:
    """Write plan.json; `origin` as far as it is known. Raises ExecuteError."""
    value = records.render(record) | (origins.render(origin) if origin else {})
    try:
        own_folder(folder)
        write_json(folder / PLAN, value)
    except OSError as error:
        raise ExecuteError(
            f"The run directory {folder} cannot be written: {error.strerror}.",
            hint="--runs-dir names another place.",
        ) from None


def load(folder: Path) -> Run:
    """The one door for what runs have left behind. Raises ExecuteError for a damaged plan.json."""
    path = folder / PLAN
    try:
        value = json.loads(path.read_text())
        record, origin = records.parse(value), origins.parse(value)
    except (ValueError, ProtocolError) as error:
        raise ExecuteError(
            f"{path} is damaged: {error}", hint=f"Move {folder} away if it is not needed."
        ) from None
    outcome = outcome_in(folder)
    state = state_of(folder, outcome, record)
    return Run(
        id=folder.name, folder=folder, record=record, origin=origin, outcome=outcome, state=state
    )


def state_of(folder: Path, outcome: Outcome | None, record: RunRecord) -> str:
    """What is known here; a run elsewhere counts as running until it is seen to end."""
    if outcome is not None:
        return outcome.state
    if record.location:  # its target knows more, and has no file of a supervisor
        return "running"
    supervisor = supervisor_of(folder)
    if supervisor is None:
        return "planned"
    if record.node0.via:
        return "killed" if (folder / GONE).exists() else "running"
    return "running" if supervises(supervisor.pid, folder) else "killed"


def outcome_in(folder: Path) -> Outcome | None:
    path = folder / files.OUTCOME
    return outcomes.parse(path.read_bytes()) if path.exists() else None


def supervisor_of(folder: Path) -> SupervisorProcess | None:
    path = folder / files.SUPERVISOR
    return outcomes.parse_supervisor(path.read_bytes()) if path.exists() else None


def supervises(pid: int, folder: Path) -> bool:
    """Whether the process is this run's supervisor: pids are used again."""
    try:
        argv = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return os.fsencode(folder.name) in {os.path.basename(argument) for argument in argv}


def read_json(path: Path) -> dict[str, Any] | None:
    try:
        return dict(json.loads(path.read_text()))
    except FileNotFoundError:
        return None


def write_json(path: Path, value: object) -> None:
    write_whole(path, (json.dumps(value, indent=1) + "\n").encode())


def write_whole(path: Path, content: bytes) -> None:
    """Whole or not at all: others may be reading it."""
    staging = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    staging.touch(mode=0o600)
    staging.write_bytes(content)
    staging.replace(path)


def list_runs(base: Path) -> list[Run]:
    """All runs below `base`, oldest first."""
    found = [load(path.parent) for path in base.glob(f"*/{PLAN}")]
    return sorted(found, key=lambda run: (run.record.created, run.id))


def find(base: Path, name: str) -> Run:
    """A run by its id, or `last`. Raises RequestError."""
    runs = list_runs(base)
    if not runs:
        raise RequestError(f"There are no runs in {base}.", hint="--runs-dir names another place.")
    if name == "last":
        return runs[-1]
    for run in runs:
        if run.id == name:
            return run
    raise RequestError(
        f"There is no run '{name}' in {base}.",
        hint=did_you_mean(name, [run.id for run in runs[-10:]]),
    )


def unfinished(base: Path, key: str) -> Resume | None:
    """The newest run of this key, if it ended before its time and can be carried on."""
    runs = (run for run in list_runs(base) if run.record.key == key)
    same = [run for run in runs if run.state not in ("planned", REFUSED)]  # nothing was trained
    if not same or same[-1].state not in (FAILED, STOPPED, "killed"):
        return None
    run = same[-1]
    if not run.record.resumes or run.record.output_dir is None:
        return None
    return Resume(run_id=run.id, state=run.state, output_dir=run.record.output_dir)
