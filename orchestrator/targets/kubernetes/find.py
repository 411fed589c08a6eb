"""Runs that a Kubernetes cluster knows, whoever started them."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from orch_node.protocol import values
from orch_node.protocol.record import RunRecord
from orch_node.protocol.values import ProtocolError

from orchestrator.errors import OrchError
from orchestrator.runs import store
from orchestrator.runs.rows import row_of
from orchestrator.runs.state_files import PLAN
from orchestrator.targets.interface import Listed
from orchestrator.targets.kubernetes.api.client import Kube
from orchestrator.targets.kubernetes.api.connect import connect
from orchestrator.targets.kubernetes.api.errors import NotThere
from orchestrator.targets.kubernetes.load import kube_settings
from orchestrator.targets.kubernetes.manifests import names
from orchestrator.targets.kubernetes.objects import adopt
from orchestrator.targets.kubernetes.run_record import location_of, with_lists
from orchestrator.targets.kubernetes.status import job_state
from orchestrator.targets.kubernetes.trusted_record import trusted_record


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a namespace says: the records of its runs, oldest first; run id -> why its record is
    shown, but not followed; those that cannot be read, in words."""

    cluster: Kube
    records: tuple[RunRecord, ...]
    unfollowed: Mapping[str, OrchError]
    damaged: tuple[str, ...]


def cluster_of(inventory: str) -> Kube:
    """`k8s`, or `k8s:NAMESPACE`; else as orch-k8s.toml says."""
    settings = kube_settings(None, [])
    namespace = inventory.partition(":")[2] or settings.namespace
    return connect(settings.context, namespace)


def ask_cluster(cluster: Kube) -> Asked:
    """The runs of the namespace, as far as they can be read and followed."""
    settings = replace(kube_settings(None, []), context=cluster.context, namespace=cluster.namespace)
    found: list[RunRecord] = []
    unfollowed: dict[str, OrchError] = {}
    damaged: list[str] = []
    for one in cluster.objects("ConfigMap", names.selector()):
        text = (one.get("data") or {}).get("run.json")
        if text is None:
            continue
        try:
            record = with_lists(values.loads(text, "run.json"))
        except ProtocolError as error:
            damaged.append(f"{one['metadata']['name']}: {error}")
            continue
        try:
            record = trusted_record(record, settings, label=one["metadata"]["labels"][names.RUN])
        except OrchError as error:
            unfollowed[record.run_id] = error
        found.append(record)
    ordered = sorted(found, key=lambda record: (record.created, record.run_id))
    return Asked(cluster=cluster, records=tuple(ordered), unfollowed=unfollowed, damaged=tuple(damaged))


def find(base: Path, name: str, inventory: str) -> tuple[RunRecord, Path]:
    """A run by its id, or `last`; -> its record, and its folder here. Raises OrchError."""
    asked = ask_cluster(cluster_of(inventory))
    known = {record.run_id: record for record in asked.records}
    is_last = name == "last" and known
    wanted = list(known)[-1] if is_last else store.match_id(name, list(known), f"in {inventory}")
    if why := asked.unfollowed.get(wanted):
        raise why
    folder = base / wanted
    if not (folder / PLAN).exists():
        store.keep(known[wanted], folder)
    with suppress(OrchError):  # one who may only look does not mend
        adopt(asked.cluster, location_of(known[wanted]), wanted)
    return known[wanted], folder


def list_runs(inventory: str) -> Listed:
    cluster = cluster_of(inventory)
    asked = ask_cluster(cluster)
    rows = (
        row_of(
            record,
            state="unknown" if record.run_id in asked.unfollowed else state_in(cluster, record),
            nodes=(host.node for host in record.nodes),
            progress="",
            folder=record.run_dir,
        )
        for record in asked.records
    )
    damaged = (f"a run is damaged and left out: {words}" for words in asked.damaged)
    return Listed(rows=tuple(rows), warnings=(*damaged, *(one.message for one in asked.unfollowed.values())))


def state_in(cluster: Kube, record: RunRecord) -> str:
    at = location_of(record)
    try:
        return job_state(cluster.job(at.group, at.version, at.plural, at.job)).state
    except NotThere:
        return "unknown"
