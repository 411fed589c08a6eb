"""A run on Kubernetes begins: its objects are made."""

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
from orchestrator.targets.kubernetes.objects import delete_job, delete_rest, give_owner
from orchestrator.targets.kubernetes.run_record import JobLocation, location_of


def start(plan: Plan, folder: Path) -> RunRecord:
    """Make the run's objects; -> its record. It lives on without this program."""
    cluster = connect(plan.run.location["context"], namespace_asked(plan))
    plan = seen(plan, cluster)
    if queue := queue_of(plan):
        check_queue(cluster, queue)
    record = plan.run
    store.create(plan, folder)
    remove_expired(cluster)
    try:
        execute(plan, {}, cluster)
    except OrchError:
        (folder / PLAN).unlink()  # nothing was started; what was made has our label
        folder.rmdir()
        remove_made(cluster, record)
        raise
    own_by_job(cluster, plan, location_of(record))
    return record


def seen(plan: Plan, cluster: Kube) -> Plan:
    """Where it really is: the kubeconfig's current context may be another one tomorrow."""
    here = {"namespace": cluster.namespace, "context": cluster.context}
    run = replace(plan.run, location={**plan.run.location, **here})
    return replace(plan, run=run)


def queue_of(plan: Plan) -> str | None:
    """Return the queue of Kueue that the job is for."""
    (step,) = (step for step in plan.steps if isinstance(step, ApplyObjects))
    queue: str | None = step.objects[-1]["metadata"].get("labels", {}).get(QUEUE)
    return queue


def namespace_asked(plan: Plan) -> str | None:
    """None where the kubeconfig's own was meant."""
    (step,) = (step for step in plan.steps if isinstance(step, ApplyObjects))
    found: str | None = step.objects[0]["metadata"].get("namespace")
    return found


def own_by_job(cluster: Kube, plan: Plan, at: JobLocation) -> None:
    """The run's other objects go when its job goes, also by its time to live."""
    (step,) = (step for step in plan.steps if isinstance(step, ApplyObjects))
    *others, _ = step.objects
    give_owner(cluster, at, others)


def remove_made(cluster: Kube, record: RunRecord) -> None:
    """What was made before something failed; a job that cannot be asked for is no reason to leave
    the rest."""
    for delete in (delete_job, delete_rest):
        with suppress(OrchError):  # the first error is the one to tell
            delete(cluster, location_of(record), record.run_id)
