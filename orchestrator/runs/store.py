"""Folders of runs: RUNS/<id>/ with plan.json, the files of the run, its logs and its outcome.

Runs that cannot be read are named, skipped, and moved away by `orch clean`.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shlex
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from orch_node import atomic_write, disk, lease
from orch_node.agent.run_folders import DAMAGED_FOLDER, set_aside
from orch_node.protocol import files, values
from orch_node.protocol import record as records
from orch_node.protocol.events import Event, Launched
from orch_node.protocol.outcome import DONE, FAILED, PREEMPTED, REFUSED, STOPPED, Outcome
from orch_node.protocol.record import RunRecord
from orch_node.tail import Kind, last_text, newest_event

from orchestrator.errors import ExecuteError, RequestError, did_you_mean
from orchestrator.files import make_user_folder, other_owner, write_whole
from orchestrator.model.decision import array_values
from orchestrator.planning.plan import Plan
from orchestrator.planning.request import RUNS_DIR
from orchestrator.runs import queued
from orchestrator.runs.events import stored
from orchestrator.runs.origin import Origin, origin_of
from orchestrator.runs.state_files import read_outcome, supervisor_of, write_json

GIT_IGNORE = ".gitignore"  # keeps the folder of all runs out of the user's git repository
ENDED = (DONE, FAILED, REFUSED, STOPPED, PREEMPTED, lease.KILLED)
LOST = "lost"  # no recorded state: that of a running run whose node0 does not respond while --force resumes it
UNFINISHED = (FAILED, PREEMPTED, STOPPED, lease.KILLED, LOST)  # states of runs that `orch resume` continues
UNFETCHED = "unfetched"  # file in the local folder of a remote run until its logs and results are there
SUPERVISOR_ENDED = "gone"  # file in the local folder of a remote run whose supervisor has ended
Notify = Callable[[str], None]  # called with each line for the user
NO_FOLDER = (errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.EPERM, errno.EROFS)  # wrong --runs-dir, not a full disk
LISTING = "`orch runs` lists the runs."


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A recorded run.

    Attributes:
        id: the id of the run.
        folder: the local folder of the run.
        record: the record of the run.
        origin: what the run was made from.
        outcome: the recorded outcome, or None.
        state: planned, queued, running, done, failed, refused, preempted, stopped, killed, or unknown if its
            supervisor is on a host that cannot be checked from this machine.
        problems: messages about files that cannot be read and are treated as missing.
    """

    id: str
    folder: Path
    record: RunRecord
    origin: Origin
    outcome: Outcome | None
    state: str
    problems: tuple[str, ...] = ()

    def events(self) -> list[Event]:
        """Return the complete events; events that cannot be read are replaced by UnreadableEvent."""
        return stored(self.folder / files.EVENTS, ranks=len(self.record.layout))

    @property
    def nodes(self) -> tuple[str, ...]:
        """Return the nodes of the run in the order of its ranks."""
        return tuple(dict.fromkeys(placement.node for placement in self.record.layout))

    @property
    def has_ended(self) -> bool:
        return self.state in ENDED

    @property
    def is_behind(self) -> bool:
        """Return whether nodes may have events, logs or results of the run that are not here."""
        return self.outcome is None or (self.folder / UNFETCHED).exists()

    def newest(self, kind: type[Kind]) -> Kind | None:
        """Return the newest event of a kind, if possible of rank 0, or None."""
        return newest_event(self.folder / files.EVENTS, kind)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """The runs below a folder, oldest first, and the folders of runs that cannot be read, with the reasons."""

    runs: tuple[Run, ...]
    damaged: dict[Path, str]

    def warnings(self) -> Iterator[str]:
        """Yield a warning for each damaged run and each file that cannot be read."""
        yield from self.damaged.values()
        for run in self.runs:
            yield from run.problems


def runs_dir_option(base: Path) -> str:
    """Return the option that names the folder of all runs, or '' for the default."""
    return "" if base.absolute() == Path(RUNS_DIR).absolute() else f" --runs-dir {shlex.quote(str(base))}"


def cli_arguments(folder: Path) -> str:
    """Return the arguments with which commands find the run or the array of a folder: its id, and --runs-dir."""
    return f"{folder.name}{runs_dir_option(folder.parent)}"


def create(plan: Plan, folder: Path) -> None:
    """Create the run's folder with plan.json.

    Raises:
        ExecuteError: if plan.json cannot be written, or that of the last attempt is damaged.
        RequestError: if the folder cannot be created, which suggests a wrong `--runs-dir`.
    """
    origin = origin_of(plan)
    if plan.project and exists(folder) and (earlier := load(folder).origin).project == plan.project:
        origin = replace(origin, scripts=earlier.scripts)  # as it was sent; it may have changed here
    write_record(plan.run, folder, origin)


def write_record(record: RunRecord, folder: Path, origin: Origin | None = None) -> None:
    """Write plan.json with the record of a run, and its origin if it is known.

    Raises:
        ExecuteError: if plan.json cannot be written.
        RequestError: if the folder cannot be created, which suggests a wrong `--runs-dir`.
    """
    make_folder(folder)
    with explained_errors(folder):
        write_json(folder / files.PLAN, records.render(record) | (values.record(origin) if origin else {}))


def make_folder(folder: Path) -> None:
    """Create the folder of a run or of a queue, and the folder of all runs.

    Raises:
        OrchError: as write_record().
    """
    with explained_errors(folder):
        if not folder.parent.exists():
            write_whole(make_user_folder(folder.parent) / GIT_IGNORE, "*\n")
        make_user_folder(folder)


@contextlib.contextmanager
def explained_errors(folder: Path) -> Iterator[None]:
    """Turn the errors of the file system into those of write_record()."""
    try:
        yield
    except OSError as error:
        kind = RequestError if error.errno in NO_FOLDER else ExecuteError
        raise kind.about("folder-of-runs", problem=disk.describe_error(folder, error)) from None


def exists(folder: Path) -> bool:
    """Return whether a folder has the record of a run."""
    return (folder / files.PLAN).exists()


def load(folder: Path) -> Run:
    """Load a run from its folder; all code that reads recorded runs uses this function.

    Raises:
        ExecuteError: if plan.json is damaged.
    """
    path = folder / files.PLAN
    try:
        value = values.loads(atomic_write.read(path), files.PLAN)
        record, origin = records.parse(value), values.read(Origin, value, files.PLAN, ignore_unknown=True)
        if record.run_id != folder.name:
            raise values.ProtocolError(f"it is the plan of run {record.run_id}.")
    except (OSError, values.ProtocolError) as error:
        new_folder = folder.parent / DAMAGED_FOLDER
        raise ExecuteError.about("damaged-record", path=path, error=error, folder=folder, target=new_folder) from None
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
    """Return the state as known on this machine; a remote run counts as running until its end is seen."""
    queue = queued.queue_of(folder)
    if queue and queued.is_active(queue):  # the end of a failed start is not the end of the run
        return queued.QUEUED
    if outcome is not None:
        return outcome.state
    if record.location:  # only the run's target knows its state; there is no supervisor file
        return "running"
    if queue:
        return lease.KILLED
    supervisor = supervisor_of(folder)
    if record.node0.via:
        supervisor_ended = (folder / SUPERVISOR_ENDED).exists()
        return "planned" if supervisor is None else "killed" if supervisor_ended else "running"
    if supervisor is None:  # an unreadable supervisor file shows that the run has begun
        did_end = last_text(folder / files.SUPERVISOR_LOG, 1000).startswith("error: ")
        return "killed" if did_end or (folder / files.SUPERVISOR).exists() else "planned"
    return lease.state_of(folder, supervisor)


def recorded(base: Path) -> Recorded:
    """Return all runs below `base`; a damaged run does not hide the other runs.

    Raises:
        RequestError: if it is not a folder, or this user may not read it.
    """
    if os.access(base, os.F_OK) and not (base.is_dir() and os.access(base, os.R_OK | os.X_OK)):
        owner = f", because it belongs to {other_owner(base)}" if other_owner(base) else ""
        problem = f"cannot be read{owner}" if base.is_dir() else "is not a folder"
        raise RequestError(f"{base} {problem}.", hint="Name a folder of your own: --runs-dir FOLDER.")
    runs: list[Run] = []
    damaged: dict[Path, str] = {}
    for folder in sorted(path.parent for path in base.glob(f"*/{files.PLAN}")):
        if folder.is_symlink() and folder.resolve().parent == base.resolve():
            continue  # a link to one of these runs, such as `latest`
        try:
            runs.append(load(folder))
        except ExecuteError as error:
            damaged[folder] = f"{error.message} ({error.hint.removesuffix('.')})"
    runs.sort(key=lambda run: (run.record.created, run.id))
    return Recorded(runs=tuple(runs), damaged=damaged)


def array_of(base: Path, name: str) -> str:
    """Return the id of the array whose runs have a name, or `name` itself if the newest such run is in no array."""
    matches = [run for run in recorded(base).runs if run.record.name == name]
    is_member = matches and array_values(matches[-1].record.decisions)
    return matches[-1].id.rpartition("-")[0] if is_member else name


def members(base: Path, array: str, notify: Notify = lambda line: None) -> tuple[Run, ...]:
    """Return the runs of an array by its id or name, in its order; nothing if there is no such array.

    Args:
        base: the folder of all runs.
        array: the id or name of the array.
        notify: called with a warning for each run of the array that is damaged.
    """
    member = re.compile(rf"{re.escape(array_of(base, array))}-(\d+)", re.ASCII)
    all_runs = recorded(base)
    for folder, reason in all_runs.damaged.items():
        if member.fullmatch(folder.name):
            notify(f"warning: {reason}")
    runs = {int(match[1]): run for run in all_runs.runs if (match := member.fullmatch(run.id))}
    return tuple(runs[number] for number in sorted(runs))


def find(base: Path, name: str, notify: Notify = lambda line: None) -> Run:
    """Return a run by its id, a unique prefix of its id, or `last`.

    Args:
        base: the folder of all runs.
        name: the id, a prefix of it, or `last`.
        notify: called with each warning.

    Raises:
        RequestError: if there is no such run, or several runs match.
        ExecuteError: if the run is damaged.
    """
    all_runs = recorded(base)
    runs = all_runs.runs
    if base / name in all_runs.damaged:
        load(base / name)  # raises an error with the reason
    for line in all_runs.warnings():
        notify(f"warning: {line}")
    if not runs and not all_runs.damaged:
        raise RequestError.about("no-runs", base=base)
    refused = [run.id for run in runs if run.state == REFUSED]
    run_id = ""
    if runs or name != "last":
        run_id = match_id(name, [run.record for run in runs], f"in {base}", notify, refused=refused)
    damaged = max((folder.name for folder in all_runs.damaged if not runs or folder.name[:1].isdigit()), default="")
    if name == "last" and damaged > run_id:  # an id begins with the time
        suggestion = f" The newest that can be read: {run_id}." if run_id else ""
        raise RequestError.about("damaged-last-run", damaged=damaged, suggestion=suggestion)
    return next(run for run in runs if run.id == run_id)


def match_id(
    name: str, records: Sequence[RunRecord], location: str, notify: Notify, *, refused: Collection[str] = ()
) -> str:
    """Return the id of the run whose id or name is `name`, or of the only one whose id begins with it.

    Args:
        name: an id, its beginning, the name of runs, of which the newest is meant, or `last` for the newest run.
        records: the known runs, the oldest first.
        location: the place of the runs as part of messages: `in runs`.
        notify: called with the id if several runs have the name.
        refused: the ids of runs that are the last one if there are only such runs.

    Raises:
        RequestError: if there is no such run, or several ids begin with `name`.
    """
    ids = [record.run_id for record in records]
    if name == "last" and ids:
        return ([run_id for run_id in ids if run_id not in refused] or ids)[-1]
    matches = [record.run_id for record in records if name and record.name == name and name not in ids]
    if matches:
        if len(matches) > 1:
            notify(f"{len(matches)} runs have the name {name}; this is the newest: {matches[-1]}")
        return matches[-1]
    matches = [name] if name in ids else [key for key in ids if name and key.startswith(name)]
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise RequestError.about("several-runs", name=name, count=len(matches), location=location, newest=matches[-1])
    hint = did_you_mean(name, [*ids, *{record.name for record in records}], listing=LISTING) if ids else ""
    raise RequestError(f"There is no run '{name}' {location}.", hint=hint)


def can_resume(run: Run) -> bool:
    """Return whether a run ended early, is not another user's, and is to be started again from here.

    Runs of other users are not resumed, because loading a checkpoint can execute its code.
    """
    is_unfinished = run.state in UNFINISHED or (run.state == REFUSED and was_launched(run))
    return is_unfinished and bool(run.origin.request) and not other_owner(run.folder)


def was_launched(run: Run) -> bool:
    """Return whether ranks of a run were started at any time; a resumed run may be refused after that."""
    return any(isinstance(event, Launched) for event in run.events())


@dataclass(frozen=True, slots=True, kw_only=True)
class Positions:
    """The sizes of a run's files at the end of its earlier attempts.

    Attributes:
        events: the bytes of events.jsonl.
        logs: the bytes of each local copy of a rank's log, also of those of other nodes.
    """

    events: int = 0
    logs: Mapping[Path, int] = field(default_factory=dict)


def positions(folder: Path) -> Positions:
    """Return the sizes of the files of a run's earlier attempts, as they are on this machine."""
    events = folder / files.EVENTS
    logs = {path: path.stat().st_size for path in (folder / files.RANKS).rglob("rank-*.log")}
    return Positions(events=events.stat().st_size if events.exists() else 0, logs=logs)


def move_logs(folder: Path, before: RunRecord, now: RunRecord) -> None:
    """Move the local logs of ranks that run on another node from now on, and back what they have on that node."""
    earlier_nodes = {placement.rank: placement.node for placement in before.layout}
    nodes = {placement.rank: placement.node for placement in now.layout}
    moving = [rank for rank in earlier_nodes | nodes if earlier_nodes.get(rank) != nodes.get(rank)]
    for rank in moving:
        for path in (folder / files.RANKS).glob(f"rank-{rank}.*"):
            moved = folder / files.MOVED_LOGS.format(earlier_nodes[rank])
            moved.mkdir(mode=0o700, exist_ok=True)
            path.rename(moved / path.name)
        if rank in nodes:
            for path in (folder / files.MOVED_LOGS.format(nodes[rank])).glob(f"rank-{rank}.*"):
                path.rename(folder / files.RANKS / path.name)


def plan_bytes(folder: Path) -> bytes | None:
    """Return the content of plan.json in a run's folder, or None if there is none."""
    path = folder / files.PLAN
    return atomic_write.read(path) if path.exists() else None


def record_end(folder: Path, state: str, problem: str | None = None) -> None:
    """Record the state of a run that has not begun, if that can still be written."""
    now = time.time()
    end = Outcome(state=state, problem=problem, started=now, ended=now)
    with contextlib.suppress(OSError):
        write_json(folder / files.OUTCOME, values.record(end))


def forget_end(folder: Path) -> None:
    """Remove from the local folder of a run what reports the end of its last attempt."""
    for name in (files.OUTCOME, files.SUPERVISOR, SUPERVISOR_ENDED):
        (folder / name).unlink(missing_ok=True)


def quarantine(folder: Path) -> str | None:
    """Move the folder of a damaged run away without deleting anything.

    Returns:
        The new path of the folder, or None if a process of the run may still be running.

    Raises:
        ExecuteError: if the folder cannot be moved.
    """
    try:
        return set_aside(folder)
    except OSError as error:
        raise ExecuteError.about("unmovable-run", folder=folder, error=error) from None
