"""Watch a run on Kubernetes, which does not depend on being watched, and read the logs of its ranks.

Background threads put the logs of the run's pods into one queue.
"""

from __future__ import annotations

import queue
import re
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from typing import Any

from orch_node.protocol import files
from orch_node.protocol.events import Ended, Event, Heartbeat, Launched, NodeNews, NodesLost, Started
from orch_node.protocol.outcome import FAILED

from orchestrator.errors import ConnectionLost, ExecuteError, OrchError, RequestError
from orchestrator.model.hosts import Nodes
from orchestrator.runs import store
from orchestrator.runs.events import last_attempt
from orchestrator.runs.fetch import Collected, FetchListener, NoFolderError, Source, collect
from orchestrator.runs.logs import LogLine, copied_lines, followed_lines, requested_ranks
from orchestrator.runs.outcome import CleanupReport, NodeCleanup, RunOutcome, outcome_of
from orchestrator.targets.fetch import fetch_files
from orchestrator.targets.interface import FetchRequest, NodeCommands, RunHandle
from orchestrator.targets.kubernetes import names, status, volume
from orchestrator.targets.kubernetes.client import KubernetesClient, NotThere, Refused, connect
from orchestrator.targets.kubernetes.local_copy import Position, ReadLine, RunCopy, with_current_time
from orchestrator.targets.kubernetes.objects import STOPPED, UNREAD, await_pods_gone, delete_objects, pods_of, refusal
from orchestrator.targets.kubernetes.run_record import JobLocation, location_of

RETRY_SECONDS = 1.0
REFUSED_SECONDS = 30.0  # an API server that has just started knows neither roles nor tokens
POD_NAME = re.compile(r'pods? "[^"]*"')  # in a refusal: random, and another one at each attempt


class Follower:
    """The pods of a run as they were last listed, and the threads that follow their logs."""

    def __init__(self, cluster: KubernetesClient, positions: Mapping[str, Position]) -> None:
        self.cluster = cluster
        self.positions = positions  # up to which the logs are copied, by uid
        self.items: queue.Queue[Event | ReadLine | OrchError] = queue.Queue()  # an error ends it
        self.pods: dict[str, status.PodState] = {}  # the newest state, by uid
        self.versions: dict[str, str] = {}  # of these states
        self.updates = 0  # while pods were pending
        self.readers: dict[str, threading.Thread] = {}
        self.messages: dict[str, str] = {}  # the newest about a pod, by uid, or about something else
        self.ended = threading.Event()

    def report_once(self, about: str, message: str) -> None:
        """Report a message about a pod (its uid) or another subject, unless it repeats the last one about it."""
        before, self.messages[about] = self.messages.get(about, ""), message
        if POD_NAME.sub("", message) != POD_NAME.sub("", before):
            self.items.put(with_current_time(NodeNews(text=message)))

    def reasons_to_wait(self) -> str:
        """Return the newest messages of the cluster about waiting pods and about the job."""
        pods = [pod for pod in self.pods.values() if pod.state == "waiting" and pod.reason]
        about_job = (self.messages.get(about) for about in ("job", "pods"))
        reasons = [*(f"{pod.node}: {pod.reason}" for pod in pods), *filter(None, about_job)]
        return "; ".join(reasons) or "the cluster gives no reason"

    def update(self, pods: Iterable[dict[str, Any]]) -> None:
        """Handle the changes of the run's pods since they were last listed."""
        present = {pod["metadata"]["uid"]: pod for pod in pods}
        for uid in self.pods.keys() - present.keys():
            state = self.pods[uid]
            if state.state in ("waiting", "running") and not state.lost:
                self.report_once(uid, f"{state.node}: {status.DELETED}")
        pending = []
        for uid, pod in present.items():
            version = str(pod["metadata"].get("resourceVersion"))
            if self.versions.get(uid) != version:
                self.versions[uid] = version
                self.handle_change(uid, pod)
            elif is_pending(pod):
                pending.append(uid)
        # An event, such as that of a failed mount, does not change its pod. Thousands of pods may be pending, so only
        # one of them is looked at each time.
        if pending:
            self.updates += 1
            uid = pending[self.updates % len(pending)]
            self.handle_change(uid, present[uid])

    def handle_change(self, uid: str, pod: dict[str, Any]) -> None:
        events = []
        if is_pending(pod):
            with suppress(OrchError):  # the user may not list events
                events = self.cluster.events(f"involvedObject.uid={uid}")
        state = status.pod_state(pod, events)
        before, self.pods[uid] = self.pods.get(uid), state
        # The kubelet reports that an image cannot be pulled alternately with and without the cause.
        if state.reason and not (before and before.reason.startswith(state.reason)):
            self.report_once(uid, f"{state.node}: {state.reason}")
        reader = self.readers.get(uid)
        if state.started and (reader is None or (not reader.is_alive() and state.state == "running")):
            self.readers[uid] = threading.Thread(target=self.read_to_end, args=(uid, state.pod), daemon=True)
            self.readers[uid].start()

    def read_to_end(self, uid: str, name: str) -> None:
        """Read the log of a pod until it is complete, although streams may end earlier."""
        refused_since: float | None = None
        while not self.ended.is_set():
            try:
                pod = self.cluster.get(f"{self.cluster.path('Pod')}/{name}")
                if pod["metadata"]["uid"] != uid:  # a new pod with the same name
                    return
                self.read(uid, name, follow=True)
                if status.pod_state(pod).state != "running":
                    return
                refused_since = None
            except NotThere:
                return
            except ConnectionLost:
                refused_since = None
            except ExecuteError as error:  # a refusal, or a response that a proxy may have sent
                refused_since = refused_since or time.monotonic()
                if time.monotonic() - refused_since > REFUSED_SECONDS:
                    self.items.put(error)
                    return
            self.ended.wait(RETRY_SECONDS)

    def read(self, uid: str, pod: str, *, follow: bool) -> None:
        """Put the lines of a pod's log into the queue, from the position of its copy on.

        Raises:
            ConnectionLost: if the stream breaks.
            Refused: if the user may not read logs.
            NotThere: if the pod is gone.
        """
        since = self.positions.get(uid, Position()).since
        self.items.put(ReadLine(uid, None))
        try:
            for line in self.cluster.log(pod, self.pods[uid].container, follow=follow, since=since):
                self.items.put(ReadLine(uid, line))
        except (ConnectionLost, Refused, NotThere):
            raise
        except ExecuteError:  # the container has no log yet
            pass


def is_pending(pod: Mapping[str, Any]) -> bool:
    return bool(pod.get("status", {}).get("phase", "Pending") == "Pending")


POLL_SECONDS = 2.0
PODS_PER_SECOND = 100  # that are listed: a pod has 10 kB
GIVE_UP_SECONDS = 300.0  # without a response of the API
DRAIN_SECONDS = 20.0
UNSEEN_SECONDS = 20.0  # until an operator has normally accepted a job
FOLLOW_SECONDS = 0.5
MARK_TRIES = 2
MARK_SECONDS = 5.0


class KubernetesHandle(RunHandle):
    """A run on Kubernetes, which connects to the cluster only when it needs to.

    While this process watches it, it copies the logs of its pods into the local folder.
    """

    watched = False  # a thread of this process copies the logs
    ranks_started = False
    lost_since: float | None = None
    job_created: float | None = None

    @cached_property
    def location(self) -> JobLocation:
        return location_of(self.record)

    @cached_property
    def cluster(self) -> KubernetesClient:
        return connect(self.location.context, self.location.namespace)

    @cached_property
    def follower(self) -> Follower:
        return Follower(self.cluster, self.copy.positions)

    @cached_property
    def copy(self) -> RunCopy:
        return RunCopy(self.folder, ranks=len(self.record.layout))

    def leave(self) -> None:
        """Stop following the pods."""
        self.follower.ended.set()
        self.copy.release()

    # Start.

    def started(self) -> None:
        """Raise an error unless the API has the job, which is all that a start needs."""
        self.cluster.job(self.location)

    def record_start(self) -> None:
        """Record that an attempt begins, also for commands that read the run after nobody has watched it."""
        with suppress(OrchError):  # events() records it otherwise
            if self.copy.acquire():
                self.copy.add_event(self.launched())
            self.copy.release()

    def launched(self) -> Event:
        """Return the event of the start, with the time at which the cluster created the job."""
        nodes = tuple(host.node for host in self.record.nodes)
        attempt = 1 + sum(isinstance(event, Launched) for event in store.load(self.folder).events())
        event = with_current_time(Launched(attempt=attempt, ranks=len(self.record.layout), nodes=nodes))
        try:
            created = status.created_at(self.cluster.job(self.location))
        except OrchError:  # poll() reports it
            created = None
        return replace(event, time=created) if created else event

    # Following.

    def events(self) -> Iterator[Event]:
        """Yield the events of the run, from its beginning until it has ended.

        Raises:
            ExecuteError: if the run cannot be watched any longer.
        """
        self.watched = True
        try:
            yield from self.copied_events()
        except OrchError as error:
            hint = f"{error.hint} `orch attach {store.cli_arguments(self.folder)}` watches it again.".lstrip()
            message = f"{error.message} The run continues, but is not watched any longer."
            raise ExecuteError(message, hint=hint) from None
        finally:
            self.watched = False

    def copied_events(self) -> Iterator[Event]:
        """Yield events that another command copies until it ends, then those of the pods."""
        path, position = self.folder / files.EVENTS, self.earlier.events
        first = reported = path.read_bytes()[:position].count(b"\n") if position and path.exists() else 0
        while True:
            acquired = self.copy.acquire()
            run = store.load(self.folder)
            events = run.events()
            yield from events[reported:]
            reported = len(events)
            self.ranks_started = any(isinstance(event, Started) for event in last_attempt(events))
            if run.outcome is not None:
                return
            if acquired:
                break
            time.sleep(FOLLOW_SECONDS)
            yield with_current_time(Heartbeat())
        if reported == first:
            self.follower.items.put(self.launched())
        state, due = None, 0.0
        while state is None:
            yield from self.copy_items(FOLLOW_SECONDS)
            yield with_current_time(Heartbeat())  # makes the reader of the logs look again
            if time.monotonic() > due:
                state = self.poll() or self.end_late_start()
                due = time.monotonic() + max(POLL_SECONDS, len(self.follower.pods) / PODS_PER_SECOND)
        yield from self.drain(DRAIN_SECONDS)
        self.follower.ended.set()
        yield self.end(state)

    def poll(self) -> status.JobState | None:
        """Return how the job ended, or None while it has not, and report what it and its pods wait for.

        Raises:
            ExecuteError: if the API has not responded for too long.
        """
        job: dict[str, Any] | None = None
        try:
            with suppress(NotThere):
                job = self.cluster.job(self.location)
            pods = pods_of(self.cluster, self.record.run_id)
            if self.watched:
                self.follower.update(pods)
        except ExecuteError as error:  # also a response that a proxy may have sent
            self.handle_loss(error)
            return None
        if self.lost_since is not None:
            self.notify(f"the API responds again after {time.monotonic() - self.lost_since:.0f} s")
            self.lost_since = None
        if job is None:
            reason = f"the job {self.location.job} is gone: it was deleted, or its time limit has passed"
            return status.JobState(state="failed", reason=reason, missing=True)
        self.job_created = status.created_at(job)
        state = status.job_state(job, map(status.pod_state, pods))
        self.report_admission(job)
        if state.state == "suspended":
            self.follower.report_once("job", state.reason)
        return state if state.state in ("done", "failed") else None

    def report_admission(self, job: dict[str, Any]) -> None:
        """Report pods that are not admitted, and a job that no operator manages."""
        pods = len(self.follower.pods)
        if pods < len(self.record.nodes) and (message := refusal(self.cluster, job)):
            subject = "some of its pods" if pods else "its pods"
            self.follower.report_once("pods", f"{subject} are not admitted: {message}")
        elif not (pods or job.get("status")) and time.time() - self.copy.began > UNSEEN_SECONDS:
            message = f"no operator has accepted {self.location.job}. Is the operator of its kind running?"
            self.follower.report_once("job", message)

    def end_late_start(self) -> status.JobState | None:
        """Delete the run's objects if its ranks have not started within its wait limit.

        Raises:
            ExecuteError: if they cannot be deleted.
        """
        limit = self.location.wait_limit
        if limit is None or self.ranks_started or self.job_created is None:
            return None
        if (self.cluster.server_time or time.time()) - self.job_created <= limit:
            return None
        reasons = self.follower.reasons_to_wait()
        self.follower.ended.set()  # do not report the deletion of its pods
        delete_objects(self.cluster, self.location, self.record.run_id)
        message = f"its ranks have not started within {limit} s (--wait-limit): {reasons}"
        return status.JobState(state="failed", reason=message, missing=True)

    def handle_loss(self, error: ExecuteError) -> None:
        """Report that the API does not respond, and raise the error if that lasts too long."""
        now = time.monotonic()
        if self.lost_since is None:
            self.lost_since = now
            self.notify(f"{error.message} The run continues; retrying.")
        limit = GIVE_UP_SECONDS if isinstance(error, ConnectionLost) else REFUSED_SECONDS
        if now - self.lost_since > limit:
            raise error

    def copy_items(self, seconds: float) -> Iterator[Event]:
        """Copy what the follower receives within a time, and yield its events."""
        deadline = time.monotonic() + seconds
        while (remaining := deadline - time.monotonic()) > 0:
            try:
                item = self.follower.items.get(timeout=remaining)
            except queue.Empty:
                break
            if isinstance(item, OrchError):
                raise item
            if isinstance(item, Event):
                if not self.is_caused_by_stop(item):
                    self.copy.add_event(item)
                    yield item
            elif (event := self.copy.write(item)) is not None and not self.is_caused_by_stop(event):
                self.ranks_started = self.ranks_started or isinstance(event, Started)
                yield event
        self.copy.save_positions()

    def is_caused_by_stop(self, event: Event) -> bool:
        """Return whether the event reports the loss of a pod that `orch stop` has deleted."""
        about_pods = isinstance(event, NodesLost | Ended) or (
            isinstance(event, NodeNews) and event.text.endswith((status.DELETED, status.BEING_DELETED))
        )
        return about_pods and (self.folder / STOPPED).exists()

    # The end.

    def drain(self, seconds: float = 0.0) -> Iterator[Event]:
        """Copy what the follower has already received, and what it receives within a time until all logs end."""
        deadline = time.monotonic() + seconds
        items, readers = self.follower.items, self.follower.readers.values()
        while not items.empty() or (time.monotonic() < deadline and any(reader.is_alive() for reader in readers)):
            yield from self.copy_items(0.1)

    def end(self, job: status.JobState) -> Event:
        """Write the outcome unless it is known, and return the event about it."""
        pods = self.follower.pods.values()
        missing = {host.node for host in self.record.nodes} - {pod.node for pod in pods}
        if missing and not any((self.folder / mark).exists() for mark in (files.OUTCOME, STOPPED)):
            (self.folder / UNREAD).touch()
        return self.copy.finish(job, pods)

    def catch_up(self) -> dict[str, ExecuteError]:
        """Copy what the pods have printed so far, without waiting for more.

        Returns:
            the error of each node whose log cannot be read.

        Raises:
            ExecuteError: if the pods cannot be listed.
        """
        errors: dict[str, ExecuteError] = {}
        if not self.copy.acquire():  # another command copies it within moments
            return errors
        for pod in pods_of(self.cluster, self.record.run_id):
            uid = pod["metadata"]["uid"]
            state = self.follower.pods[uid] = status.pod_state(pod)
            try:
                if state.started:
                    self.follower.read(uid, state.pod, follow=False)
            except NotThere:
                pass
            except ExecuteError as error:
                errors[state.node] = error
        for _ in self.drain():
            pass
        return errors

    def refresh(self) -> None:
        with suppress(NotThere):  # poll() reports a job that was deleted as failed
            self.cluster.job(self.location)
        self.finish()

    def finish(self) -> RunOutcome:
        """Return how the run ended or stands, after its logs are copied, unless another command copies them."""
        try:
            if not (self.folder / files.OUTCOME).exists() and self.copy.acquire():
                for node, error in self.catch_up().items():
                    self.notify(f"{node}: {error.message}")
                if (state := self.poll()) is not None:
                    self.end(state)
        except OrchError as error:
            self.notify(error.message)
        self.copy.release()
        return outcome_of(store.load(self.folder))

    # Logs and files.

    def logs(self, *, rank: int | None, follow: bool) -> Iterator[LogLine]:
        """Yield the lines of the run in the order of time, or as they come, and copy them into its local folder."""
        run, starts = store.load(self.folder), self.earlier.logs
        ranks = requested_ranks(run, rank)

        def nodes() -> dict[int, str]:
            moved = status.nodes_of(store.load(self.folder).events())
            return ranks | {number: node for number, node in moved.items() if number in ranks}

        errors: list[tuple[str, OrchError]] = []
        if follow and not run.has_ended:
            yield from followed_lines(self.folder, nodes, starts, self.wait_for_lines())
        else:
            try:
                if not (self.folder / files.OUTCOME).exists():
                    errors += self.catch_up().items()
                self.copy_from_volume()
            except OrchError as error:
                errors.append(("the cluster", error))
            yield from copied_lines(run, nodes(), starts)
        for source, problem in errors[:1]:
            raise ExecuteError(f"Lines may be missing: {source}: {problem.message}", hint=problem.hint)
        outcome = store.load(self.folder).outcome
        is_empty = rank is None and not any((self.folder / files.RANK_LOG.format(number)).exists() for number in ranks)
        if is_empty and outcome is not None and outcome.state == FAILED:
            arguments, cause = store.cli_arguments(self.folder), outcome.problem or ""
            raise ExecuteError.about("pods-printed-nothing", run_id=run.id, arguments=arguments, problem=cause)

    def wait_for_lines(self) -> Iterator[object]:
        """Yield whenever there may be new lines, until the run has ended.

        If another thread of this process watches the run, that thread copies the lines.
        """
        if not self.watched:
            yield from self.events()
        while self.watched:
            yield None
            time.sleep(FOLLOW_SECONDS)

    def copy_from_volume(self) -> None:
        """Copy logs from the volume if some of the run's pods were gone when its end was noticed."""
        ended = None if (self.folder / files.OUTCOME).exists() else self.poll()
        if ended is not None and self.copy.acquire():
            self.end(ended)
        if (self.folder / UNREAD).exists() and self.copy.acquire():
            remote, local = f"{self.record.run_dir}/{files.RANKS}", self.folder.absolute() / files.RANKS
            with volume.reader(self.cluster, self.record) as pod:
                source = Source(name="the volume", remote=pod)
                with suppress(NoFolderError):  # the pods have not started
                    collect([source], [remote], local, patterns=("rank-*",), listener=FetchListener())
            (self.folder / UNREAD).unlink()

    def fetch(self, request: FetchRequest, listener: FetchListener) -> Collected:
        """Copy files of the run from its volume to this machine.

        Raises:
            RequestError: if a node is named, or a project as it was sent.
            ExecuteError: if files cannot be read.
        """
        if request.node:
            raise RequestError.about("node-of-pods")
        if request.project:
            raise RequestError.about("code-of-pods", run_dir=self.record.run_dir)
        with volume.reader(self.cluster, self.record) as pod:
            return fetch_files([Source(name="the volume", remote=pod)], self.folder, request, listener)

    def commands(self, nodes: Nodes | None) -> NodeCommands:
        kubectl = f"kubectl --namespace {self.location.namespace}"
        selector = names.selector(self.record.run_id)
        raise RequestError.about("commands-of-pod-run", record=self.record, kubectl=kubectl, selector=selector)

    # Stop.

    def interrupt(self) -> None:
        """Delete the job with its pods, because there is no supervisor to stop it."""
        self.leave()
        KubernetesHandle(self.record, self.folder).stop()

    def stop(self) -> CleanupReport:
        """Copy the logs of the run's pods, then delete its job and its other objects.

        Raises:
            ExecuteError: if the job cannot be deleted.
        """
        began, run_id = time.monotonic(), self.record.run_id
        errors: dict[str, ExecuteError] = {}
        if not (self.folder / files.OUTCOME).exists():
            errors = self.catch_up()
            if (state := self.poll()) is not None and state.state == "done":
                self.end(state)
        states = [status.pod_state(pod) for pod in pods_of(self.cluster, run_id)]
        mark = self.folder / STOPPED  # for commands that watch the run
        mark.touch()
        try:
            mark_volume(self.cluster, self.record.run_dir, [pod for pod in states if pod.state == "running"])
            delete_objects(self.cluster, self.location, run_id)
        except OrchError:
            mark.unlink()
            raise
        remaining = await_pods_gone(self.cluster, run_id)
        self.end(status.JobState(state="failed"))
        nodes = tuple(
            NodeCleanup(
                node=pod.node,
                state="left" if pod.pod in remaining else "clean",
                ended=() if pod.pod in remaining else (f"pod {pod.pod}",),
                left=(f"pod {pod.pod} is still ending",) if pod.pod in remaining else (),
                problem=f"its log could not be copied: {errors[pod.node].message}" if pod.node in errors else "",
            )
            for pod in states
        )
        return CleanupReport(run_id=run_id, seconds=round(time.monotonic() - began, 2), nodes=nodes)


def mark_volume(cluster: KubernetesClient, run_dir: str, running: list[status.PodState]) -> None:
    """Mark the run as stopped on its volume, as far as that is possible.

    A pod would treat the kubelet's SIGTERM as a preemption and write a checkpoint, which takes time. The pods share the
    volume: the second is asked only if the first one does not respond, as on a node that is lost.
    """
    command = ("touch", "--", f"{run_dir}/{files.STOP}")
    for pod in running[:MARK_TRIES]:
        touch = volume.PodExec(cluster, pod.pod, pod.container).open_program(command, seconds=MARK_SECONDS)
        with suppress(OrchError), touch as program:
            program.output.read()
            if program.code() == 0:
                return
