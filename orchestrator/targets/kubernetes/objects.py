"""The objects of a run in a cluster: create, find and delete them, also leftovers of earlier runs (`orch clean`)."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from orch_node.protocol.files import PLAN
from orch_node.protocol.record import RunRecord

from orchestrator.errors import ExecuteError, OrchError
from orchestrator.files import write_whole
from orchestrator.planning.plan import ApplyObjects, Object, Plan
from orchestrator.runs import store
from orchestrator.runs.outcome import CleanupReport, NodeCleanup
from orchestrator.targets.kubernetes import names
from orchestrator.targets.kubernetes.client import KubernetesClient, NotThere, Refused, connect, event_time
from orchestrator.targets.kubernetes.manifests import KINDS
from orchestrator.targets.kubernetes.run_record import JobLocation, location_of
from orchestrator.targets.kubernetes.status import created_at, ended_at, pod_state

GONE_SECONDS = 150.0  # a pod has 120 s to terminate
POLL_SECONDS = 0.5
OTHER_KINDS = {"job": ("Service",), "trainjob": ("TrainingRuntime",)}  # by launcher
REFUSED_PODS = ("FailedCreatePod", "FailedCreate")  # reasons of events
# A separate field manager, because applying as `orch` would remove other fields.
OWNER_MANAGER = f"{names.MANAGER}-owner"
NEW_SECONDS = 600.0  # younger objects may belong to a run that is being started
# Files of the run's local folder.
STOPPED = "stop"  # created by `orch stop`
UNREAD = "kube.unread"  # exists while only the volume has the logs of some pods


def pods_of(cluster: KubernetesClient, run_id: str) -> list[Object]:
    """Return the pods of a run's job."""
    return cluster.objects("Pod", f"{names.selector(run_id)},!{names.PART}")


def delete_objects(cluster: KubernetesClient, location: JobLocation, run_id: str) -> None:
    """Delete the job of a run, then its other objects.

    Raises:
        ExecuteError: if an object with the job's name does not belong to the run.
    """
    delete_job(cluster, location, run_id)
    delete_other_objects(cluster, location, run_id)


def delete_job(cluster: KubernetesClient, location: JobLocation, run_id: str) -> None:
    with suppress(NotThere):
        delete_checked(cluster, cluster.job(location), run_id)


def delete_other_objects(cluster: KubernetesClient, location: JobLocation, run_id: str) -> None:
    """Delete what is labelled with a run id: reader pods, the ConfigMaps, the service, the runtime."""
    for pod in cluster.objects("Pod", names.selector(run_id)):
        if not pod["metadata"].get("ownerReferences"):  # Kubernetes deletes the pods of the job
            delete_checked(cluster, pod, run_id)
    # The runtime is the last: a user without rights to runtimes cannot have created one, but may have created the
    # ConfigMap.
    for kind in ("ConfigMap", *OTHER_KINDS.get(location.launcher, ())):
        for item in cluster.objects(kind, names.selector(run_id)):
            delete_checked(cluster, item, run_id)


def refusal(cluster: KubernetesClient, job: Object) -> str:
    """Return the newest event about pods of a job that could not be created, or an empty string."""
    try:
        events = [event for reason in REFUSED_PODS for event in cluster.events(f"reason={reason}")]
    except OrchError:  # the user may not read them
        return ""
    # The event is about the job, or about an object that its operator has created. The job of an earlier attempt had
    # the same name.
    name, created = job["metadata"]["name"], job["metadata"]["creationTimestamp"]
    about_job = [event for event in events if f"{event['involvedObject'].get('name', '')}-".startswith(f"{name}-")]
    messages = [str(event.get("message", "")) for event in about_job if event_time(event) >= created]
    return messages[-1] if messages else ""


def give_owner(cluster: KubernetesClient, location: JobLocation, objects: Iterable[Object]) -> None:
    """Make the job the owner of other objects, so that Kubernetes deletes them with it."""
    owner = {
        "apiVersion": KINDS[location.launcher].api,
        "kind": KINDS[location.launcher].kind,
        "name": location.job,
        "uid": cluster.job(location)["metadata"]["uid"],
    }
    for item in objects:
        metadata = {"name": item["metadata"]["name"], "ownerReferences": [owner]}
        owned = {"apiVersion": item["apiVersion"], "kind": item["kind"], "metadata": metadata}
        cluster.apply(owned, manager=OWNER_MANAGER)


def delete_checked(cluster: KubernetesClient, item: Object, run_id: str) -> None:
    """Delete an object; raise ExecuteError if it does not have the labels of a run."""
    labels = item["metadata"].get("labels") or {}
    if any(labels.get(key) != value for key, value in names.labels(run_id).items()):
        raise ExecuteError.about("labels-of-another", name=item["metadata"]["name"], run_id=run_id)
    cluster.delete(item)


def await_pods_gone(cluster: KubernetesClient, run_id: str) -> list[str]:
    """Return the pods of a run that still exist after the time in which pods must end."""
    deadline = time.monotonic() + GONE_SECONDS
    while True:
        remaining = [pod["metadata"]["name"] for pod in pods_of(cluster, run_id)]
        if not remaining or time.monotonic() > deadline:
            return remaining
        time.sleep(POLL_SECONDS)


def clean(cluster: KubernetesClient, *, dry_run: bool) -> CleanupReport:
    """Delete leftovers, or only list them; keep everything of a run that has its job.

    Leftovers are objects of runs whose job is gone, pods that read volumes, and expired jobs.
    """
    began = time.monotonic()
    objects = list(leftovers(cluster))
    if not dry_run:
        for item in objects:
            cluster.delete(item)
    descriptions = tuple(f"{run_of(item)}: {item['kind']} {item['metadata']['name']}" for item in objects)
    node = NodeCleanup(
        node=cluster.namespace,
        state="left" if dry_run and descriptions else "clean",
        ended=() if dry_run else descriptions,
        left=descriptions if dry_run else (),
    )
    return CleanupReport(run_id="", seconds=round(time.monotonic() - began, 2), nodes=(node,))


def remove_expired(cluster: KubernetesClient) -> None:
    """Delete jobs whose time to live has passed, as far as the user may."""
    for kind in KINDS.values():
        with suppress(OrchError):
            for job in filter(is_expired, labelled(cluster, kind.kind)):
                cluster.delete(job)


def leftovers(cluster: KubernetesClient) -> Iterator[Object]:
    """Yield all leftovers; Kubernetes itself deletes what a deleted job owns."""
    jobs = [job for kind in KINDS.values() for job in labelled(cluster, kind.kind)]
    yield from filter(is_expired, jobs)
    living = {run_of(job) for job in jobs}
    for kind in ("Pod", "ConfigMap", *(kind for kinds in OTHER_KINDS.values() for kind in kinds)):
        for item in labelled(cluster, kind):
            has_ended = kind == "Pod" and pod_state(item).state in ("done", "failed")
            is_unused = run_of(item) not in living or has_ended
            is_old = time.time() - (created_at(item) or time.time()) > NEW_SECONDS
            if is_unused and is_old and not item["metadata"].get("ownerReferences"):
                yield item


def labelled(cluster: KubernetesClient, kind: str) -> list[Object]:
    """Return the objects of a kind that orch has created; none if it is missing or the user cannot have created any."""
    try:
        return cluster.objects(kind, names.selector())
    except NotThere:
        return []
    except Refused:  # the API checks rights before it reports that a kind is missing
        operated = [job for job in KINDS.values() if job.kind == kind != "Job"]
        if kind in ("Pod", "ConfigMap") or any(map(cluster.serves, operated)):
            raise
        return []


def is_expired(job: Object) -> bool:
    """Return whether a job has ended and its time to live has passed."""
    ttl = (job["metadata"].get("annotations") or {}).get(names.TTL, "")
    ended = ended_at(job)
    return ended is not None and str(ttl).isdecimal() and time.time() - ended >= int(ttl)


def run_of(item: Object) -> str:
    return str(item["metadata"]["labels"][names.RUN])


def start(plan: Plan, folder: Path) -> tuple[RunRecord, store.Positions | None]:
    """Create the objects of a run, which does not need this process any longer.

    The objects of an earlier attempt, whose names are the same, are deleted first.

    Returns:
        The record of the run, and what belongs to earlier attempts of a resumed run; None for a new run.

    Raises:
        OrchError: if an object cannot be created. Those that were created are deleted then, and also
            if the start is interrupted.
    """
    (step,) = (step for step in plan.steps if isinstance(step, ApplyObjects))
    *other_objects, job = step.objects
    cluster = connect(plan.run.location["context"], job["metadata"].get("namespace"))
    # The current context of the kubeconfig may be another one when the next command runs.
    location = {**plan.run.location, "namespace": cluster.namespace, "context": cluster.context}
    record = replace(plan.run, location=location)
    earlier_plan = store.plan_bytes(folder)
    earlier = store.positions(folder) if earlier_plan else None
    if earlier:
        delete_attempt(cluster, store.load(folder).record)
    store.create(replace(plan, run=record), folder)
    remove_expired(cluster)
    try:
        create(cluster, step.objects)
    except (OrchError, KeyboardInterrupt) as error:
        if earlier_plan:
            write_whole(folder / PLAN, earlier_plan)
        else:
            (folder / PLAN).unlink()  # nothing was started
            folder.rmdir()
        remaining: list[OrchError] = []
        for delete in (delete_job, delete_other_objects):  # the latter also if the job cannot be deleted
            try:
                delete(cluster, location_of(record), record.run_id)
            except Refused:  # without the right to delete it, the user could most likely not create it either
                pass
            except OrchError as problem:
                remaining.append(problem)
        if remaining and isinstance(error, OrchError):
            selector = f"--namespace {cluster.namespace} --selector {names.RUN}={record.run_id}"
            kinds = ",".join(sorted({item["kind"].lower() for item in step.objects}))
            hint = f"{error.hint} Delete them: kubectl delete {kinds} {selector}".lstrip()
            message = f"{error.message} Objects of the run may remain: {remaining[0].message}"
            raise ExecuteError(message, hint=hint) from None
        raise
    if earlier:
        store.forget_end(folder)
        for mark in (STOPPED, UNREAD):
            (folder / mark).unlink(missing_ok=True)
    # The job's time to live ends theirs. Without an owner they stay until `orch stop` or `orch clean`.
    with suppress(OrchError):
        give_owner(cluster, location_of(record), other_objects)
    return record, earlier


def create(cluster: KubernetesClient, objects: Iterable[Object]) -> None:
    """Create objects in their order.

    Also Ctrl-C waits for each response: the API may create an object after nobody awaits it, and its deletion would
    come too early. An executor waits only for a thread that has started.
    """
    with ThreadPoolExecutor(max_workers=1) as thread:
        thread.submit(bool).result()
        for manifest in objects:
            thread.submit(cluster.apply, manifest).result()


def delete_attempt(cluster: KubernetesClient, record: RunRecord) -> None:
    """Delete the objects of a run's last attempt, and wait until its pods are gone.

    Raises:
        ExecuteError: if they cannot be deleted.
    """
    delete_objects(cluster, location_of(record), record.run_id)
    if remaining := await_pods_gone(cluster, record.run_id):
        raise ExecuteError.about("pods-of-last-attempt", run_id=record.run_id, pods=", ".join(remaining))
