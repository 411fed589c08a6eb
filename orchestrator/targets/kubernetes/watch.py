"""A run on Kubernetes that is being watched; it lives on without that."""

from __future__ import annotations

import queue
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from orch_node.protocol import files
from orch_node.protocol.events import Ended, Event, Heartbeat, Launched, NodeNews, NodesLost, Started
from orch_node.protocol.record import RunRecord

from orchestrator.errors import ConnectionLost, ExecuteError, OrchError
from orchestrator.runs import store
from orchestrator.runs.outcome import Outcome, outcome_of
from orchestrator.targets.interface import Tell
from orchestrator.targets.kubernetes import admission
from orchestrator.targets.kubernetes.api import retry
from orchestrator.targets.kubernetes.api.client import Kube
from orchestrator.targets.kubernetes.api.errors import NotThere, Refused
from orchestrator.targets.kubernetes.follow import Follower, of_now
from orchestrator.targets.kubernetes.kueue import describe_unmanaged, why_suspended
from orchestrator.targets.kubernetes.local_copy import RunCopy
from orchestrator.targets.kubernetes.manifests import names
from orchestrator.targets.kubernetes.manifests.helper_pods import SUFFIX as READER_SUFFIX
from orchestrator.targets.kubernetes.objects import STOPPED, delete_objects
from orchestrator.targets.kubernetes.run_record import location_of
from orchestrator.targets.kubernetes.status import (
    BEING_DELETED,
    DELETED,
    JobState,
    job_state,
    made_at,
    pod_state,
    unseen,
)

POLL_SECONDS = 2.0
GIVE_UP_SECONDS = 300.0
DRAIN_SECONDS = 20.0
UNSEEN_SECONDS = 20.0
FOLLOW_SECONDS = 0.5


class KubeWatch:
    """Follows a run's pods into its folder here. `tell` gets what is to be said of the cluster."""

    def __init__(self, record: RunRecord, folder: Path, tell: Tell, cluster: Kube) -> None:
        self.record = record
        self.at = location_of(record)
        self.folder = folder
        self.tell = tell
        self.cluster = cluster
        self.selector = names.selector(record.run_id)
        self.copy = RunCopy(folder, ranks=len(record.layout))
        self.follower = Follower(cluster, self.selector)
        self.began = time.time()
        self.lost_since: float | None = None
        self.queue_checked = False
        self.ranks_started = False
        self.job_made: float | None = None
        self.watched = False  # by somebody of this process, who writes what comes into the folder

    def started(self) -> None:
        """The API has the job: nothing more is needed."""
        self.job()

    def job(self) -> dict[str, Any]:
        return self.cluster.job(self.at.group, self.at.version, self.at.plural, self.at.job)

    def hold(self) -> bool:
        """Of several commands that watch a run, one follows the pods: whether it is this one."""
        if not self.copy.hold():
            return False
        self.follower.read_to.update(self.copy.positions)
        return True

    def leave(self) -> None:
        """Follow the pods no more."""
        self.follower.ended.set()
        self.copy.release()

    # Following.

    def events(self) -> Iterator[Event]:
        """Events of the run, from its beginning until it has ended. Raises ExecuteError."""
        self.watched = True
        try:
            yield from self.followed()
        except OrchError as error:
            raise ExecuteError(
                f"{error.message} The run goes on, and is not followed any more.",
                hint=f"{error.hint} `orch attach {self.record.run_id}` follows it again.".lstrip(),
            ) from None
        finally:
            self.watched = False

    def followed(self) -> Iterator[Event]:
        told = 0
        while True:
            held = self.hold()
            run = store.load(self.folder)
            events = run.events()
            yield from events[told:]
            told = len(events)
            self.ranks_started = any(isinstance(event, Started) for event in events)
            if run.outcome is not None:
                return
            if held:
                break
            time.sleep(FOLLOW_SECONDS)
            yield of_now(Heartbeat())
        if not told:
            self.follower.items.put(self.launched())
        self.follower.begin()
        state, looked = None, time.monotonic()
        while state is None:
            yield from self.take_items(FOLLOW_SECONDS)
            yield of_now(Heartbeat())  # who follows the logs looks again
            if time.monotonic() - looked > POLL_SECONDS:
                state, looked = self.look() or self.end_late_start(), time.monotonic()
        yield from self.drain()
        yield self.finish_with(state)

    def launched(self) -> Event:
        """When the cluster made the job: who watches may have come later."""
        nodes = tuple(host.node for host in self.record.nodes)
        event = of_now(Launched(ranks=len(self.record.layout), nodes=nodes))
        try:
            made = made_at(self.job())
        except OrchError:  # that is told where the job is looked at
            made = None
        return replace(event, time=made) if made else event

    def look(self) -> JobState | None:
        """How the job ended, or None while it has not. Raises ExecuteError."""
        try:
            job = self.job()
        except NotThere:
            words = f"the job {self.at.job} is gone: somebody deleted it, or its time was over"
            return JobState(state="failed", words=words, gone=True)
        except (ConnectionLost, Refused) as error:
            self.note_loss(error)
            return None
        if self.lost_since is not None:
            self.tell(f"the API answers again after {time.monotonic() - self.lost_since:.0f} s")
            self.lost_since = None
        self.job_made = made_at(job)
        found = job_state(job)
        there = len(self.follower.pods)
        if there < len(self.record.nodes) and (words := admission.refusal_of(self.cluster, self.at.job)):
            which = "some of its pods" if there else "its pods"
            self.follower.tell_once("pods", f"{which} are not admitted: {words}", same=admission.without_pod(words))
        elif unseen(job) and time.time() - self.began > UNSEEN_SECONDS:
            words = f"no operator has taken up {self.at.job}: is it running?"
            self.follower.tell_once("job", f"{words} `orch k8s check` looks")
        if time.time() - self.began > UNSEEN_SECONDS and not self.queue_checked:
            self.queue_checked = True
            self.follower.tell_once("queue", describe_unmanaged(self.cluster, job))
        if found.state == "suspended":
            self.follower.tell_once("job", why_suspended(self.cluster, job) or found.words)
        return found if found.state in ("done", "failed") else None

    def end_late_start(self) -> JobState | None:
        """Delete the run's objects if its ranks have not started within its wait limit.

        Raises:
            ExecuteError: if they cannot be deleted.
        """
        limit = self.at.wait_limit
        if limit is None or self.ranks_started or self.job_made is None:
            return None
        if time.time() - self.job_made <= limit:
            return None
        reasons = self.follower.reasons_to_wait()
        self.follower.ended.set()  # do not report the deletion of its pods
        delete_objects(self.cluster, self.at, self.record.run_id)
        message = f"its ranks have not started within {limit} s (--wait-limit): {reasons}"
        return JobState(state="failed", words=message, gone=True)

    def note_loss(self, error: ExecuteError) -> None:
        now = time.monotonic()
        if self.lost_since is None:
            self.lost_since = now
            self.tell(f"{error.message} The run goes on; asking again.")
        limit = retry.REFUSED_SECONDS if isinstance(error, Refused) else GIVE_UP_SECONDS
        if now - self.lost_since > limit:
            raise error

    def take_items(self, seconds: float) -> Iterator[Event]:
        """What has come from the cluster, written down; its events."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            try:
                item = self.follower.items.get(timeout=left)
            except queue.Empty:
                break
            if isinstance(item, OrchError):
                raise item
            if isinstance(item, Event):
                if not self.of_the_stop(item):
                    self.copy.add_event(item)
                    yield item
            elif (event := self.copy.write(item)) is not None and not self.of_the_stop(event):
                self.ranks_started = self.ranks_started or isinstance(event, Started)
                yield event
        self.copy.keep_positions()

    def of_the_stop(self, event: Event) -> bool:
        """Whether it tells that a pod is lost which `orch stop` has deleted."""
        about_pods = isinstance(event, NodesLost | Ended) or (
            isinstance(event, NodeNews) and event.text.endswith((DELETED, BEING_DELETED))
        )
        return about_pods and (self.folder / STOPPED).exists()

    # The end.

    def drain(self) -> Iterator[Event]:
        """What the pods have still to say."""
        deadline = time.monotonic() + DRAIN_SECONDS
        while self.follower.reading():
            if time.monotonic() > deadline:
                break
            yield from self.take_items(0.2)
        yield from self.queued()
        self.follower.ended.set()

    def queued(self) -> Iterator[Event]:
        """What has come already."""
        while not self.follower.items.empty():
            yield from self.take_items(0.05)

    def finish_with(self, job: JobState) -> Event:
        """Write the outcome, if nobody has; -> the event that says so."""
        return self.copy.finish(job, self.follower.pods.values())

    def catch_up(self) -> dict[str, ExecuteError]:
        """Bring what the pods have said until now, without waiting for more.

        -> node -> why its log could not be read. Raises ExecuteError if there is no list of pods.
        """
        missed: dict[str, ExecuteError] = {}
        if not self.hold():  # who follows the pods brings it within moments
            return missed
        for pod in self.cluster.objects("Pod", self.selector):
            uid, name = pod["metadata"]["uid"], pod["metadata"]["name"]
            if name.endswith(READER_SUFFIX):
                continue
            state = self.follower.pods[uid] = pod_state(pod)
            try:
                if state.started:
                    self.follower.read(uid, name, follow=False)
            except NotThere:
                pass
            except ExecuteError as error:
                missed[state.node] = error
        for _ in self.queued():
            pass
        self.copy.keep_positions()
        return missed

    def finish(self) -> Outcome:
        """How the run ended, or stands: logs are here then."""
        if not (self.folder / files.OUTCOME).exists():
            self.renew()
        self.copy.release()
        return outcome_of(store.load(self.folder))

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
