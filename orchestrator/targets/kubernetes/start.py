"""Start a run on Kubernetes: create its objects."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from orch_node.protocol.record import RunRecord

from orchestrator.errors import ExecuteError, OrchError
from orchestrator.files import write_whole
from orchestrator.planning.plan import ApplyObjects, Plan
from orchestrator.runs import store
from orchestrator.runs.state_files import PLAN
from orchestrator.runs.store import Positions
from orchestrator.targets.kubernetes.client import KubernetesClient, Refused, connect
from orchestrator.targets.kubernetes.manifests import names
from orchestrator.targets.kubernetes.objects import (
    STOPPED,
    await_pods_gone,
    delete_job,
    delete_objects,
    delete_other_objects,
    give_owner,
    remove_expired,
)
from orchestrator.targets.kubernetes.run_record import location_of


def start(plan: Plan, folder: Path) -> tuple[RunRecord, Positions | None]:
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
    plan = replace(plan, run=record)
    earlier_plan = store.plan_bytes(folder)
    earlier = store.positions(folder) if earlier_plan else None
    if earlier:
        delete_attempt(cluster, store.load(folder).record)
    store.create(plan, folder)
    remove_expired(cluster)
    try:
        for manifest in step.objects:
            # Also Ctrl-C waits for the response: the API may create an object after nobody awaits that, and its
            # deletion would come too early.
            with ThreadPoolExecutor(max_workers=1) as thread:
                thread.submit(cluster.apply, manifest).result()
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
            raise ExecuteError(
                f"{error.message} Objects of the run may remain: {remaining[0].message}",
                hint=f"{error.hint} Delete them: kubectl delete {kinds} {selector}".lstrip(),
            ) from None
        raise
    if earlier:
        store.forget_end(folder)
        (folder / STOPPED).unlink(missing_ok=True)
    # The job's time to live ends theirs. Without an owner they stay until `orch stop` or `orch clean`.
    with suppress(OrchError):
        give_owner(cluster, location_of(record), other_objects)
    return record, earlier


def delete_attempt(cluster: KubernetesClient, record: RunRecord) -> None:
    """Delete the objects of a run's last attempt, and wait until its pods are gone.

    Raises:
        ExecuteError: if they cannot be deleted.
    """
    delete_objects(cluster, location_of(record), record.run_id)
    if remaining := await_pods_gone(cluster, record.run_id):
        raise ExecuteError(
            f"Pods of the last attempt of {record.run_id} still exist: {', '.join(remaining)}.",
            hint="`kubectl describe pod` shows why; resume the run when they are gone.",
        )
