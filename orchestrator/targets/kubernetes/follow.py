"""Background threads that put the changes and the logs of a run's pods into one queue."""

from __future__ import annotations

import queue
import threading
import time
from dataclasses import dataclass, replace
from typing import Any

from orch_node.protocol.events import Event, NodeNews

from orchestrator.errors import ConnectionLost, ExecuteError, OrchError
from orchestrator.targets.kubernetes.api.client import KubernetesClient
from orchestrator.targets.kubernetes.api.errors import Expired, NotThere, Refused, RejectionTimer
from orchestrator.targets.kubernetes.log_lines import Position, Reader
from orchestrator.targets.kubernetes.manifests.pods import READER_SUFFIX
from orchestrator.targets.kubernetes.status import DELETED, PodState, pod_state

RETRY_SECONDS = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadLine:
    """A line of a pod's log."""

    pod: str  # uid
    position: Position  # after this line
    text: str


class Follower:
    """The threads that follow a run's pods: one for their changes, and one for each log."""

    def __init__(self, cluster: KubernetesClient, selector: str) -> None:
        self.cluster = cluster
        self.selector = selector
        self.read_positions: dict[str, Position] = {}  # by uid
        self.items: queue.Queue[Event | ReadLine | OrchError] = queue.Queue()  # an error ends it
        self.pods: dict[str, PodState] = {}  # the newest state, by uid
        self.readers: dict[str, threading.Thread] = {}
        self.deleted: set[str] = set()  # their logs are gone; a new pod may have the same name
        self.reported: dict[str, str] = {}
        self.messages: dict[str, str] = {}  # the newest about a pod, by uid, or about something else
        self.ended = threading.Event()

    def start(self) -> None:
        threading.Thread(target=self.watch, daemon=True).start()

    def is_reading(self) -> bool:
        return any(reader.is_alive() for reader in self.readers.values())

    def report_once(self, about: str, message: str, *, same: str = "") -> None:
        """Report a message unless it repeats the last one about this.

        Args:
            about: the uid of a pod, or another subject.
            message: reported only if it is not empty.
            same: what identifies repetitions, if that is not the message itself.
        """
        identity = same or message
        if message and self.reported.get(about) != identity:
            self.reported[about] = identity
            self.messages[about] = message
            self.items.put(with_current_time(NodeNews(text=message)))

    def reasons_to_wait(self) -> str:
        """Return the newest messages of the cluster about waiting pods and about the job."""
        pods = [pod for pod in self.pods.values() if pod.state == "waiting" and pod.reason]
        about_job = (self.messages.get(about) for about in ("job", "pods"))
        reasons = [*(f"{pod.node}: {pod.reason}" for pod in pods), *filter(None, about_job)]
        return "; ".join(reasons) or "the cluster gives no reason"

    def watch(self) -> None:
        """Handle the changes of the run's pods until the end, and renew watches that expire."""
        refusals = RejectionTimer()
        while not self.ended.is_set():
            try:
                for change, pod in self.cluster.watch_pods(self.selector):
                    self.handle_change(change, pod)
                    if self.ended.is_set():
                        return
            except (Expired, ConnectionLost, NotThere):
                self.ended.wait(RETRY_SECONDS)
            except Refused as error:
                if refusals.is_over():
                    self.items.put(error)
                    return
                self.ended.wait(RETRY_SECONDS)

    def handle_change(self, change: str, pod: dict[str, Any]) -> None:
        uid, name = pod["metadata"]["uid"], pod["metadata"]["name"]
        if name.endswith(READER_SUFFIX):
            return
        if change == "DELETED":
            self.deleted.add(uid)
            state = self.pods.get(uid)
            is_active = state is not None and state.state in ("waiting", "running")
            if state and is_active and not state.lost and not self.ended.is_set():
                self.report_once(uid, f"{state.node}: {DELETED}")
            return
        state = pod_state(pod, self.pod_events(pod))
        before, self.pods[uid] = self.pods.get(uid), state
        if state.reason and not (before and is_repeated(before.reason, state.reason)):
            self.report_once(uid, f"{state.node}: {state.reason}")
        reader = self.readers.get(uid)
        if state.started and (reader is None or (not reader.is_alive() and state.state == "running")):
            reader = threading.Thread(target=self.keep_reading, args=(uid, name), daemon=True)
            self.readers[uid] = reader
            reader.start()

    def pod_events(self, pod: dict[str, Any]) -> list[dict[str, Any]]:
        """Return the events of a waiting pod, or none if the user may not list events."""
        if pod.get("status", {}).get("phase", "Pending") != "Pending":
            return []
        try:
            return self.cluster.events_of(pod["metadata"]["name"])
        except OrchError:
            return []

    def keep_reading(self, uid: str, pod: str) -> None:
        """Read the log of a pod while it runs, and reopen streams that end earlier."""
        refusals = RejectionTimer()
        while not self.ended.is_set() and uid not in self.deleted:
            running = self.pods[uid].state == "running"
            try:
                self.read(uid, pod, follow=True)
                if not running:
                    return
            except ConnectionLost:
                pass
            except NotThere:
                return
            except Refused as error:
                if refusals.is_over():
                    self.items.put(error)
                    return
            self.ended.wait(RETRY_SECONDS)

    def read(self, uid: str, pod: str, *, follow: bool) -> None:
        """Put the lines of a pod's log into the queue, from the last position on.

        Raises:
            ConnectionLost: if the stream breaks.
            Refused: if the user may not read logs.
            NotThere: if the pod is gone.
        """
        reader = Reader(self.read_positions.get(uid, Position()))
        try:
            for line in self.cluster.log(pod, follow=follow, since=reader.since):
                text = reader.new(line)
                self.read_positions[uid] = reader.position
                if text is not None:
                    self.items.put(ReadLine(pod=uid, position=reader.position, text=text))
        except (ConnectionLost, Refused, NotThere):
            raise
        except ExecuteError:  # the container has no log yet
            pass


def is_repeated(before: str, now: str) -> bool:
    """Return whether a pod has the same problem as before.

    The kubelet reports that an image cannot be pulled alternately with and without the cause.
    """
    return bool(before) and (before.startswith(now) or now == before)


def with_current_time(event: Event) -> Event:
    return replace(event, time=round(time.time(), 3))
