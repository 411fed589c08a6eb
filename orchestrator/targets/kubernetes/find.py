"""Find and list the runs that a Kubernetes cluster has recorded, whoever started them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from orch_node.protocol import pod, values
from orch_node.protocol.events import NAN_LOSS, Progress, Result, Warned
from orch_node.protocol.node_reports import RunReport
from orch_node.protocol.record import RunRecord

from orchestrator.errors import ExecuteError, OrchError
from orchestrator.model.hosts import grouped
from orchestrator.runs import store
from orchestrator.runs.rows import RunRow, row_of
from orchestrator.runs.state_files import PLAN
from orchestrator.targets.interface import Notify, RunList
from orchestrator.targets.kubernetes import names
from orchestrator.targets.kubernetes.client import KubernetesClient, NotThere, Refused, connect
from orchestrator.targets.kubernetes.inputs import kubernetes_settings
from orchestrator.targets.kubernetes.local_copy import parse, split_time
from orchestrator.targets.kubernetes.run_record import location_of, trusted_record, with_lists
from orchestrator.targets.kubernetes.settings import KubernetesSettings
from orchestrator.targets.kubernetes.status import PodState, job_state, pod_state

MAX_QUERIES = 8  # at the same time
TAIL_LINES = 200  # at the end of a pod's log, to find the newest progress


def default_settings() -> KubernetesSettings:
    """Return the settings of ORCH_K8S_FILE, or else of orch-k8s.toml."""
    file = os.environ.get("ORCH_K8S_FILE")
    return kubernetes_settings(Path(file) if file else None, [])


def cluster_of(inventory: str) -> KubernetesClient:
    """Connect to the cluster of `k8s` or `k8s:NAMESPACE`, as the default settings describe it."""
    settings = default_settings()
    return connect(settings.context, inventory.partition(":")[2] or settings.namespace)


def query_runs(cluster: KubernetesClient) -> tuple[list[RunRecord], dict[str, OrchError]]:
    """Read the records of a namespace, and check whether they can be trusted.

    Returns:
        The records, oldest first, and why a run cannot be used, by its id or the name of its ConfigMap.
    """
    settings = default_settings().model_copy(update={"context": cluster.context, "namespace": cluster.namespace})
    records: list[RunRecord] = []
    problems: dict[str, OrchError] = {}
    for config_map in cluster.objects("ConfigMap", f"{names.selector()},!{names.PART}"):
        texts = config_map.get("data") or {}
        if "run.json" not in texts:
            continue
        try:
            record = with_lists(values.loads(texts["run.json"], "run.json"), pod.parse(texts.get("pod.json", "")))
        except values.ProtocolError as error:
            name = config_map["metadata"]["name"]
            problems[name] = ExecuteError.about("skipped-run", name=name, error=error)
            continue
        try:
            record = trusted_record(record, settings, label=config_map["metadata"]["labels"][names.RUN])
        except OrchError as error:
            problems[record.run_id] = error
        records.append(record)
    return sorted(records, key=lambda record: (record.created, record.run_id)), problems


def find_run(base: Path, name: str, inventory: str, notify: Notify) -> tuple[RunRecord, Path]:
    """Return the record and the local folder of a run in a cluster.

    Args:
        base: the folder of all runs on this machine.
        name: the id or the name of a run, or `last` for the newest run.
        inventory: `k8s` or `k8s:NAMESPACE`.
        notify: called with a line if several runs have the name.

    Raises:
        OrchError: if there is no such run, or its record cannot be trusted.
    """
    records, problems = query_runs(cluster_of(inventory))
    run_id = store.match_id(name, records, f"in {inventory}", notify)
    if error := problems.get(run_id):
        raise error
    record = next(record for record in records if record.run_id == run_id)
    folder = base / run_id
    if not (folder / PLAN).exists():
        store.write_record(record, folder)
    return record, folder


def list_runs(inventory: str) -> RunList:
    """Return the runs that a namespace has recorded, oldest first."""
    cluster = cluster_of(inventory)
    records, problems = query_runs(cluster)
    pods = logged_pods(cluster)

    def make_row(record: RunRecord) -> RunRow:
        return row_of(
            record,
            report_in(cluster, pods.get(record.run_id, ()), record),
            state="unknown" if record.run_id in problems else state_in(cluster, record),
            nodes=(host.node for host in record.nodes),
            folder=record.run_dir,
        )

    with ThreadPoolExecutor(max_workers=MAX_QUERIES) as pool:
        rows = tuple(pool.map(make_row, records))
    return RunList(rows=rows, warnings=tuple(error.message for error in problems.values()))


def state_in(cluster: KubernetesClient, record: RunRecord) -> str:
    with suppress(NotThere, Refused):  # the API checks rights before it reports that a kind is missing
        return job_state(cluster.job(location_of(record))).state
    return "unknown"


def logged_pods(cluster: KubernetesClient) -> dict[str, list[PodState]]:
    """Return the states of the pods that have a log, by the id of their run; empty if pods may not be listed."""
    with suppress(OrchError):
        pods = cluster.objects("Pod", f"{names.selector()},!{names.PART}")
        states = ((str(pod["metadata"]["labels"][names.RUN]), pod_state(pod)) for pod in pods)
        return grouped((run_id, state) for run_id, state in states if state.started)
    return {}


def report_in(cluster: KubernetesClient, pods: Sequence[PodState], record: RunRecord) -> RunReport:
    """Return what a run has reported at the end of the log of the first of these pods, as far as it can be read."""
    newest: dict[type, Any] = {}
    with suppress(OrchError):
        for state in sorted(pods, key=lambda state: state.pod)[:1]:
            for line in cluster.log(state.pod, state.container, follow=False, since=None, tail=TAIL_LINES):
                event = parse(split_time(line)[1], ranks=len(record.layout)).event
                newest[type(event)] = event
    result, warning = newest.get(Result), newest.get(Warned)
    return RunReport(
        progress=newest.get(Progress),
        result=result.figures if result else {},
        is_nan=warning is not None and NAN_LOSS in warning.text,
    )
