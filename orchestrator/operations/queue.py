"""Let runs wait for free nodes of an inventory: record them, and start or end the process that starts them."""

from __future__ import annotations

import contextlib
import json
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from subprocess import PIPE, Popen

from orch_node import permissions
from orch_node.protocol.outcome import REFUSED
from orch_node.tail import last_text

from orchestrator.errors import ExecuteError
from orchestrator.model.hosts import fold
from orchestrator.model.project import Project
from orchestrator.operations import runs
from orchestrator.planning.plan import Plan
from orchestrator.planning.recorded_request import WITH_SECRETS
from orchestrator.runs import queued, store
from orchestrator.runs.outcome import CleanupReport, RunOutcome, outcome_of
from orchestrator.targets.fetch import has_project
from orchestrator.targets.interface import Notify, RunHandle

PROCESS = "orchestrator.operations.queue_process"
START_SECONDS = 30.0  # time limit for the process to begin
STOP_SECONDS = 60.0  # time limit for all runs of a queue to stop
POLL_SECONDS = 1.0
SNAPSHOT = "project"  # the folder of a queue with a copy of the project as it was submitted
LOG_CHARACTERS = 2000  # of the log of a process that did not start


def submit(plan: Plan, base: Path) -> RunHandle:
    """Let the runs of a plan wait for free nodes, and return the first one.

    Args:
        plan: the plan of a run or of an array, on nodes that may be busy.
        base: the folder of all runs.

    Raises:
        OrchError: if the runs cannot be recorded, the queue has a process already, or the process does not begin.
    """
    members = {member.run.run_id: member for member in plan.array or (plan,)}
    first = next(iter(members))
    queue = base / (first.rpartition("-")[0] if plan.array else first)
    unmasked = {name: {key: getattr(member.request, key) for key in WITH_SECRETS} for name, member in members.items()}
    store.make_folder(queue)
    # The runs wait as long as this is locked. An exception keeps it open until it is handled: Ctrl-C stops them.
    lock = queued.lock(queue, store.runs_dir_option(base))
    (queue / queued.STOP).unlink(missing_ok=True)
    for name, member in members.items():
        folder = base / name
        # Its record names the nodes of the last attempt, which have its files, until the next one starts.
        store.create(replace(member, run=store.load(folder).record) if store.exists(folder) else member, folder)
        queued.mark(base / name, queue.name)
        store.forget_end(base / name)
    if plan.project:
        copy_project(plan.project, queue)
    earlier = store.positions(base / first)
    begin(base, queue, json.dumps({"unmasked": unmasked, "limit": plan.max_active}), lock.fileno())
    lock.close()
    handle = runs.handle_of(store.load(base / first))
    handle.earlier = earlier
    return handle


def copy_project(project: Project, queue: Path) -> None:
    """Copy the files of a project to the folder of a queue, unless it has them.

    Files of the project of a resumed run may be gone; with_snapshot() uses only a whole copy.
    """
    folder = queue / SNAPSHOT
    if has_project(folder, project):
        return
    shutil.rmtree(folder, ignore_errors=True)
    for name in project.files:
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            shutil.copy2(Path(project.folder, name), target, follow_symlinks=False)


def begin(base: Path, queue: Path, arguments: str, lock: int) -> None:
    """Start the process of a queue, which inherits its lock, and wait until it has its place among the queues.

    It gets its arguments on standard input, because they may contain secrets, which are not recorded.

    Raises:
        ExecuteError: if it does not begin.
    """
    with permissions.open_private(queue / queued.LOG) as log:
        command = [sys.executable, "-m", PROCESS, str(base), queue.name]
        process = Popen(command, stdin=PIPE, stdout=log, stderr=log, cwd="/", start_new_session=True, pass_fds=(lock,))
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError), process.stdin as pipe:
        pipe.write(arguments.encode())
    deadline = time.monotonic() + START_SECONDS
    while (state := queued.read_state(queue)) is None or state.pid != process.pid:
        if process.poll() is not None or time.monotonic() > deadline:
            output = last_text(queue / queued.LOG, LOG_CHARACTERS).strip() or "it printed nothing"
            raise ExecuteError.about("queue-start", queue=queue, output=output, arguments=store.cli_arguments(queue))
        time.sleep(0.02)


def follow(base: Path, names: Sequence[str], notify: Notify) -> Iterator[RunOutcome]:
    """Yield the outcomes of runs as they end, and pass on where each of them starts.

    The process of the queue keeps the files of the runs on this machine up to date.

    Args:
        base: the folder of all runs.
        names: the ids of the runs of a queue.
        notify: called with the node on which a run starts.
    """
    pending, started = list(names), dict.fromkeys(names, "")
    queue = queued.queue_of(base / names[0]) or base / names[0].rpartition("-")[0]
    while pending:
        is_active = queued.is_active(queue)
        for name in [name for name in pending if not store.exists(base / name)]:
            pending.remove(name)
            notify(f"{name}: its folder was deleted")
        for run in [store.load(base / name) for name in pending]:
            if run.has_ended and not (is_active and run.state == REFUSED):
                pending.remove(run.id)
                yield outcome_of(run)
            elif run.state != queued.QUEUED and (nodes := fold(run.nodes)) != started[run.id]:
                started[run.id] = nodes
                notify(f"{run.id}: started on {nodes}")
        time.sleep(POLL_SECONDS)


def stop_array(base: Path, array: str) -> list[CleanupReport] | None:
    """Stop all runs of an array, and return a report for each that had not ended; None if there is no such array.

    Raises:
        ExecuteError: if the process that starts its runs does not end.
    """
    members = store.members(base, array)
    unfinished = [run for run in members if not run.has_ended]
    stop(base / store.array_of(base, array))  # also the queue of a single run
    return [runs.handle_of(store.load(run.folder)).stop() for run in unfinished] if members else None


def stop(queue: Path) -> None:
    """End the process of a queue, which stops its runs, if it lives.

    Raises:
        ExecuteError: if it does not end in time.
    """
    deadline = time.monotonic() + STOP_SECONDS
    while queued.is_active(queue):
        (queue / queued.STOP).touch()
        if time.monotonic() > deadline:
            raise ExecuteError.about("endless-queue", queue=queue, arguments=store.cli_arguments(queue))
        time.sleep(0.1)
