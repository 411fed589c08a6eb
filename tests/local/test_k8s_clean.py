"""`orch clean --inventory k8s`: what runs have left in the namespace goes, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.kube_api import Api
from tests.local.test_kube import Orch, api, orch, started

__all__ = ["api", "orch"]
OLD = "2026-01-02T03:04:05Z"
MANAGED = {"app.kubernetes.io/managed-by": "orch"}
GONE = "20260102-030405-own-ab12"


def made(name: str, run: str | None = GONE, when: str | None = OLD, **more: Any) -> dict[str, Any]:
    labels = MANAGED | ({"orch/run": run} if run else {})
    metadata = {"name": name, "labels": labels} | ({"creationTimestamp": when} if when else {})
    return {"metadata": metadata, **more}


def test_only_what_no_job_needs_is_taken_away(api: Api, orch: Orch, tmp_path: Path) -> None:
    run, job = started(api, orch, tmp_path)
    own = set(api.names("configmaps"))
    api.put("configmaps", made("left-behind"))
    api.put("configmaps", made("of-no-run", run=None))
    api.put("configmaps", made("of-a-living-run", run=run))
    api.put("configmaps", made("just-made", when=None))
    api.put("configmaps", {"metadata": {"name": "somebody-elses", "creationTimestamp": OLD}})
    api.put("pods", made("reader", run=run, status={"phase": "Succeeded"}))
    owned = made("owned")
    owned["metadata"]["ownerReferences"] = [{"kind": "PyTorchJob", "name": "another", "uid": "1"}]
    api.put("configmaps", owned)
    gone = [f"{GONE}: ConfigMap left-behind", f"{run}: Pod reader"]
    before = set(api.names("configmaps"))

    looked = orch("clean", "--inventory", "k8s", "--check", "--json")
    assert looked.returncode == 1, looked.stderr
    (node,) = json.loads(looked.stdout)["nodes"]
    assert (node["node"], node["state"]) == ("team", "left")
    assert sorted(node["left"]) == sorted(gone)
    assert set(api.names("configmaps")) == before

    cleaned = orch("clean", "--inventory", "k8s", "--json")
    assert cleaned.returncode == 0, cleaned.stderr
    (node,) = json.loads(cleaned.stdout)["nodes"]
    assert sorted(node["ended"]) == sorted(gone)
    kept = {"of-no-run", "of-a-living-run", "just-made", "somebody-elses", "owned"}
    assert set(api.names("configmaps")) == own | kept
    assert api.names("pods") == []
    assert api.names("pytorchjobs") == [job]
    assert orch("clean", "--inventory", "k8s", "--check").returncode == 0
