"""Start runs on any free nodes of an inventory, in the order of submission.

A detached process of this machine does it: `python -m orchestrator.operations.queue_process`. It plans each run anew
for the nodes that are free, starts it like `orch resume` starts an attempt, and follows it until it ends. Queues of one
inventory start runs in the order in which they were created: each holds a locked ticket as long as runs wait in it.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from orch_node import permissions
from orch_node.agent.core_claims import locked
from orch_node.protocol.outcome import DONE, FAILED, REFUSED, STOPPED

from orchestrator import load
from orchestrator.errors import ExecuteError, OrchError, RequestError
from orchestrator.files import private_folder, sha256, state_home
from orchestrator.load.clusters import find_inventory
from orchestrator.model.hosts import fold
from orchestrator.model.printable import counted
from orchestrator.operations import resume, runs
from orchestrator.operations.queue import SNAPSHOT
from orchestrator.planning.plan import Plan, StoreFolder
from orchestrator.planning.request import TrainRequest
from orchestrator.runs import queued, store
from orchestrator.runs.store import Run
from orchestrator.targets import registry
from orchestrator.targets.fetch import has_project
from orchestrator.targets.interface import LiveNode, RunHandle, ignore

POLL_SECONDS = 0.25  # with few active runs; a query of one takes some milliseconds of processor time
RUNS_PER_POLL = 8  # with more active runs, polls are as many times as far apart
QUERY_SECONDS = 2.0  # between two queries of busy nodes
LOST_SECONDS = 30.0  # a run whose node0 does not respond for so long is lost
AVOIDED_SECONDS = 60.0  # how long a node is left out after a run could not be started there, or was lost
MAX_LOST = 2  # how often a run is started again after its node was lost
MAX_FAILED_STARTS = 5  # how often the start of a run is tried on other nodes
MAX_THREADS = 64
TICKETS = "queue"  # the folder of the tickets in orch's state folder


@dataclass
class ActiveRun:
    """A run that the queue has started.

    Attributes:
        nodes: the names of its nodes.
        silent_since: when its nodes stopped responding; None while they respond.
    """

    handle: RunHandle
    nodes: frozenset[str]
    silent_since: float | None = None


@dataclass
class Queue:
    """The runs of one command that wait for free nodes, and those that it has started.

    Attributes:
        base: the folder of all runs.
        folder: the folder of the queue.
        waiting: the ids of the waiting runs in the order of their start.
        limit: how many runs may be active at once; None for no limit.
        unmasked: what may contain secrets, which are not recorded: fields of the request, by run.
    """

    base: Path
    folder: Path
    waiting: list[str]
    limit: int | None
    unmasked: Mapping[str, Mapping[str, Sequence[str]]]
    active: dict[str, ActiveRun] = field(default_factory=dict)
    lost: Counter[str] = field(default_factory=Counter)  # how often, by run
    failed_starts: Counter[str] = field(default_factory=Counter)  # in a row, by run
    avoided: dict[str, float] = field(default_factory=dict)  # node -> until when it is not tried again
    next_query: float = 0.0
    next_look: float = 0.0
    released: set[str] = field(default_factory=set)  # nodes whose run of this queue has just ended well
    plans: dict[tuple[str, tuple[str, ...]], Plan] = field(default_factory=dict)  # made ahead, by run and nodes
    planned_for: tuple[str, ...] = ()  # the waiting run, and the active ones for whose nodes it was planned
    cut_off: dict[str, ActiveRun] = field(default_factory=dict)  # whose nodes may train on without a connection
    # Of threads in which a node that does not respond does not delay other runs.
    pool: ThreadPoolExecutor = field(default_factory=partial(ThreadPoolExecutor, MAX_THREADS))

    @property
    def stopped(self) -> bool:
        return (self.folder / queued.STOP).exists()

    def work(self) -> None:
        """Start all runs and wait for their ends."""
        first = store.load(self.base / self.waiting[0])
        with runs.in_folder_of(first):
            inventory = find_inventory(resume.request_of(first).inventory).absolute()
        while (self.waiting or self.active) and not self.stopped:
            if self.waiting:
                with ticket(inventory) as path:
                    self.start_all(path)
            else:
                self.end_finished()  # a lost run waits again
                self.wait()
        if self.stopped:
            self.stop_all()
        self.watch_cut_off()
        self.pool.shutdown()

    def start_all(self, path: Path) -> None:
        """Start the waiting runs, as soon as no queue with an earlier ticket than this one has runs that wait."""
        self.write_state("waits for its turn: runs that were submitted earlier come first")
        while self.waiting and not self.stopped:
            # `orch stop` ends runs that wait.
            self.waiting = [name for name in self.waiting if queued.queue_of(self.base / name) is not None]
            self.end_finished()
            if self.waiting and is_first(path) and self.has_room() and time.monotonic() >= self.next_query:
                self.start_first()
            else:
                self.wait()

    def wait(self) -> None:
        """Do what no run waits for, then sleep until the next poll."""
        self.watch_cut_off()
        if self.waiting:
            self.plan_ahead()
        time.sleep(POLL_SECONDS * max(1.0, len(self.active) / RUNS_PER_POLL))

    def plan_ahead(self) -> None:
        """Plan the first waiting run for nodes of an active one, which it may get when that ends."""
        key = (self.waiting[0], *self.active)
        if key == self.planned_for:
            return
        self.planned_for = key
        run = store.load(self.base / self.waiting[0])
        with contextlib.suppress(OrchError):  # start() reports it
            with runs.in_folder_of(run):
                candidates, count = candidate_nodes(resume.request_of(run))
            for active in self.active.values():
                nodes = tuple(name for name in candidates if name in active.nodes)
                if len(nodes) == count and (run.id, nodes) not in self.plans:
                    self.plans[run.id, nodes] = self.plan(run, nodes)
                    return

    def write_state(self, reason: str) -> None:
        """Write the order of the waiting runs, and what the first one waits for."""
        queued.write_state(self.folder, self.waiting, reason, self.limit)

    def has_room(self) -> bool:
        return self.limit is None or len(self.active) < self.limit

    def start_first(self) -> None:
        """Start the first waiting run on free nodes, or note what it waits for."""
        run = store.load(self.base / self.waiting[0])
        try:
            nodes, reason = self.free_nodes(run)
            if nodes:
                self.start(run, nodes)
            else:
                self.next_query = time.monotonic() + QUERY_SECONDS
                self.write_state(reason)
        except OrchError as error:  # wrong for any nodes
            self.end(run, FAILED, error.message)

    def free_nodes(self, run: Run) -> tuple[tuple[str, ...], str]:
        """Return free nodes for a run, or nothing and what it waits for."""
        request = resume.request_of(run)
        with runs.in_folder_of(run):
            candidates, count = candidate_nodes(request)
            used = {name for active in self.active.values() for name in active.nodes}
            used |= {name for name, end in self.avoided.items() if time.monotonic() < end}
            unused = [name for name in candidates if name not in used]
            if len(unused) < count:
                return (), f"waits for {counted(count, 'free node')} of {fold(candidates)}"
            released = tuple(name for name in unused if name in self.released)[:count]
            self.released.clear()
            if len(released) == count:  # if another run is faster there, this one is refused and waits again
                return released, ""
            listed = registry.find_target(request.on).live_nodes(request.inventory, unused)
        return choose_nodes(listed, count)

    def plan(self, run: Run, nodes: tuple[str, ...]) -> Plan:
        """Return the plan of a run on these nodes."""
        changes = resume.Changes(nodes=",".join(nodes), without_files=run.id in self.lost)
        recorded = resume.request_of(run)
        unmasked: dict[str, Any] = {key: tuple(values) for key, values in self.unmasked[run.id].items()}
        planned = resume.plan(run, changes, self.base, ignore, replace(recorded, **unmasked))
        planned = replace(planned, request=recorded)  # it may start on other nodes again
        return with_snapshot(planned, self.folder)

    def start(self, run: Run, nodes: tuple[str, ...]) -> None:
        """Start a run on these nodes; if they turn out to be unusable, it waits for others."""
        self.write_state(f"starting on {fold(nodes)}")
        try:
            planned = self.plans.get((run.id, nodes)) or self.plan(run, nodes)
            self.plans.clear()
            check_unchanged(run, planned)
            if queued.queue_of(run.folder) is None:
                return  # `orch stop` was faster
            with runs.in_folder_of(run):
                handle = registry.target_of(planned.run).start(planned, run.folder)
        except ExecuteError as error:
            self.failed_starts[run.id] += 1
            if self.failed_starts[run.id] == MAX_FAILED_STARTS:
                raise
            self.avoid(nodes)
            self.put_back(run, f"{fold(nodes)}: {error.message}")
            return
        self.failed_starts.pop(run.id, None)
        self.waiting.remove(run.id)
        self.active[run.id] = ActiveRun(handle=handle, nodes=frozenset(nodes))
        if queued.queue_of(run.folder) is None:  # `orch stop` has ended it during its start
            with contextlib.suppress(OrchError):
                handle.stop()
        queued.unmark(run.folder)
        self.write_state("" if self.has_room() else f"waits: at most {counted(self.limit or 0, 'run')} at a time")

    def avoid(self, nodes: Sequence[str]) -> None:
        """Leave nodes out for some time."""
        self.avoided.update(dict.fromkeys(nodes, time.monotonic() + AVOIDED_SECONDS))

    def put_back(self, run: Run, reason: str) -> None:
        """Let a run wait at the front of the queue again."""
        queued.mark(run.folder, self.folder.name)  # first, or who follows the run sees that it does not wait
        store.forget_end(run.folder)
        if run.id not in self.waiting:
            self.waiting.insert(0, run.id)
        self.write_state(reason)

    def end(self, run: Run, state: str, problem: str | None = None) -> None:
        """Record the end of a run that waits."""
        store.record_end(run.folder, state, problem)
        queued.unmark(run.folder)
        self.waiting.remove(run.id)

    def active_runs(self) -> list[Run]:
        """Return the active runs, and forget those whose folder the user has deleted."""
        loaded = []
        for name in list(self.active):
            try:
                loaded.append(store.load(self.base / name))
            except ExecuteError:
                del self.active[name]
        return loaded

    def end_finished(self) -> None:
        """Collect the files of runs that have ended, and start lost ones again."""
        problems = runs.refresh(self.active_runs(), {name: active.handle for name, active in self.active.items()})
        for run in self.active_runs():
            active = self.active[run.id]
            if run.has_ended:
                self.finish(run, self.active.pop(run.id))
            elif run.id not in problems:
                active.silent_since = None
            elif active.silent_since is None:  # the queue may not have asked for some time
                active.silent_since = time.monotonic()
            elif time.monotonic() - active.silent_since > LOST_SECONDS:
                self.replace_lost(run, self.active.pop(run.id), problems[run.id])

    def finish(self, run: Run, active: ActiveRun) -> None:
        if run.state == REFUSED:  # another run was faster
            self.put_back(run, run.outcome.problem or "" if run.outcome else "")
            self.next_query = time.monotonic() + QUERY_SECONDS
            return
        self.pool.submit(active.handle.finish)
        if run.state == DONE:
            self.released |= active.nodes
        self.next_query = 0.0

    def replace_lost(self, run: Run, active: ActiveRun, problem: str) -> None:
        """Start a run whose nodes do not respond again on others, from what this machine has of it."""
        self.avoid(sorted(active.nodes))
        self.cut_off[run.id] = active
        self.lost[run.id] += 1
        if self.lost[run.id] > MAX_LOST:
            store.record_end(run.folder, FAILED, problem)
        else:
            self.put_back(run, f"{fold(sorted(active.nodes))} was lost: {problem}")

    def watch_cut_off(self) -> None:
        """Follow runs again whose nodes respond again, or end them there if they have started on other nodes."""
        if time.monotonic() < self.next_look:
            return
        self.next_look = time.monotonic() + LOST_SECONDS
        for name, lost in [*self.cut_off.items()]:
            if name not in self.waiting:  # or its folder was deleted
                self.pool.submit(self.end_cut_off, name, lost)
            elif not runs.refresh([store.load(self.base / name)], {name: lost.handle}):
                self.waiting.remove(name)
                queued.unmark(self.base / name)
                self.active[name] = replace(self.cut_off.pop(name), silent_since=None)
                self.write_state("")

    def end_cut_off(self, name: str, lost: ActiveRun) -> None:
        """End what a run has left on nodes that were cut off, unless its new attempt has some of them."""
        current, record = self.active.get(name), replace(lost.handle.record, earlier_nodes=())
        has_moved_back = current is not None and bool(current.nodes & lost.nodes)
        if has_moved_back or registry.target_of(record).handle(record, self.base / name).stop().exit_code == 0:
            self.cut_off.pop(name, None)

    def stop_all(self) -> None:
        """Record that the waiting runs are stopped, and stop the others."""
        for name in list(self.waiting):
            self.end(store.load(self.base / name), STOPPED)
        for active in self.active.values():
            with contextlib.suppress(OrchError):
                active.handle.stop()
            self.pool.submit(active.handle.finish)


def candidate_nodes(request: TrainRequest) -> tuple[tuple[str, ...], int]:
    """Return the nodes on which a run may start, and how many of them it needs."""
    count = request.nodes if isinstance(request.nodes, int) else None
    nodes = request.nodes if count is None else None
    hosts = load.cluster(request.inventory, request.stack, nodes=nodes, exclude=request.exclude).selection.hosts
    return hosts, len(hosts) if count is None else count + request.spare_nodes


def choose_nodes(nodes: Sequence[LiveNode], count: int) -> tuple[tuple[str, ...], str]:
    """Return the first free nodes, or nothing and who uses the others."""
    free = [node.name for node in nodes if node.usage and not node.usage.reserved]
    if len(free) >= count:
        return tuple(free[:count]), ""
    users: dict[str, list[str]] = {}
    for node in nodes:
        if node.usage is None:
            users.setdefault("no response" if node.queried else "not provisioned", []).append(node.name)
        elif node.usage.reserved:
            users.setdefault(f"taken by run {node.usage.reserved[0].run}", []).append(node.name)
    reasons = "; ".join(f"{fold(names)}: {user}" for user, names in users.items())
    return (), f"waits for {counted(count, 'free node')} ({reasons})"


def check_unchanged(run: Run, planned: Plan) -> None:
    """Raise RequestError if a script that runs in place has changed since the run was submitted."""
    recorded, script = run.origin.scripts, planned.resolved.recipe.script_file
    if planned.project is None and script and recorded and sha256(Path(script)) != recorded.sha256:
        raise RequestError.about("changed-script", script=script, run=run)


def with_snapshot(planned: Plan, queue: Path) -> Plan:
    """Return a plan that sends the project as it was submitted, if the queue has it."""
    project = planned.project
    if project is None or not has_project(queue / SNAPSHOT, project):
        return planned
    steps = tuple(
        replace(step, source=str(queue / SNAPSHOT), keeps_copies=False)
        if isinstance(step, StoreFolder) and step.source == project.folder
        else step
        for step in planned.steps
    )
    return replace(planned, steps=steps)


@contextlib.contextmanager
def ticket(inventory: Path) -> Iterator[Path]:
    """Take a place among the queues of an inventory, and yield the path of its ticket."""
    folder = private_folder(state_home() / TICKETS / hashlib.sha256(os.fsencode(inventory)).hexdigest()[:16])
    path = folder / f"{time.time_ns():020d}-{os.getpid()}"
    with permissions.open_private(path) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        try:
            yield path
        finally:
            path.unlink(missing_ok=True)


def is_first(path: Path) -> bool:
    """Return whether no living queue has an earlier ticket; delete the tickets of dead ones."""
    for earlier in sorted(path.parent.iterdir()):
        if earlier == path:
            return True
        with contextlib.suppress(FileNotFoundError), earlier.open("rb") as file:
            if locked(file.fileno()):
                return False
            earlier.unlink()
    return True


def main(base: str, name: str) -> None:
    """Start the runs that standard input names, in the folder `base` of all runs, as the queue of this name.

    The queue is locked as long as this process lives: it has inherited the locked file.
    """
    arguments = json.load(sys.stdin)
    folder = Path(base, name)
    signal.signal(signal.SIGTERM, lambda *_: (folder / queued.STOP).touch())
    try:
        Queue(Path(base), folder, waiting=list(arguments["unmasked"]), **arguments).work()
    except OrchError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main(*sys.argv[1:])
