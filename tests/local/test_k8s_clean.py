"""`orch clean --inventory k8s`: what runs have left in the namespace goes, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.local.test_kube import TRAIN, Orch, api, orch, own_script, started
from tests.support.kube_api import Api

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

    cleaned = orch("clean", "--inventory", "k8s", "--json", warm=False)
    assert cleaned.returncode == 0, cleaned.stderr
    (node,) = json.loads(cleaned.stdout)["nodes"]
    assert sorted(node["ended"]) == sorted(gone)
    kept = {"of-no-run", "of-a-living-run", "just-made", "somebody-elses", "owned"}
    assert set(api.names("configmaps")) == own | kept
    assert api.names("pods") == []
    assert api.names("pytorchjobs") == [job]
    assert orch("clean", "--inventory", "k8s", "--check").returncode == 0


def condition(kind: str, when: str) -> dict[str, Any]:
    return {"type": kind, "status": "True", "message": "", "lastTransitionTime": when}


@pytest.mark.parametrize("launcher", ["trainjob", "mpijob"])
@pytest.mark.parametrize("way", ["clean", "train"])
def test_a_job_goes_when_its_time_to_live_is_over(
    api: Api, orch: Orch, tmp_path: Path, launcher: str, way: str
) -> None:
    """The operators of these kinds keep it, or what they have made of it, or train again."""
    more = ("--launcher", launcher, "--backend", "gloo", "--detach")
    for ttl in ("60", "99999999", "60"):
        done = orch("train", own_script(tmp_path), *TRAIN, *more, "--k8s", f"ttl={ttl}")
        assert done.returncode == 0, done.stderr
    plural = f"{launcher}s"
    jobs = {name: api.get(plural, name) for name in api.names(plural)}
    ended, kept, runs = [], [], {}
    for name, job in jobs.items():
        assert job is not None
        runs[name] = job["metadata"]["labels"]["orch/run"]
        ttl = job["metadata"]["annotations"]["orch/ttl"]
        if ttl == "60" and not ended:
            api.put(plural, {**job, "status": {"conditions": [condition("Complete", OLD)]}})
            ended.append(name)
            continue
        kept.append(name)
        if ttl != "60":
            api.put(plural, {**job, "status": {"conditions": [condition("Failed", OLD)]}})
    if way == "clean":
        looked = orch("clean", "--inventory", "k8s", "--check", "--json")
        (node,) = json.loads(looked.stdout)["nodes"]
        (told,) = node["left"]
        assert told.startswith(f"{runs[ended[0]]}: ")
        assert orch("clean", "--inventory", "k8s").returncode == 0
        assert api.names(plural) == sorted(kept)
    else:
        assert orch("train", own_script(tmp_path), *TRAIN, *more).returncode == 0
        assert set(kept) < set(api.names(plural))
        assert ended[0] not in api.names(plural)
    others = ("configmaps", "trainingruntimes")
    api.await_(lambda: not any(one.startswith(ended[0]) for kind in others for one in api.names(kind)))
