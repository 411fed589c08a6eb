"""A run's pods, followed beside: their changes and their logs, into one queue."""

from __future__ import annotations

import queue
import threading
import time
from dataclasses import dataclass, replace
from typing import Any

from orch_node.protocol.events import Event, NodeNews

from orchestrator.errors import ConnectionLost, ExecuteError, OrchError
from orchestrator.targets.kubernetes.api.client import Kube
from orchestrator.targets.kubernetes.api.errors import Expired, NotThere, Refused
from orchestrator.targets.kubernetes.api.retry import RefusalTimer
from orchestrator.targets.kubernetes.log_lines import Position, Reader
from orchestrator.targets.kubernetes.manifests.helper_pods import SUFFIX as READER_SUFFIX
from orchestrator.targets.kubernetes.status import DELETED, PodState, pod_state

RETRY_SECONDS = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadLine:
    """A line of a pod's log. `pod`: its uid; `position`: how far the log is read with it."""

    pod: str
    position: Position
    text: str


class Follower:
    """`items` gets what is new: events of the cluster's, lines of pods, and what ended it all.

    `read_to`: pod's uid -> how far its log has been read. `pods`: uid -> its newest state.
    """

    def __init__(self, cluster: Kube, selector: str) -> None:
        self.cluster = cluster
        self.selector = selector
        self.read_to: dict[str, Position] = {}
        self.items: queue.Queue[Event | ReadLine | OrchError] = queue.Queue()
        self.pods: dict[str, PodState] = {}
        self.readers: dict[str, threading.Thread] = {}
        self.deleted: set[str] = set()  # a pod of the same name may follow: its log is not theirs
        self.said: dict[str, str] = {}
        self.messages: dict[str, str] = {}  # the newest about a pod, by uid, or about something else
        self.ended = threading.Event()

    def begin(self) -> None:
        threading.Thread(target=self.watch, daemon=True).start()

    def reading(self) -> bool:
        return any(reader.is_alive() for reader in self.readers.values())

    def tell_once(self, about: str, words: str, *, same: str = "") -> None:
        """Report a message unless the last one about this is the same, or has the same `same`."""
        identity = same or words
        if words and self.said.get(about) != identity:
            self.said[about] = identity
            self.messages[about] = words
            self.items.put(of_now(NodeNews(text=words)))

    def reasons_to_wait(self) -> str:
        """Return what the cluster has last reported about pods that wait, and about the job."""
        pods = [pod for pod in self.pods.values() if pod.state == "waiting" and pod.words]
        about_job = (self.messages.get(about) for about in ("job", "pods", "queue"))
        reasons = [*(f"{pod.node}: {pod.words}" for pod in pods), *filter(None, about_job)]
        return "; ".join(reasons) or "the cluster gives no reason"

    def watch(self) -> None:
        """Every change of the run's pods, until the end; watches that end are begun anew."""
        refusals = RefusalTimer()
        while not self.ended.is_set():
            try:
                for change, pod in self.cluster.watch_pods(self.selector):
                    self.see(change, pod)
                    if self.ended.is_set():
                        return
            except (Expired, ConnectionLost, NotThere):
                self.ended.wait(RETRY_SECONDS)
            except Refused as error:
                if refusals.is_over():
                    self.items.put(error)
                    return
                self.ended.wait(RETRY_SECONDS)

    def see(self, change: str, pod: dict[str, Any]) -> None:
        uid, name = pod["metadata"]["uid"], pod["metadata"]["name"]
        if name.endswith(READER_SUFFIX):
            return
        if change == "DELETED":
            self.deleted.add(uid)
            gone = self.pods.get(uid)
            ended = gone is None or gone.state not in ("waiting", "running")
            if gone and not ended and not gone.lost and not self.ended.is_set():
                self.tell_once(uid, f"{gone.node}: {DELETED}")
            return
        state = pod_state(pod, self.pod_events(pod))
        before, self.pods[uid] = self.pods.get(uid), state
        if state.words and not (before and is_same(before.words, state.words)):
            self.tell_once(uid, f"{state.node}: {state.words}")
        alive = self.readers.get(uid)
        if state.started and (alive is None or (not alive.is_alive() and state.state == "running")):
            reader = threading.Thread(target=self.keep_reading, args=(uid, name), daemon=True)
            self.readers[uid] = reader
            reader.start()

    def pod_events(self, pod: dict[str, Any]) -> list[dict[str, Any]]:
        """Only for pods that wait, and only where one may read them."""
        if pod.get("status", {}).get("phase", "Pending") != "Pending":
            return []
        try:
            return self.cluster.events_of(pod["metadata"]["name"])
        except OrchError:
            return []

    def keep_reading(self, uid: str, pod: str) -> None:
        """A pod's log for as long as it runs, also where a stream ends before it does."""
        refusals = RefusalTimer()
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
        """A pod's log from where it was read to. Raises ConnectionLost, Refused and NotThere."""
        reader = Reader(self.read_to.get(uid, Position()))
        try:
            for line in self.cluster.log(pod, follow=follow, since=reader.since):
                text = reader.new(line)
                self.read_to[uid] = reader.position
                if text is not None:
                    self.items.put(ReadLine(pod=uid, position=reader.position, text=text))
        except (ConnectionLost, Refused, NotThere):
            raise
        except ExecuteError:  # it has no log yet
            pass


def is_same(before: str, now: str) -> bool:
    """Whether it is the same trouble: the kubelet tells of an image with and without its cause, in
    turn."""
    return bool(before) and (before.startswith(now) or now == before)


def of_now(event: Event) -> Event:
    return replace(event, time=round(time.time(), 3))
