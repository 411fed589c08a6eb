"""Runs that a Kubernetes cluster knows, whoever started them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from orchestrator import runs
from orchestrator.backends.kube import Kube
from orchestrator.backends.kube_connect import connect
from orchestrator.backends.kube_errors import NotThere
from orchestrator.card import Whereabouts, whereabouts
from orchestrator.errors import RequestError, did_you_mean
from orchestrator.kube import names
from orchestrator.kube.card import whole
from orchestrator.kube.status import job_state
from orchestrator.load.kube import kube_settings


def cluster_of(inventory: str) -> Kube:
    """`k8s`, or `k8s:NAMESPACE`; else as orch-k8s.toml says."""
    settings = kube_settings(None, [])
    namespace = inventory.partition(":")[2] or settings.namespace
    return connect(settings.context, namespace)


def cards(cluster: Kube) -> list[dict[str, Any]]:
    """The cards of all runs in the namespace, oldest first."""
    found = []
    for one in cluster.objects("ConfigMap", names.selector()):
        card = (one.get("data") or {}).get("run.json")
        if card is not None:
            made = whole(json.loads(card))
            made["kube"] |= {"context": cluster.context, "namespace": cluster.namespace}
            found.append(made)
    return sorted(found, key=lambda card: (card["created"], card["run_id"]))


def find(base: Path, name: str, inventory: str) -> tuple[Whereabouts, Path]:
    """A run by its id, or `last`. Raises RequestError."""
    known = {card["run_id"]: card for card in cards(cluster_of(inventory))}
    wanted = list(known)[-1] if name == "last" and known else name
    if wanted not in known:
        raise RequestError(
            f"There is no run '{name}' in {inventory}.",
            hint=did_you_mean(name, list(known)[-10:]) if known else "",
        )
    folder = base / wanted
    if not (folder / "plan.json").exists():
        runs.keep(known[wanted], folder)
    return whereabouts(known[wanted]), folder


def rows(inventory: str) -> list[dict[str, Any]]:
    """As `orch runs` lists them."""
    cluster = cluster_of(inventory)
    return [
        {
            "id": card["run_id"],
            "state": state(cluster, card["kube"]),
            "recipe": card["recipe"],
            "ranks": len(card["layout"]),
            "backend": card["backend"],
            "precision": card["precision"],
            "nodes": [node["node"] for node in card["nodes"]],
            "progress": "",
            "started_by": card["started_by"],
            "created": card["created"],
            "folder": card["run_dir"],
        }
        for card in cards(cluster)
    ]


def state(cluster: Kube, kube: dict[str, Any]) -> str:
    try:
        job = cluster.job(kube["group"], kube["version"], kube["plural"], kube["job"])
    except NotThere:
        return "unknown"
    return job_state(job).state
