"""A run on Kubernetes that is being watched; it lives on without that."""

from __future__ import annotations

import fcntl
import json
import queue
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

from orchestrator import runs
from orchestrator.backends.kube import Kube
from orchestrator.backends.kube_connect import connect
from orchestrator.backends.kube_errors import NotThere
from orchestrator.card import Whereabouts
from orchestrator.errors import ConnectionLost, ExecuteError, OrchError
from orchestrator.kube import names
from orchestrator.kube.lines import Position, parse
from orchestrator.kube.outcome import outcome
from orchestrator.kube.reader import SUFFIX as READER_SUFFIX
from orchestrator.kube.status import JobState, job_state, pod_state, unseen
from orchestrator.mirror import GIVE_UP_SECONDS
from orchestrator.operations.kube.follow import Follower, own_event
from orchestrator.report.outcome import Outcome, outcome_of

POLL_SECONDS = 2.0
DRAIN_SECONDS = 20.0
UNSEEN_SECONDS = 20.0
FOLLOW_SECONDS = 0.5
POSITIONS = "kube.json"
LOCK = "kube.lock"
STOPPED = "stop"  # a file: `orch stop` has deleted the job


def ignore(line: str) -> None:
    pass


class KubeWatch:
    """Follows a run's pods into its folder here. `tell` gets what is to be said of the cluster."""

    def __init__(
        self, where: Whereabouts, folder: Path, tell: Callable[[str], None] = ignore, *,
        cluster: Kube | None = None,
    ) -> None:  # fmt: skip
        assert where.kube is not None
        self.where = where
        self.kube = where.kube
        self.folder = folder
        self.tell = tell
        self.cluster = cluster or connect(self.kube.context, self.kube.namespace)
        self.positions: dict[str, Position] = {}  # of what is written down here
        self.selector = names.selector(where.run_id)
        self.follower = Follower(self.cluster, self.selector)
        self.began = time.time()
        self.lost_since: float | None = None
        self.lock: IO[bytes] | None = None

    def started(self) -> None:
        """The API has the job: nothing more is needed."""
        self.cluster.job(*self.job_path())

    def job_path(self) -> tuple[str, str, str, str]:
        return self.kube.group, self.kube.version, self.kube.plural, self.kube.job

    # Of several commands that watch a run, one follows the pods into the folder.

    def hold(self) -> bool:
        """Whether that is this one; it goes on from where the last one was."""
        if self.lock is None:
            lock = (self.folder / LOCK).open("wb")
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                lock.close()
                return False
            except OSError:  # a file system without locks
                pass
            self.lock = lock
            self.positions = read_positions(self.folder)
            self.follower.read_to.update(self.positions)
        return True

    def release(self) -> None:
        self.keep_positions()
        if self.lock is not None:
            self.lock.close()
            self.lock = None

    # Following.

    def events(self) -> Iterator[dict[str, Any]]:
        """Events of the run, from its beginning until it has ended."""
        told = 0
        while True:
            held = self.hold()
            run = runs.load(self.folder)
            events = run.events()
            yield from events[told:]
            told = len(events)
            if run.outcome is not None:
                return
            if held:
                break
            time.sleep(FOLLOW_SECONDS)
            yield own_event("pulse")
        if not told:
            nodes = [target.node for target in self.where.nodes]
            ranks = len(run.plan["layout"])
            launched = own_event("launched", attempt=1, ranks=ranks, nodes=nodes)
            self.follower.items.put(("event", launched))
        self.follower.begin()
        state, looked = None, time.monotonic()
        while state is None:
            yield from self.take_items(FOLLOW_SECONDS)
            yield own_event("pulse")  # who follows the logs looks again
            if time.monotonic() - looked > POLL_SECONDS:
                state, looked = self.look(), time.monotonic()
        yield from self.drain()
        yield self.finish_with(state)

    def look(self) -> JobState | None:
        """How the job ended, or None while it has not. Raises ExecuteError."""
        try:
            job = self.cluster.job(*self.job_path())
        except NotThere:
            words = f"the job {self.kube.job} is gone: somebody deleted it, or its time was over"
            return JobState(state="failed", words=words)
        except ConnectionLost as error:
            self.note_loss(error)
            return None
        if self.lost_since is not None:
            self.tell(f"the API answers again after {time.monotonic() - self.lost_since:.0f} s")
            self.lost_since = None
        found = job_state(job)
        if unseen(job) and time.time() - self.began > UNSEEN_SECONDS:
            words = f"no operator has taken up {self.kube.job}: is it running?"
            self.follower.tell_once("job", f"{words} `orch k8s check` looks")
        if found.state == "suspended":
            self.follower.tell_once("job", found.words)
        return found if found.state in ("done", "failed") else None

    def note_loss(self, error: ExecuteError) -> None:
        now = time.monotonic()
        if self.lost_since is None:
            self.lost_since = now
            self.tell(f"{error.message} The run goes on; asking again.")
        if now - self.lost_since > GIVE_UP_SECONDS:
            raise error

    def take_items(self, seconds: float) -> Iterator[dict[str, Any]]:
        """What has come from the cluster, written down; its events."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            try:
                kind, value = self.follower.items.get(timeout=left)
            except queue.Empty:
                break
            if kind == "error":
                raise value
            if kind == "event":
                self.append("events.jsonl", json.dumps(value))
            event = self.write(*value) if kind == "line" else value
            if event is not None:
                yield event
        self.keep_positions()

    def write(self, uid: str, position: Position, line: str) -> dict[str, Any] | None:
        said = parse(line)
        if said.event is None or said.event["event"] != "pulse":
            self.append(said.file, said.text)
        self.positions[uid] = position
        return said.event

    def append(self, name: str, text: str) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8", errors="replace") as file:
            file.write(f"{text}\n")

    # The end.

    def drain(self) -> Iterator[dict[str, Any]]:
        """What the pods have still to say."""
        deadline = time.monotonic() + DRAIN_SECONDS
        while self.follower.reading():
            if time.monotonic() > deadline:
                break
            yield from self.take_items(0.2)
        while not self.follower.items.empty():
            yield from self.take_items(0.05)
        self.follower.ended.set()

    def finish_with(self, job: JobState) -> dict[str, Any]:
        """Write the outcome, if nobody has; -> the event that says so."""
        if (known := runs.load(self.folder).outcome) is not None:
            return own_event("finished", state=known["state"])
        events = runs.load(self.folder).events()
        self.relocate(events)
        began = min((one["time"] for one in events), default=self.began)
        record = outcome(events, self.follower.pods.values(), job, began=began, now=time.time())
        if job.state == "failed" and (self.folder / STOPPED).exists():
            record |= {"state": "stopped", "first_failure": None, "problem": None}
        event = own_event("finished", state=record["state"])
        self.append("events.jsonl", json.dumps(event))
        runs.write_json(self.folder / "outcome.json", record)
        self.keep_positions()
        return event

    def relocate(self, events: list[dict[str, Any]]) -> None:
        """torchrun chooses which pod has which rank: plan.json says it as it was."""
        told = {one["rank"]: one["node"] for one in events if one["event"] == "started"}
        card = runs.load(self.folder).plan
        for place in card["layout"]:
            place["node"] = told.get(place["rank"], place["node"])
        runs.keep(card, self.folder)

    def keep_positions(self) -> None:
        if self.lock is None:
            return
        kept = {uid: asdict(position) for uid, position in self.positions.items()}
        runs.write_json(self.folder / POSITIONS, kept)

    def catch_up(self) -> dict[str, ExecuteError]:
        """Bring what the pods have said until now, without waiting for more.

        -> node -> why its log could not be read. Raises ExecuteError if there is no list of pods.
        """
        missed: dict[str, ExecuteError] = {}
        if not self.hold():  # who follows the pods brings it within moments
            return missed
        for pod in self.cluster.objects("Pod", self.selector):
            uid, name = pod["metadata"]["uid"], pod["metadata"]["name"]
            state = pod_state(pod)
            if name.endswith(READER_SUFFIX):
                continue
            self.follower.pods[uid] = state
            if state.started:
                try:
                    self.follower.read(uid, name, follow=False)
                except NotThere:
                    pass
                except ExecuteError as error:
                    missed[state.node] = error
        while not self.follower.items.empty():
            for _ in self.take_items(0.05):
                pass
        self.keep_positions()
        return missed

    def stop(self) -> None:
        """Delete the job, and wait until its pods are gone."""
        from orchestrator.operations.kube.stop import stop

        self.follower.ended.set()
        self.release()
        stop(self.where, self.folder, cluster=self.cluster)

    def finish(self) -> Outcome:
        """How the run ended, or stands: logs are here then."""
        if not (self.folder / "outcome.json").exists():
            self.renew()
        self.release()
        return outcome_of(runs.load(self.folder))

    def renew(self) -> None:
        """The run as the cluster knows it now; who follows its pods does that already."""
        if not self.hold():
            return
        try:
            for node, error in self.catch_up().items():
                self.tell(f"{node}: {error.message}")
            if (state := self.look()) is not None:
                self.finish_with(state)
        except OrchError as error:
            self.tell(error.message)


def read_positions(folder: Path) -> dict[str, Position]:
    found = runs.read_json(folder / POSITIONS) or {}
    return {uid: Position(**value) for uid, value in found.items()}
