"""Runs that a Kubernetes cluster knows, whoever started them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from orch_node.protocol.record import RunRecord
from orch_node.protocol.values import ProtocolError

from orchestrator.errors import RequestError, did_you_mean
from orchestrator.runs import store
from orchestrator.runs.rows import row_of
from orchestrator.targets.interface import Listed
from orchestrator.targets.kubernetes.api.client import Kube
from orchestrator.targets.kubernetes.api.connect import connect
from orchestrator.targets.kubernetes.api.errors import NotThere
from orchestrator.targets.kubernetes.load import kube_settings
from orchestrator.targets.kubernetes.location import location_of
from orchestrator.targets.kubernetes.manifests import names
from orchestrator.targets.kubernetes.run_record import whole
from orchestrator.targets.kubernetes.status import job_state

Damage = tuple[str, str]  # the name of a ConfigMap, and what is wrong with its record


def cluster_of(inventory: str) -> Kube:
    """`k8s`, or `k8s:NAMESPACE`; else as orch-k8s.toml says."""
    settings = kube_settings(None, [])
    namespace = inventory.partition(":")[2] or settings.namespace
    return connect(settings.context, namespace)


def ask_cluster(cluster: Kube) -> tuple[list[RunRecord], list[Damage]]:
    """The records of all runs in the namespace, oldest first, and those that cannot be read."""
    found, damaged = [], []
    for one in cluster.objects("ConfigMap", names.selector()):
        text = (one.get("data") or {}).get("run.json")
        if text is None:
            continue
        try:
            found.append(seen_in(cluster, whole(json.loads(text))))
        except (ValueError, ProtocolError) as error:
            damaged.append((one["metadata"]["name"], str(error)))
    return sorted(found, key=lambda record: (record.created, record.run_id)), damaged


def seen_in(cluster: Kube, record: RunRecord) -> RunRecord:
    """The record with the way by which this controller reaches the cluster."""
    here = {"context": cluster.context, "namespace": cluster.namespace}
    return replace(record, location={**record.location, **here})


def find(base: Path, name: str, inventory: str) -> tuple[RunRecord, Path]:
    """A run by its id, or `last`; -> its record, and its folder here. Raises RequestError."""
    records, _ = ask_cluster(cluster_of(inventory))
    known = {record.run_id: record for record in records}
    wanted = list(known)[-1] if name == "last" and known else name
    if wanted not in known:
        raise RequestError(
            f"There is no run '{name}' in {inventory}.",
            hint=did_you_mean(name, list(known)[-10:]) if known else "",
        )
    folder = base / wanted
    if not (folder / store.PLAN).exists():
        store.keep(known[wanted], folder)
    return known[wanted], folder


def list_runs(inventory: str) -> Listed:
    cluster = cluster_of(inventory)
    records, damaged = ask_cluster(cluster)
    rows = (
        row_of(
            record,
            state=state_in(cluster, record),
            nodes=(host.node for host in record.nodes),
            progress="",
            folder=record.run_dir,
        )
        for record in records
    )
    return Listed(rows=tuple(rows), silent=tuple(f"{name}: {words}" for name, words in damaged))


def state_in(cluster: Kube, record: RunRecord) -> str:
    at = location_of(record)
    try:
        return job_state(cluster.job(at.group, at.version, at.plural, at.job)).state
    except NotThere:
        return "unknown"
