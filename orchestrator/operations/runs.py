"""Find, list, follow, fetch and clean up recorded runs."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path, PurePosixPath

from orch_node.agent.run_folders import report_of
from orch_node.protocol.events import Event, Waiting
from orch_node.protocol.files import PLAN
from orch_node.protocol.outcome import REFUSED, STOPPED
from orch_node.protocol.record import DEFAULT_TARGET, RunRecord

from orchestrator.errors import OrchError, RequestError
from orchestrator.files import other_owner
from orchestrator.model.hosts import Nodes
from orchestrator.planning.plan import Plan
from orchestrator.planning.run_files import project_copy, working_directory
from orchestrator.runs import queued, store
from orchestrator.runs.fetch import Collected, FetchListener
from orchestrator.runs.logs import LogLine
from orchestrator.runs.outcome import CleanupReport, RunOutcome, outcome_of, precision_of
from orchestrator.runs.rows import row_of
from orchestrator.runs.store import Run
from orchestrator.targets import registry
from orchestrator.targets.interface import FetchRequest, NodeCommands, Notify, RunHandle, RunList, ignore

REFRESH_WORKERS = 8
QUERY_SECONDS = 5.0  # time limit for the hosts of recorded runs that may have ended
POLL_SECONDS = 0.5


def find(runs_dir: Path, name: str, inventory: str | None, notify: Notify = ignore) -> RunHandle:
    """Return a run by its ID, or the newest one for `last`.

    Args:
        runs_dir: the folder of all run folders.
        name: the ID, or `last`.
        inventory: query the hosts of this inventory, which finds runs started on any machine.
        notify: receives warnings.

    Raises:
        RequestError: if there is no such run.
    """
    base = runs_dir.absolute()
    if inventory is None:
        handle = handle_of(store.find(base, name, notify))
    else:
        handle = registry.target_at(inventory).find(base, name, inventory, notify)
    handle.notify = notify
    return handle


def handle_of(run: Run) -> RunHandle:
    """Return the handle of a recorded run.

    Raises:
        RequestError: if the record belongs to another user. It names programs and connections,
            which must not be used on behalf of somebody else.
    """
    if user := other_owner(run.folder) or other_owner(run.folder / PLAN):
        raise RequestError.about("run-of-another", run=run, user=user)
    if run.state == queued.QUEUED:
        return WaitingRun(run.folder)
    return registry.target_of(run.record).handle(run.record, run.folder)


def find_refreshed(base: Path, name: str, inventory: str | None, notify: Notify) -> Run:
    """Return a run with the latest state that its nodes report, and with its logs and results.

    Args:
        base: the folder of all run folders.
        name: the ID, or `last`.
        inventory: query the hosts of this inventory.
        notify: receives the names of nodes that did not respond.

    Raises:
        RequestError: if there is no such run.
    """
    handle = find(base, name, inventory, notify)
    if store.load(handle.folder).is_behind:
        handle.finish()
    return store.load(handle.folder)


def update(runs: Iterable[Run], notify: Notify) -> list[Run]:
    """Return recorded runs as find_refreshed() does."""
    return [find_refreshed(run.folder.parent, run.id, None, notify) if run.is_behind else run for run in runs]


def list_recorded_runs(base: Path, inventory: str | None) -> RunList:
    """Return the runs recorded on this machine or on the hosts of an inventory.

    The hosts of recorded runs that are not known to have ended are queried. The state of a run is `unknown` if they
    do not respond within QUERY_SECONDS.
    """
    if inventory is not None:
        return registry.target_at(inventory).list_runs(inventory, base.absolute())
    problems = refresh_live(base)
    recorded = store.recorded(base)
    rows = (
        row_of(
            run.record,
            report_of(run.folder, run.outcome),
            state="unknown" if run.id in problems else run.state,
            nodes=run.nodes,
            wait=queued.describe_wait(run.folder) if run.state == queued.QUEUED else "",
            folder=str(run.folder),
            precision=precision_of(run),
        )
        for run in recorded.runs
    )
    warnings = (f"{run.id}: {problems[run.id]}; last seen {run.state}" for run in recorded.runs if run.id in problems)
    return RunList(rows=tuple(rows), warnings=(*recorded.warnings(), *warnings))


def find_live(base: Path, name: str, inventory: str | None, notify: Notify) -> tuple[RunHandle, tuple[str, ...]]:
    """Return a run, and the IDs of all further runs that have not ended.

    For `last`, the run is the newest one that has not ended. On an inventory, runs in state `unknown`, such as those of
    other inventories with the same hosts, come after all others. For an ID, the second value is empty.

    Raises:
        RequestError: if there is no such run.
    """
    if name != "last":
        return find(base, name, inventory, notify), ()
    if inventory is None:
        for run_id, problem in refresh_live(base).items():
            notify(f"{run_id}: {problem}")
        live = [run.id for run in store.recorded(base).runs if not run.has_ended]
    else:
        rows = [row for row in list_recorded_runs(base, inventory).rows if row.state not in store.ENDED]
        live = [row.id for row in sorted(rows, key=lambda row: row.state != "unknown")]
    return find(base, live[-1] if live else name, inventory, notify), tuple(live[:-1])


def refresh_live(base: Path) -> dict[str, str]:
    """Update the records of runs on other machines that are not known to have ended.

    Returns:
        Why the state of a run could not be updated, by the run's id.
    """
    return refresh([run for run in store.recorded(base).runs if not run.has_ended and not is_local(run.record)])


def refresh(runs: Sequence[Run], handles: Mapping[str, RunHandle] | None = None) -> dict[str, str]:
    """Update the records of runs in parallel, through these handles or new ones.

    Returns:
        Why the state of a run could not be updated, by the run's id.
    """
    problems = {run.id: f"no response within {QUERY_SECONDS:.0f} s" for run in runs}
    slots = threading.Semaphore(REFRESH_WORKERS)

    def refresh_run(run: Run) -> None:
        with slots:
            try:
                ((handles or {}).get(run.id) or handle_of(run)).refresh()
                del problems[run.id]
            except OrchError as error:
                problems[run.id] = error.message.removesuffix(".")

    # A thread pool would wait for hosts that do not respond when this program ends.
    threads = [threading.Thread(target=refresh_run, args=(run,), daemon=True) for run in runs]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + QUERY_SECONDS
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    return dict(problems)


def is_local(record: RunRecord) -> bool:
    """Return whether all ranks run on this machine, without a batch system."""
    return record.target == DEFAULT_TARGET and not any(node.via for node in record.nodes)


def clean(runs_dir: Path, inventory: str | None, *, dry_run: bool) -> CleanupReport:
    """Remove leftovers of ended runs on this machine or an inventory's hosts; only report them with `dry_run`."""
    return registry.target_at(inventory).clean(inventory, runs_dir.absolute(), dry_run=dry_run)


def handles_of(plan: Plan, base: Path, notify: Notify) -> list[RunHandle]:
    """Return the handles of those runs of a plan that are recorded in the folder `base`."""
    folders = [base / member.run.run_id for member in plan.array or (plan,)]
    handles = [handle_of(store.load(folder)) for folder in folders if store.exists(folder)]
    for handle in handles:
        handle.notify = notify
    return handles


def follow_array(handles: Sequence[RunHandle], notify: Notify) -> Iterator[RunOutcome]:
    """Yield the outcomes of runs in their order, passing on why a run waits."""
    for handle in handles:
        try:
            for event in handle.events():
                if isinstance(event, Waiting):
                    notify(f"{handle.record.run_id}: {event.text}")
            yield handle.finish()
        except OrchError as error:
            notify(f"{handle.record.run_id}: {error.message}")
            yield outcome_of(store.load(handle.folder))


def interrupt_all(handles: Sequence[RunHandle], names: Collection[str]) -> list[RunOutcome]:
    """Ask the supervisors of the runs with these ids to stop them, and return the outcomes."""
    unfinished = [handle for handle in handles if handle.record.run_id in names]
    for handle in unfinished:
        handle.interrupt()
    return [handle.finish() for handle in unfinished]


def array_exit_code(outcomes: Sequence[RunOutcome]) -> int:
    """Return 1 if a run has failed, otherwise the first exit code that is not 0."""
    codes = [result.exit_code for result in outcomes if result.exit_code]
    return 1 if 1 in codes else next(iter(codes), 0)


def fetch(handle: RunHandle, request: FetchRequest, listener: FetchListener, *, code: bool = False) -> Collected:
    """Copy files of a run to this machine.

    Args:
        handle: the run.
        request: the files. Without a `source`, the run's output folder, or what it has written in its copy of the
            project. A relative `source` is one in that folder, or else in the folder in which the script has started.
        listener: receives the progress.
        code: copy the run's project as it was sent instead.

    Raises:
        RequestError: if the output folder or the project is unknown, or no file matches.
        ExecuteError: if the copy fails.
    """
    collected = handle.fetch(with_source(handle, request, code=code), listener)
    if request.patterns and not collected.files and not collected.skipped:
        raise RequestError.about("no-matching-file", source=collected.source, patterns=" or ".join(request.patterns))
    return collected


def with_source(handle: RunHandle, request: FetchRequest, *, code: bool) -> FetchRequest:
    """Return the request with the project of a run, or with the folders that may be meant.

    Raises:
        RequestError: if no project was sent or only a part of it is requested, or the output folder is unknown.
    """
    record, origin = handle.record, store.load(handle.folder).origin
    project, output, copy = origin.project, find_output(handle), project_copy(record.run_dir)
    if output is None and not origin.request and not has_output_here(record):
        output = copy  # another machine has started the run, and knows the project
    if code and (request.source or request.patterns):
        raise RequestError("--code brings the whole project as it was sent.", hint="Leave --from and --only out.")
    if code and project is None:
        raise RequestError.about("no-recorded-project", run_id=record.run_id)
    if code:
        return replace(request, project=project)
    if request.source:
        bases = filter(None, (output, working_directory(project, record.run_dir)))
        user_path = str(Path(request.source).absolute()) if has_output_here(record) else request.source
        paths = [*(str(PurePosixPath(base, request.source)) for base in bases), user_path]
        return replace(request, folders=tuple(dict.fromkeys(paths)))
    if output is None and has_output_here(record):
        raise RequestError.about("files-of-this-machine", record=record, origin=origin)
    if output is None:
        raise RequestError.about("unknown-output", record=record)
    sent = project.files if project else {}
    return replace(request, folders=(output,), unchanged=sent if output == copy else None)


def has_output_here(record: RunRecord) -> bool:
    """Return whether the output of a run is on this machine."""
    return not record.node0.via and not record.location


def find_output(handle: RunHandle) -> str | None:
    """Return the last --output_dir among the script's arguments, the recipe's folder, or the copy of the project."""
    record, folder = handle.record, handle.record.output_dir
    origin = store.load(handle.folder).origin
    arguments = origin.script_args
    for argument, following in zip_longest(arguments, arguments[1:], fillvalue=""):
        option, is_joined, value = argument.partition("=")
        if option in ("--output_dir", "--output-dir"):
            folder = value if is_joined else following
    if origin.project:
        base = working_directory(origin.project, record.run_dir)
        return str(PurePosixPath(base, folder)) if folder else project_copy(record.run_dir)
    return str(Path(folder).absolute()) if folder and has_output_here(record) else folder


class WaitingRun(RunHandle):
    """A handle of a run that waits on this machine for free nodes, and of the same run after its start."""

    def __init__(self, folder: Path) -> None:
        super().__init__(store.load(folder).record, folder)  # its nodes are decided at the start
        self.queue = queued.queue_of(folder) or folder
        self.started_run: RunHandle | None = None

    @property
    def waits(self) -> bool:
        return store.load(self.folder).state == queued.QUEUED

    @property
    def handle(self) -> RunHandle:
        """Return the handle of the started run.

        Raises:
            RequestError: if it still waits.
        """
        run = store.load(self.folder)
        if run.state == queued.QUEUED:
            wait, arguments = queued.describe_wait(self.folder), store.cli_arguments(self.folder)
            raise RequestError.about("waiting-run", run=run, wait=wait, arguments=arguments)
        if self.record.layout != run.record.layout and run.record.node0.via:  # the start may have moved them
            self.earlier = replace(self.earlier, logs=store.positions(self.folder).logs)
        if self.started_run is None or self.record != run.record:
            self.started_run = handle_of(run)
        self.record = run.record
        handle = copy(self.started_run)  # its copies share what they learn of the run
        handle.earlier, handle.notify = self.earlier, self.notify
        return handle

    def started(self) -> None:
        """Return at once: the run waits."""

    def await_start(self) -> Iterator[Waiting]:
        """Yield what the run waits for, whenever that changes, until it starts or is stopped."""
        shown = ""
        while self.waits:
            if (reason := queued.describe_wait(self.folder)) != shown:
                shown = reason
                yield Waiting(time=time.time(), text=reason)
            time.sleep(POLL_SECONDS)

    def events(self) -> Iterator[Event]:
        while True:
            yield from self.await_start()
            yield from self.handle.events()
            if not self.is_put_back():
                return

    def is_put_back(self) -> bool:
        """Return whether the run waits again, because another run has taken its cores; the queue decides that."""
        while store.load(self.folder).state == REFUSED and queued.is_active(self.queue):
            time.sleep(POLL_SECONDS)
        return self.waits

    def logs(self, *, rank: int | None, follow: bool) -> Iterator[LogLine]:
        while True:
            if follow:
                for _ in self.await_start():
                    pass
            yield from self.handle.logs(rank=rank, follow=follow)
            if not (follow and self.is_put_back()):
                return

    def stop(self) -> CleanupReport:
        if not self.waits:
            return self.handle.stop()
        store.record_end(self.folder, STOPPED)
        queued.unmark(self.folder)
        return CleanupReport(run_id=self.folder.name, seconds=0.0, nodes=())

    def interrupt(self) -> None:
        if self.waits:
            self.stop()
        else:
            self.handle.interrupt()

    def refresh(self) -> None:
        if not self.waits:
            self.handle.refresh()

    def finish(self) -> RunOutcome:
        return outcome_of(store.load(self.folder)) if self.waits else self.handle.finish()

    def discard(self) -> None:
        self.handle.discard()

    def commands(self, nodes: Nodes | None) -> NodeCommands:
        return self.handle.commands(nodes)

    def fetch(self, request: FetchRequest, listener: FetchListener) -> Collected:
        return self.handle.fetch(request, listener)


@contextmanager
def in_folder_of(run: Run) -> Iterator[None]:
    """Work in the folder in which a run was requested, to which the paths in its request are relative.

    Raises:
        RequestError: if the folder is gone.
    """
    previous_directory = Path.cwd()
    try:
        os.chdir(run.origin.directory)
    except OSError as error:
        raise RequestError.about("missing-folder-of-request", run=run, error=error) from None
    try:
        yield
    finally:
        os.chdir(previous_directory)
