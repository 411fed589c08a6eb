"""Run directories: RUNS/<id>/ with plan.json, the run's files, its logs and its outcome."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from orchestrator.card import run_card
from orchestrator.errors import ExecuteError, RequestError, did_you_mean
from orchestrator.plan import Plan
from orchestrator.provenance import provenance
from orchestrator.train_request import Resume

POLL_SECONDS = 0.1
START_SECONDS = 15.0
GONE = "gone"  # a file in the folder of a run on another node: its supervisor is no more


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A recorded run. `state`: planned, running, done, failed, refused, stopped, or killed."""

    id: str
    folder: Path
    plan: dict[str, Any]
    outcome: dict[str, Any] | None
    state: str

    def events(self) -> list[dict[str, Any]]:
        """Those that are there whole: the last line may be on its way."""
        path = self.folder / "events.jsonl"
        *whole, _ = path.read_text().split("\n") if path.exists() else [""]
        return [json.loads(line) for line in whole]

    @property
    def nodes(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(str(place["node"]) for place in self.plan["layout"]))

    def progress(self) -> dict[str, Any] | None:
        """The newest progress that a rank has reported."""
        found = [event for event in self.events() if event["event"] == "progress"]
        return found[-1] if found else None

    def result(self) -> dict[str, Any] | None:
        """The figures that the script reported at its end."""
        found = [event for event in self.events() if event["event"] == "result"]
        return found[-1] if found else None


def record(plan: Plan, folder: Path) -> None:
    """Create the run's folder with plan.json. Raises ExecuteError if that cannot be written."""
    keep({**run_card(plan), "script": plan.describe(), **provenance(plan)}, folder)


def keep(card: dict[str, Any], folder: Path) -> None:
    """Write plan.json. Raises ExecuteError if that cannot be done."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / "plan.json", card)
    except OSError as error:
        raise ExecuteError(
            f"The run directory {folder} cannot be written: {error.strerror}.",
            hint="--runs-dir names another place.",
        ) from None


def load(folder: Path) -> Run:
    plan = json.loads((folder / "plan.json").read_text())
    outcome = read_json(folder / "outcome.json")
    away = bool(plan["node0"]["via"])
    state = state_of(folder, outcome, away)
    if "kube" in plan and outcome is None:
        state = "running"  # as far as is known here
    return Run(id=folder.name, folder=folder, plan=plan, outcome=outcome, state=state)


def state_of(folder: Path, outcome: dict[str, Any] | None, away: bool) -> str:
    """What is known here; a run on another node counts as running until it is seen to end."""
    if outcome is not None:
        return str(outcome["state"])
    supervisor = read_json(folder / "supervisor.json")
    if supervisor is None:
        return "planned"
    if away:
        return "killed" if (folder / GONE).exists() else "running"
    return "running" if supervises(int(supervisor["pid"]), folder) else "killed"


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
    staging.write_bytes(content)
    staging.replace(path)


def list_runs(base: Path) -> list[Run]:
    """All runs below `base`, oldest first."""
    found = [load(path.parent) for path in base.glob("*/plan.json")]
    return sorted(found, key=lambda run: (run.plan["created"], run.id))


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
    runs = (run for run in list_runs(base) if run.plan["key"] == key)
    same = [run for run in runs if run.state not in ("planned", "refused")]  # nothing was trained
    if not same or same[-1].state not in ("failed", "stopped", "killed"):
        return None
    run = same[-1]
    if not run.plan["resumes"]:
        return None
    return Resume(run_id=run.id, state=run.state, output_dir=run.plan["output_dir"])


class Source(Protocol):
    """Where a run lives: what follows it needs of that place."""

    def refresh(self) -> None:
        """Bring the run's folder here up to date."""

    def lost(self, pid: int) -> bool:
        """Whether the supervisor is gone."""

    def terminate(self, pid: int) -> None:
        """Ask the supervisor to end the run."""


class Here:
    """A run of this machine: its folder is always up to date."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def refresh(self) -> None:
        pass

    def lost(self, pid: int) -> bool:
        return not supervises(pid, self.folder)

    def terminate(self, pid: int) -> None:
        if supervises(pid, self.folder):
            os.kill(pid, signal.SIGTERM)


def follow(folder: Path, source: Source) -> Iterator[dict[str, Any]]:
    """Events of a run as they come, until its outcome is there or its supervisor is gone."""
    offset = 0
    path = folder / "events.jsonl"
    pid = await_start(folder, source)
    while True:
        # In this order: what is written before the end is read before it is believed.
        gone = source.lost(pid)
        source.refresh()
        ended = gone or (folder / "outcome.json").exists()
        if path.exists():
            with path.open("rb") as file:
                file.seek(offset)
                *whole, _ = file.read().split(b"\n")
            offset += sum(len(line) + 1 for line in whole)
            yield from (json.loads(line) for line in whole)
        if ended:
            return
        time.sleep(POLL_SECONDS)


def await_start(folder: Path, source: Source) -> int:
    """Wait for the supervisor to report; -> its pid. Raises ExecuteError if it does not."""
    deadline = time.monotonic() + START_SECONDS
    while (supervisor := read_json(folder / "supervisor.json")) is None:
        if time.monotonic() > deadline:
            log = folder / "supervisor.log"
            words = log.read_text()[-2000:].strip() if log.exists() else "it wrote nothing"
            raise ExecuteError(f"The supervisor of {folder.name} did not start: {words}")
        time.sleep(0.01)
        source.refresh()
    return int(supervisor["pid"])


def stop(folder: Path, source: Source) -> None:
    """Ask the supervisor to end the run, and wait until its outcome is there."""
    source.terminate(await_start(folder, source))
    for _ in follow(folder, source):
        pass
