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
from orchestrator.targets.kubernetes.api.client import KubernetesClient
from orchestrator.targets.kubernetes.api.connect import connect
from orchestrator.targets.kubernetes.cleanup import remove_expired
from orchestrator.targets.kubernetes.kueue import check_queue
from orchestrator.targets.kubernetes.manifests.names import QUEUE
from orchestrator.targets.kubernetes.objects import delete_job, delete_other_objects, give_owner
from orchestrator.targets.kubernetes.run_record import location_of


def start(plan: Plan, folder: Path) -> RunRecord:
    """Create the objects of a run, which does not need this process any longer; return its record.

    Raises:
        OrchError: if an object cannot be created. Those that were created are deleted then, and also
            if the start is interrupted.
    """
    (step,) = (step for step in plan.steps if isinstance(step, ApplyObjects))
    *other_objects, job = step.objects
    cluster = connect(plan.run.location["context"], job["metadata"].get("namespace"))
    plan = with_cluster(plan, cluster)
    if queue := job["metadata"].get("labels", {}).get(QUEUE):
        check_queue(cluster, queue)
    record = plan.run
    store.create(plan, folder)
    remove_expired(cluster)
    try:
        execute(plan, {}, cluster)
    except (OrchError, KeyboardInterrupt):
        (folder / PLAN).unlink()  # nothing was started
        folder.rmdir()
        delete_created(cluster, record)
        raise
    give_owner(cluster, location_of(record), other_objects)  # the job's time to live ends theirs
    return record


def with_cluster(plan: Plan, cluster: KubernetesClient) -> Plan:
    """Return the plan with the actual context and namespace.

    The current context of the kubeconfig may be another one when the next command runs.
    """
    actual = {"namespace": cluster.namespace, "context": cluster.context}
    run = replace(plan.run, location={**plan.run.location, **actual})
    return replace(plan, run=run)


def delete_created(cluster: KubernetesClient, record: RunRecord) -> None:
    """Delete what was created before a failure, the other objects also if the job cannot be deleted."""
    for delete in (delete_job, delete_other_objects):
        with suppress(OrchError):  # start() raises the first error
            delete(cluster, location_of(record), record.run_id)
