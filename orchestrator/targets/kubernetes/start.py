"""Start a run on Kubernetes: create its objects."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from orch_node.protocol.record import RunRecord

from orchestrator.errors import OrchError
from orchestrator.planning.plan import ApplyObjects, Plan
from orchestrator.runs import store
from orchestrator.runs.state_files import PLAN
from orchestrator.targets.execute import execute
from orchestrator.targets.kubernetes.api.client import Kube
from orchestrator.targets.kubernetes.api.connect import connect
from orchestrator.targets.kubernetes.cleanup import remove_expired
from orchestrator.targets.kubernetes.kueue import check_queue
from orchestrator.targets.kubernetes.manifests.names import QUEUE
from orchestrator.targets.kubernetes.objects import delete_job, delete_other_objects, give_owner
from orchestrator.targets.kubernetes.run_record import JobLocation, location_of


def start(plan: Plan, folder: Path) -> RunRecord:
    """Create the objects of a run, which does not need this process any longer; return its record.

    Raises:
        OrchError: if an object cannot be created; those that were created are deleted.
    """
    cluster = connect(plan.run.location["context"], requested_namespace(plan))
    plan = with_cluster(plan, cluster)
    if queue := queue_of(plan):
        check_queue(cluster, queue)
    record = plan.run
    store.create(plan, folder)
    remove_expired(cluster)
    try:
        execute(plan, {}, cluster)
    except OrchError:
        (folder / PLAN).unlink()  # nothing was started
        folder.rmdir()
        delete_created(cluster, record)
        raise
    own_by_job(cluster, plan, location_of(record))
    return record


def with_cluster(plan: Plan, cluster: Kube) -> Plan:
    """Return the plan with the actual context and namespace.

    The current context of the kubeconfig may be another one when the next command runs.
    """
    actual = {"namespace": cluster.namespace, "context": cluster.context}
    run = replace(plan.run, location={**plan.run.location, **actual})
    return replace(plan, run=run)


def queue_of(plan: Plan) -> str | None:
    """Return the queue of Kueue in which the job waits."""
    (step,) = (step for step in plan.steps if isinstance(step, ApplyObjects))
    queue: str | None = step.objects[-1]["metadata"].get("labels", {}).get(QUEUE)
    return queue


def requested_namespace(plan: Plan) -> str | None:
    """Return the namespace of the settings, or None for that of the kubeconfig."""
    (step,) = (step for step in plan.steps if isinstance(step, ApplyObjects))
    namespace: str | None = step.objects[0]["metadata"].get("namespace")
    return namespace


def own_by_job(cluster: Kube, plan: Plan, location: JobLocation) -> None:
    """Let the job own the other objects of its run: its time to live ends theirs."""
    (step,) = (step for step in plan.steps if isinstance(step, ApplyObjects))
    *owned, _ = step.objects
    give_owner(cluster, location, owned)


def delete_created(cluster: Kube, record: RunRecord) -> None:
    """Delete what was created before a failure, the other objects also if the job cannot be deleted."""
    for delete in (delete_job, delete_other_objects):
        with suppress(OrchError):  # start() raises the first error
            delete(cluster, location_of(record), record.run_id)
