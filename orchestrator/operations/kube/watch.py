"""A run on Kubernetes that is being watched; it lives on without that."""

from __future__ import annotations

import json
import queue
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from orchestrator import runs
from orchestrator.backends.kube import Kube
from orchestrator.backends.kube_connect import connect
from orchestrator.backends.kube_errors import Expired, NotThere, Refused
from orchestrator.card import Whereabouts
from orchestrator.errors import ConnectionLost, ExecuteError, OrchError
from orchestrator.kube import names
from orchestrator.kube.lines import Position, Reader, parse
from orchestrator.kube.outcome import outcome
from orchestrator.kube.reader import SUFFIX as READER_SUFFIX
from orchestrator.kube.status import JobState, PodState, job_state, pod_state, unseen
from orchestrator.mirror import GIVE_UP_SECONDS
from orchestrator.report.outcome import Outcome, outcome_of

POLL_SECONDS = 2.0
RETRY_SECONDS = 1.0
DRAIN_SECONDS = 20.0
UNSEEN_SECONDS = 20.0
POSITIONS = "kube.json"
Item = tuple[str, Any]


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
        self.items: queue.Queue[Item] = queue.Queue()
        self.pods: dict[str, PodState] = {}  # uid -> its newest state
        self.readers: dict[str, threading.Thread] = {}
        self.positions = read_positions(folder)  # of what is written down here
        self.read_to = dict(self.positions)
        self.said: dict[str, str] = {}
        self.ended = threading.Event()
        self.began = time.time()
        self.lost_since: float | None = None

    def started(self) -> None:
        """The API has the job: nothing more is needed."""
        self.cluster.job(*self.job_path())

    def job_path(self) -> tuple[str, str, str, str]:
        return self.kube.group, self.kube.version, self.kube.plural, self.kube.job

    # Following.

    def events(self) -> Iterator[dict[str, Any]]:
        """Events of the run, from its beginning until it has ended."""
        run = runs.load(self.folder)
        yield from run.events()
        if run.outcome is not None:
            return
        if not run.events():
            nodes = [target.node for target in self.where.nodes]
            ranks = len(run.plan["layout"])
            launched = self.own_event("launched", attempt=1, ranks=ranks, nodes=nodes)
            self.items.put(("event", launched))
        threading.Thread(target=self.watch_pods, daemon=True).start()
        state = None
        while state is None:
            yield from self.take_items(POLL_SECONDS)
            state = self.look()
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
            self.tell_once("job", f"no operator has taken up {self.kube.job}: is it running? "
                                  "`orch k8s check` looks")  # fmt: skip
        if found.state == "suspended":
            self.tell_once("job", found.words)
        return found if found.state in ("done", "failed") else None

    def note_loss(self, error: ExecuteError) -> None:
        now = time.monotonic()
        if self.lost_since is None:
            self.lost_since = now
            self.tell(f"{error.message} The run goes on; asking again.")
        if now - self.lost_since > GIVE_UP_SECONDS:
            raise error

    def tell_once(self, about: str, words: str) -> None:
        if words and self.said.get(about) != words:
            self.said[about] = words
            self.items.put(("event", self.own_event("node", text=words)))

    def own_event(self, event: str, **fields: Any) -> dict[str, Any]:
        return {"event": event, "rank": -1, "time": round(time.time(), 3), **fields}

    def take_items(self, seconds: float) -> Iterator[dict[str, Any]]:
        """What has come from the cluster, written down; its events."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            try:
                kind, value = self.items.get(timeout=left)
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

    # What runs beside.

    def watch_pods(self) -> None:
        """Every change of the run's pods, until the end; watches that end are begun anew."""
        while not self.ended.is_set():
            try:
                for change, pod in self.cluster.watch_pods(names.selector(self.where.run_id)):
                    self.see(change, pod)
                    if self.ended.is_set():
                        return
            except (Expired, ConnectionLost, NotThere):
                self.ended.wait(RETRY_SECONDS)
            except Refused as error:
                self.items.put(("error", error))
                return

    def see(self, change: str, pod: dict[str, Any]) -> None:
        uid, name = pod["metadata"]["uid"], pod["metadata"]["name"]
        if name.endswith(READER_SUFFIX):
            return
        if change == "DELETED":
            gone = self.pods.get(uid)
            if gone and gone.state in ("waiting", "running") and not self.ended.is_set():
                self.tell_once(uid, f"{gone.node}: its pod was deleted")
            return
        state = pod_state(pod, self.pod_events(pod))
        self.pods[uid] = state
        self.tell_once(uid, f"{state.node}: {state.words}" if state.words else "")
        alive = self.readers.get(uid)
        if state.started and (alive is None or (not alive.is_alive() and state.state == "running")):
            self.readers[uid] = threading.Thread(target=self.read, args=(uid, name), daemon=True)
            self.readers[uid].start()

    def pod_events(self, pod: dict[str, Any]) -> list[dict[str, Any]]:
        """Only for pods that wait, and only where one may read them."""
        if pod.get("status", {}).get("phase", "Pending") != "Pending":
            return []
        try:
            return self.cluster.events_of(pod["metadata"]["name"])
        except OrchError:
            return []

    def read(self, uid: str, pod: str, *, follow: bool = True) -> None:
        """A pod's log from where it was read to, across lost connections."""
        reader = Reader(self.read_to.get(uid, Position()))
        while True:
            try:
                for line in self.cluster.log(pod, follow=follow, since=reader.since):
                    text = reader.new(line)
                    self.read_to[uid] = reader.position
                    if text is not None:
                        self.items.put(("line", (uid, reader.position, text)))
                return
            except ConnectionLost:
                if self.ended.wait(RETRY_SECONDS) and not follow:
                    return
            except ExecuteError:  # the pod is gone, or has no log
                return

    # The end.

    def drain(self) -> Iterator[dict[str, Any]]:
        """What the pods have still to say."""
        deadline = time.monotonic() + DRAIN_SECONDS
        while any(reader.is_alive() for reader in self.readers.values()):
            if time.monotonic() > deadline:
                break
            yield from self.take_items(0.2)
        while not self.items.empty():
            yield from self.take_items(0.05)
        self.ended.set()

    def finish_with(self, job: JobState, *, state: str | None = None) -> dict[str, Any]:
        """Write the outcome; -> the event that says so."""
        events = runs.load(self.folder).events()
        self.relocate(events)
        began = min((one["time"] for one in events), default=self.began)
        record = outcome(events, self.pods.values(), job, began=began, now=time.time())
        if state:
            record |= {"state": state, "first_failure": None, "problem": None}
        event = self.own_event("finished", state=record["state"])
        self.append("events.jsonl", json.dumps(event))
        (self.folder / "outcome.json").write_text(json.dumps(record, indent=1) + "\n")
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
        kept = {uid: asdict(position) for uid, position in self.positions.items()}
        (self.folder / POSITIONS).write_text(json.dumps(kept) + "\n")

    def catch_up(self) -> None:
        """Bring what the pods have said until now, without waiting for more."""
        selector = names.selector(self.where.run_id)
        for pod in self.cluster.objects("Pod", selector):
            uid, name = pod["metadata"]["uid"], pod["metadata"]["name"]
            state = pod_state(pod)
            if name.endswith(READER_SUFFIX):
                continue
            self.pods[uid] = state
            if state.started:
                self.read(uid, name, follow=False)
        while not self.items.empty():
            for _ in self.take_items(0.05):
                pass
        self.keep_positions()

    def stop(self) -> None:
        """Delete the job, and wait until its pods are gone."""
        from orchestrator.operations.kube.stop import stop

        self.ended.set()
        stop(self.where, self.folder, cluster=self.cluster)

    def finish(self) -> Outcome:
        """How the run ended, or stands: logs are here then."""
        if not (self.folder / "outcome.json").exists():
            self.renew()
        self.keep_positions()
        return outcome_of(runs.load(self.folder))

    def renew(self) -> None:
        """The run as the cluster knows it now."""
        try:
            self.catch_up()
            if (state := self.look()) is not None:
                self.finish_with(state)
        except OrchError as error:
            self.tell(error.message)


def read_positions(folder: Path) -> dict[str, Position]:
    found = runs.read_json(folder / POSITIONS) or {}
    return {uid: Position(**value) for uid, value in found.items()}
