"""`orch k8s check|init`, and kubectl itself, against the test API server."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from orchestrator.targets.kubernetes import rights
from orchestrator.targets.kubernetes.manifests.kinds import KINDS
from tests.local.test_kube import TRAIN, Orch, api, background, new_pod, orch, own_script
from tests.support import kube_http
from tests.support.kube_api import TOKEN as API_TOKEN
from tests.support.kube_api import Api
from tests.support.kube_operator import owner
from tests.support.kube_schema import check, needs_crds

__all__ = ["api", "orch"]
KEYS = {"topic", "state", "words", "cure"}
NODE = {
    "metadata": {"name": "n", "labels": {"feature.node.kubernetes.io/cpu-cpuid.AVX512BF16": "true"}},
    "spec": {},
    "status": {"allocatable": {"cpu": "16", "memory": "64Gi"}},
}
CLAIM = {"metadata": {"name": "orch"}, "spec": {"accessModes": ["ReadWriteMany"]}, "status": {"phase": "Bound"}}


def findings(done: subprocess.CompletedProcess[str]) -> dict[str, dict[str, Any]]:
    value = json.loads(done.stdout)
    assert (value["schema"], value["kind"]) == (1, "k8s check")
    assert all(one.keys() == KEYS for one in value["findings"])
    assert value["ready"] is (done.returncode == 0)
    return {one["topic"]: one for one in value["findings"]}


def test_a_cluster_that_is_ready(api: Api, orch: Orch) -> None:
    api.put("nodes", NODE)
    api.put("persistentvolumeclaims", CLAIM)
    end = background(orch, "k8s", "check", "--json", "--nodes", "2")
    api.await_(lambda: api.names("pods"))
    made = api.get("pods", "orch-image-check")
    assert made is not None
    ended = [{"state": {"terminated": {"exitCode": 2}}}]
    api.put("pods", {**made, "status": {"phase": "Failed", "containerStatuses": ended}})
    done = end()
    found = findings(done)
    assert done.returncode == 0, done.stdout
    assert {one["state"] for one in found.values()} == {"ok"}
    assert "v1.36.1" in found["API"]["words"]
    assert api.names("pods") == []


def test_every_miss_has_its_cure(api: Api, orch: Orch) -> None:
    del api.state.groups["trainer.kubeflow.org"]
    api.state.denied |= {("create", "pods/exec"), ("patch", "pytorchjobs")}
    api.put("nodes", {**NODE, "status": {"allocatable": {"cpu": "1", "memory": "2Gi"}}})
    done = orch("k8s", "check", "--json", "--no-pull", "--launcher", "pytorchjob", warm=False)
    found = findings(done)
    assert done.returncode == 1
    assert found["TrainJob"]["state"] == "absent"
    for topic in ("rights", "volume", "nodes"):
        assert (found[topic]["state"], bool(found[topic]["cure"])) == ("miss", True)
    assert "pods/exec" in found["rights"]["words"]
    text = orch("k8s", "check", "--no-pull").stdout
    assert "MISS  volume: no claim orch\n      cure: `orch k8s init --apply`" in text


def test_an_image_that_cannot_be_pulled(api: Api, orch: Orch) -> None:
    end = background(orch, "k8s", "check", "--json")
    api.await_(lambda: api.names("pods"))
    made = api.get("pods", "orch-image-check")
    assert made is not None
    waiting = [{"state": {"waiting": {"reason": "ErrImagePull", "message": "denied"}}}]
    api.put("pods", {**made, "status": {"phase": "Pending", "containerStatuses": waiting}})
    found = findings(end())
    assert found["image"]["state"] == "miss"
    assert "cannot be pulled: denied" in found["image"]["words"]
    assert api.names("pods") == []


def test_a_probe_that_is_still_ending_is_waited_for(api: Api, orch: Orch) -> None:
    """And it is tried where the run's pods would be, with the account whose secrets they pull."""
    api.state.grace = 12.0
    wishes = (
        "tolerations=dedicated=training:NoSchedule",
        "node_affinity=disk",
        "runtime_class=kata",
        "service_account=puller",
    )
    known: list[str] = []
    for _ in range(2):
        words = [word for one in wishes for word in ("--k8s", one)]
        end = background(orch, "k8s", "check", "--json", *words)
        made = api.await_(lambda: new_pod(api, known), 60.0)
        known.append(made["metadata"]["uid"])
        spec = made["spec"]
        assert spec["tolerations"][0]["key"] == "dedicated"
        assert "nodeAffinity" in spec["affinity"]
        assert (spec["runtimeClassName"], spec["serviceAccountName"]) == ("kata", "puller")
        ended = [{"state": {"terminated": {"exitCode": 2}}}]
        api.put("pods", {**made, "status": {"phase": "Failed", "containerStatuses": ended}})
        assert findings(end())["image"]["state"] == "ok"


def test_an_api_that_cannot_be_reached(api: Api, orch: Orch, tmp_path: Path) -> None:
    text = (tmp_path / "kubeconfig").read_text()
    (tmp_path / "kubeconfig").write_text(text.replace(API_TOKEN, "old"))
    found = findings(orch("k8s", "check", "--json"))
    assert list(found) == ["API"]
    assert "Authentication with the API" in found["API"]["words"]
    (tmp_path / "kubeconfig").write_text(text.replace(api.url, "http://127.0.0.1:9"))
    done = orch("k8s", "check", "--json")
    assert findings(done)["API"]["state"] == "miss"


def test_init_prints_without_the_token_and_applies_with_it(api: Api, orch: Orch, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("hf_verysecret\n")
    shown = orch("k8s", "init", "--token-file", "token", "--runtime")
    encoded = base64.b64encode(b"hf_verysecret").decode()
    assert shown.returncode == 0, shown.stderr
    assert "hf_verysecret" not in shown.stdout + shown.stderr
    assert encoded not in shown.stdout
    done = orch("k8s", "init", "--token-file", "token", "--runtime", "--apply", "--json", warm=False)
    value = json.loads(done.stdout)
    assert value == {
        "schema": 1,
        "kind": "k8s init",
        "applied": ["PersistentVolumeClaim orch", "Secret orch-hf", "TrainingRuntime orch-torch"],
    }
    secret = api.get("secrets", "orch-hf")
    assert secret is not None
    assert secret["data"] == {"HF_TOKEN": encoded}
    again = orch("k8s", "init", "--apply")
    assert again.returncode == 0, "applying again changes nothing"
    train = orch("train", "bert-qa", *TRAIN, "--dry-run")
    assert encoded not in train.stdout


def test_init_takes_nothing_over(api: Api, orch: Orch) -> None:
    assert orch("k8s", "init", "--apply").returncode == 0
    key = ("persistentvolumeclaims", "orch")
    path = ".spec.resources.requests.storage"
    api.state.owners[key] = {path: "helm"}
    done = orch("k8s", "init", "--apply", "--k8s", "storage=99Gi")
    assert done.returncode == 1
    assert 'conflict with "helm"' in done.stderr


@needs_crds
def test_the_shared_runtime_is_what_the_crd_says(api: Api, orch: Orch) -> None:
    assert orch("k8s", "init", "--apply", "--runtime").returncode == 0
    made = api.get("trainingruntimes", "orch-torch")
    assert made is not None
    check(made)


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="no kubectl")
@pytest.mark.parametrize("launcher", ["pytorchjob", "mpijob", "trainjob"])
def test_kubectl_takes_the_manifest_as_it_is(api: Api, orch: Orch, tmp_path: Path, launcher: str) -> None:
    done = orch("train", "bert-qa", *TRAIN, "--launcher", launcher, "--dry-run", "-o", "yaml")
    api.state.anonymous = True
    created = subprocess.run(
        ["kubectl", "create", "--dry-run=client", "--validate=false", "-f", "-"],
        input=done.stdout,
        capture_output=True,
        text=True,
        timeout=60,
        env=os.environ | {"KUBECONFIG": str(tmp_path / "kubeconfig"), "HOME": str(tmp_path)},
    )
    assert created.returncode == 0, created.stderr
    assert created.stdout.count("created (dry run)") == (3 if launcher == "trainjob" else 2)


def test_a_namespace_that_is_not_there(api: Api, orch: Orch) -> None:
    """Kubernetes says of it that everything is allowed in it."""
    done = orch("k8s", "check", "--json", "--k8s", "namespace=nowhere")
    found = findings(done)
    assert list(found) == ["API", "namespace"]
    assert found["namespace"]["state"] == "miss"
    assert "kubectl create namespace nowhere" in found["namespace"]["cure"]
    init = orch("k8s", "init", "--apply", "--k8s", "namespace=nowhere")
    assert init.returncode == 1
    assert "kubectl create namespace nowhere" in init.stderr


def test_a_claim_that_one_may_not_look_at_does_not_end_the_check(api: Api, orch: Orch) -> None:
    api.state.denied.add(("get", "persistentvolumeclaims"))
    found = findings(orch("k8s", "check", "--json", "--no-pull"))
    assert found["volume"]["state"] == "unknown"
    assert "nodes" in found
    assert "get persistentvolumeclaims" in found["rights"]["words"]


def test_the_role_that_is_told_is_the_one_that_is_needed(
    api: Api, orch: Orch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of it, and nothing more. What a job owns is there for a while after it."""
    monkeypatch.setattr(kube_http, "GARBAGE_SECONDS", 10.0)
    api.put("persistentvolumeclaims", CLAIM)
    kind = KINDS["trainjob"]
    del api.state.groups["kubeflow.org"]
    api.state.role = {right[:3] for right in (*rights.RIGHTS, *rights.rights_for(kind))}
    end = background(orch, "k8s", "check", "--json", "--launcher", "trainjob")
    pod_runs(api, {"phase": "Failed", "containerStatuses": [{"state": {"terminated": {"exitCode": 2}}}]})
    found = findings(end())
    assert (found["rights"]["state"], found["image"]["state"]) == ("ok", "ok")
    assert api.names("pods") == []
    done = orch(
        "train", own_script(tmp_path), *TRAIN, "--launcher", "trainjob", "--detach", "--json", "--backend", "gloo"
    )
    assert done.returncode == 0, done.stderr
    run = json.loads(done.stdout)["run_id"]
    watched = background(orch, "attach", run)
    api.await_(lambda: any("watch=true" in path for _, path in api.state.requests))
    (job,) = api.names("trainjobs")
    made = api.get("trainjobs", job) or {}
    name = f"{job}-node-0-0-abcde"
    labels = made["metadata"]["labels"]
    status = {"phase": "Running", "containerStatuses": [{"state": {"running": {}}}]}
    api.put(
        "pods",
        {"metadata": {"name": name, "labels": labels, "ownerReferences": [owner(made)]}, "spec": {}, "status": status},
    )
    api.say(name, "[0] hello", end=True)
    api.await_((tmp_path / "runs" / run / "ranks" / "rank-0.log").exists)
    (tmp_path / "volume" / "runs" / run / "out").mkdir(parents=True)
    fetched = background(orch, "fetch", run, "--from", str(tmp_path / "volume" / "runs" / run))
    pod_runs(api, status, "-reader")
    assert fetched().returncode == 0, fetched().stderr
    assert orch("runs", "--inventory", "k8s").returncode == 0
    assert orch("stop", run).returncode == 0
    watched()
    assert orch("clean", "--inventory", "k8s", "--check").returncode == 0
    # Asked for, and done without where they are refused.
    others = {("list", one.group, one.plural) for one in KINDS.values() if one != kind}
    optional = {right[:3] for right in rights.OPTIONAL_RIGHTS}
    spare = {("list", "", "nodes"), ("list", "", "services"), *others, *optional}
    ours = api.state.used - spare
    assert ours == api.state.role


def pod_runs(api: Api, status: dict[str, Any], end: str = "") -> None:
    (name,) = api.await_(lambda: [one for one in api.names("pods") if one.endswith(end)], 60.0)
    api.put("pods", {**(api.get("pods", name) or {}), "status": status})
