"""Run directories: RUNS/<id>/ with plan.json, the run's files, its logs and its outcome."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from orch_node import disk, supervisor_state
from orch_node.protocol import files, values
from orch_node.protocol import record as records
from orch_node.protocol.events import Event, Progress, Result
from orch_node.protocol.outcome import DONE, FAILED, PREEMPTED, REFUSED, STOPPED, Outcome
from orch_node.protocol.record import RunRecord
from orch_node.protocol.values import ProtocolError

from orchestrator.errors import ExecuteError, RequestError, did_you_mean
from orchestrator.files import make_user_folder, other_owner
from orchestrator.planning.plan import Plan
from orchestrator.planning.request import Resume
from orchestrator.runs import provenance as origins
from orchestrator.runs.damaged import ASIDE, Damaged
from orchestrator.runs.events import newest as newest_event
from orchestrator.runs.events import stored
from orchestrator.runs.provenance import Provenance, provenance
from orchestrator.runs.state_files import PLAN, read_outcome, supervisor_of, write_json

GONE = "gone"  # a file in the folder of a run on another node: its supervisor is no more


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A recorded run. `state`: planned, running, done, failed, refused, preempted,
    stopped, killed, or unknown: its supervisor is on a host that cannot be seen from here.
    `problems`: files of it that cannot be read and count as not there, in words."""

    id: str
    folder: Path
    record: RunRecord
    origin: Provenance
    outcome: Outcome | None
    state: str
    problems: tuple[str, ...] = ()

    def events(self) -> list[Event]:
        """Those that are there whole, and what stands for those that cannot be read."""
        return stored(self.folder / files.EVENTS, ranks=len(self.record.layout))

    @property
    def nodes(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(place.node for place in self.record.layout))

    def progress(self) -> Progress | None:
        """The newest progress that a rank has reported."""
        return newest_event(self.folder / files.EVENTS, Progress, ranks=len(self.record.layout))

    def result(self) -> Result | None:
        """The figures that the script reported at its end."""
        return newest_event(self.folder / files.EVENTS, Result, ranks=len(self.record.layout))


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """All runs below a folder, oldest first, and those that cannot be read."""

    runs: tuple[Run, ...]
    damaged: tuple[Damaged, ...]

    def warnings(self) -> Iterator[str]:
        for one in self.damaged:
            yield one.describe()
        for run in self.runs:
            yield from run.problems


def create(plan: Plan, folder: Path) -> None:
    """Make the run's folder with plan.json. Raises ExecuteError if that cannot be written."""
    keep(plan.run, folder, provenance(plan))


def keep(record: RunRecord, folder: Path, origin: Provenance | None = None) -> None:
    """Write plan.json; `origin` as far as it is known. Raises ExecuteError."""
    value = records.render(record) | (origins.render(origin) if origin else {})
    try:
        make_user_folder(folder)
        write_json(folder / PLAN, value)
    except OSError as error:
        kind = RequestError if error.errno in NO_FOLDER else ExecuteError
        raise kind(
            f"The run directory {disk.describe_error(folder, error)}.", hint="--runs-dir names another place."
        ) from None


def load(folder: Path) -> Run:
    """The one door for what runs have left behind. Raises ExecuteError for a damaged plan.json."""
    path = folder / PLAN
    try:
        value = values.loads(path.read_bytes(), PLAN)
        record, origin = records.parse(value), origins.parse(value)
    except (OSError, ProtocolError) as error:
        raise ExecuteError(
            f"{path} is damaged: {error}", hint=f"`orch clean` moves {folder} to {folder.parent / ASIDE}."
        ) from None
    outcome, problem = read_outcome(folder)
    return Run(
        id=folder.name,
        folder=folder,
        record=record,
        origin=origin,
        outcome=outcome,
        state="killed" if problem else state_of(folder, outcome, record),
        problems=(problem,) if problem else (),
    )


def state_of(folder: Path, outcome: Outcome | None, record: RunRecord) -> str:
    """What is known here; a run elsewhere counts as running until it is seen to end."""
    if outcome is not None:
        return outcome.state
    if record.location:  # its target knows more, and has no file of a supervisor
        return "running"
    supervisor = supervisor_of(folder)
    if record.node0.via:
        gone = (folder / GONE).exists()
        return "planned" if supervisor is None else "killed" if gone else "running"
    if supervisor is None:  # without a word of it, or with one that cannot be read: then it has begun
        return "killed" if (folder / files.SUPERVISOR).exists() else "planned"
    return supervisor_state.state_of(folder, supervisor)


def recorded(base: Path) -> Recorded:
    """All runs below `base`. One that is damaged hides no other."""
    runs: list[Run] = []
    damaged: list[Damaged] = []
    for folder in sorted(path.parent for path in base.glob(f"*/{PLAN}")):
        try:
            runs.append(load(folder))
        except ExecuteError as error:
            problem = error.message.partition(" is damaged: ")[2]
            damaged.append(Damaged(folder=folder, problem=problem))
    runs.sort(key=lambda run: (run.record.created, run.id))
    return Recorded(runs=tuple(runs), damaged=tuple(damaged))


NO_FOLDER = (errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.EPERM, errno.EROFS)  # wrong --runs-dir, not a full disk
LISTING = "`orch runs` lists the runs."
Tell = Callable[[str], None]


def find(base: Path, name: str, tell: Tell = lambda line: None) -> Run:
    """Return a run by its id, a unique prefix of it, or `last`; `tell` gets warnings.

    Raises:
        RequestError: if there is no such run, or several begin like that.
    """
    found = recorded(base)
    runs = found.runs
    if any(one.folder.name == name for one in found.damaged):
        load(base / name)  # raises what is wrong
    for line in found.warnings():
        tell(f"warning: {line}")
    if not runs and not found.damaged:
        raise RequestError(
            f"There are no runs in {base}.",
            hint="`orch train` starts one. Elsewhere: --runs-dir FOLDER, or --inventory.",
        )
    if name == "last":
        return newest(found)
    runs_by_id = {run.id: run for run in runs}
    return runs_by_id[match_id(name, list(runs_by_id), f"in {base}")]


def match_id(name: str, ids: Sequence[str], location: str) -> str:
    """Return the id that is `name` or the only one that begins with it.

    Args:
        name: An id, or its beginning.
        ids: The known ids, the oldest first.
        location: Where they are, for messages: `in runs`.

    Raises:
        RequestError: if there is no such run, or several begin like that.
    """
    matches = [name] if name in ids else [key for key in ids if name and key.startswith(name)]
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise RequestError(
            f"{len(matches)} runs {location} begin with '{name}'.", hint=f"The newest of them is {matches[-1]}."
        )
    raise RequestError(
        f"There is no run '{name}' {location}.", hint=did_you_mean(name, ids, listing=LISTING) if ids else ""
    )


def newest(found: Recorded) -> Run:
    """Return the newest run that was not refused, or the newest one if all were.

    Raises:
        RequestError: if a damaged run may be newer: ids begin with the time.
    """
    runs = [run for run in found.runs if run.state != REFUSED] or found.runs
    damaged = max((one.folder.name for one in found.damaged), default="")
    if not runs or damaged > runs[-1].id:
        known = f" The newest that can be read: {runs[-1].id}." if runs else ""
        raise RequestError(
            f"The last run may be {damaged}, which is damaged.",
            hint=f"Name the run that is meant, or `orch clean` first.{known}",
        )
    return runs[-1]


def has_begun(run: Run) -> bool:
    """Return whether a run got as far as its ranks; a run that could not be started is recorded as failed."""
    if run.state in ("planned", REFUSED):
        return False
    left = (files.SUPERVISOR, files.EVENTS)
    return run.state != FAILED or bool(run.record.location) or any((run.folder / name).exists() for name in left)


def done(base: Path, key: str) -> Run | None:
    """Return the newest run of this key if it is done, or None."""
    keyed = (run for run in recorded(base).runs if run.record.key == key)
    runs = [run for run in keyed if has_begun(run)]
    return runs[-1] if runs and runs[-1].state == DONE else None


def unfinished(base: Path, key: str) -> Resume | None:
    """The newest run of this key, if it ended before its time and can be carried on. One of another
    user's is not: a checkpoint is a program to whoever loads it."""
    keyed = (run for run in recorded(base).runs if run.record.key == key)
    runs = (run for run in keyed if not other_owner(run.folder))
    same = [run for run in runs if has_begun(run)]
    if not same or same[-1].state not in (FAILED, PREEMPTED, STOPPED, "killed"):
        return None
    run = same[-1]
    if not run.record.resumes or run.record.output_dir is None:
        return None
    return Resume(run_id=run.id, state=run.state, output_dir=run.record.output_dir, precision=run.record.precision)
