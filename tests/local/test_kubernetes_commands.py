"""Run `orch k8s check|init`, dry runs without a launcher, and kubectl itself against the test API server."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from orchestrator.targets.kubernetes import rights
from orchestrator.targets.kubernetes.manifests.kinds import KINDS
from tests.local.kubernetes_runs import (
    PYTORCHJOB,
    RUNNING,
    TWO_PODS,
    KubernetesRun,
    await_new_pod,
    check_findings,
    get_object,
    in_background,
    pod_status,
    rank_event,
    rank_started,
    set_pod_status,
)
from tests.local.runs import Orch, expect_exit, write_script
from tests.support import kubernetes_http
from tests.support.kubernetes_api import Api
from tests.support.kubernetes_http import TOKEN
from tests.support.kubernetes_operator import owner_reference
from tests.support.kubernetes_schema import check_manifest, needs_crds

NODE = {
    "metadata": {"name": "n", "labels": {"feature.node.kubernetes.io/cpu-cpuid.AVX512BF16": "true"}},
    "spec": {},
    "status": {"allocatable": {"cpu": "16", "memory": "64Gi"}},
}
CLAIM = {"metadata": {"name": "orch"}, "spec": {"accessModes": ["ReadWriteMany"]}, "status": {"phase": "Bound"}}
CHECK = ("k8s", "check", "--json")
PROBE_PULLED = pod_status("Failed", terminated={"exitCode": 2})


# Check.


def test_check_finds_nothing_missing_in_a_ready_cluster(api: Api, orch: Orch) -> None:
    api.put("nodes", NODE)
    api.put("persistentvolumeclaims", CLAIM)
    wait = in_background(orch, *CHECK, "--nodes", "2")
    set_pod_status(api, PROBE_PULLED)
    findings = check_findings(expect_exit(wait()))
    assert {finding["state"] for finding in findings.values()} == {"ok"}
    assert "v1.36.1" in findings["API"]["words"]
    assert api.names("pods") == []


def test_check_reports_a_cure_for_each_miss(api: Api, orch: Orch) -> None:
    del api.state.groups["trainer.kubeflow.org"]
    api.state.denied_permissions |= {("create", "pods/exec"), ("patch", "pytorchjobs")}
    api.put("nodes", {**NODE, "status": {"allocatable": {"cpu": "1", "memory": "2Gi"}}})
    process = expect_exit(orch(*CHECK, "--no-pull", "--launcher", "pytorchjob", warm=False), 1)
    findings = check_findings(process)
    assert findings["TrainJob"]["state"] == "absent"
    for topic in ("rights", "volume", "nodes"):
        assert (findings[topic]["state"], bool(findings[topic]["cure"])) == ("miss", True)
    assert "pods/exec" in findings["rights"]["words"]
    text = orch("k8s", "check", "--no-pull").stdout
    assert "MISS  volume: no claim orch\n      cure: `orch k8s init --apply`" in text


def test_check_reports_an_image_that_cannot_be_pulled(api: Api, orch: Orch) -> None:
    wait = in_background(orch, *CHECK)
    set_pod_status(api, pod_status("Pending", waiting={"reason": "ErrImagePull", "message": "denied"}))
    findings = check_findings(wait())
    assert findings["image"]["state"] == "miss"
    assert "cannot be pulled: denied" in findings["image"]["words"]
    assert api.names("pods") == []


def test_check_waits_until_an_earlier_probe_is_gone(api: Api, orch: Orch) -> None:
    """Check that the probe uses the nodes and the account of the run's pods, too."""
    api.state.grace_seconds = 12.0
    settings = (
        "tolerations=dedicated=training:NoSchedule",
        "node_affinity=disk",
        "runtime_class=kata",
        "service_account=puller",
    )
    options = [word for setting in settings for word in ("--k8s", setting)]
    known_uids: list[str] = []
    for _ in range(2):
        wait = in_background(orch, *CHECK, *options)
        probe = await_new_pod(api, known_uids)
        spec = probe["spec"]
        assert spec["tolerations"][0]["key"] == "dedicated"
        assert "nodeAffinity" in spec["affinity"]
        assert (spec["runtimeClassName"], spec["serviceAccountName"]) == ("kata", "puller")
        api.put("pods", {**probe, "status": PROBE_PULLED})
        assert check_findings(wait())["image"]["state"] == "ok"


def test_check_reports_an_api_that_cannot_be_reached(api: Api, orch: Orch, tmp_path: Path) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    text = kubeconfig.read_text()
    kubeconfig.write_text(text.replace(TOKEN, "old"))
    findings = check_findings(orch(*CHECK))
    assert list(findings) == ["API"]
    assert "Authentication with the API" in findings["API"]["words"]
    kubeconfig.write_text(text.replace(api.url, "http://127.0.0.1:9"))
    assert check_findings(orch(*CHECK))["API"]["state"] == "miss"


@pytest.mark.usefixtures("api")
def test_check_reports_a_missing_namespace(orch: Orch) -> None:
    """Kubernetes allows everything in a namespace that does not exist."""
    namespace = ("--k8s", "namespace=nowhere")
    findings = check_findings(orch(*CHECK, *namespace))
    assert list(findings) == ["API", "namespace"]
    assert findings["namespace"]["state"] == "miss"
    assert "kubectl create namespace nowhere" in findings["namespace"]["cure"]
    process = expect_exit(orch("k8s", "init", "--apply", *namespace), 1)
    assert "kubectl create namespace nowhere" in process.stderr


def test_check_continues_when_it_may_not_read_the_claim(api: Api, orch: Orch) -> None:
    api.state.denied_permissions.add(("get", "persistentvolumeclaims"))
    findings = check_findings(orch(*CHECK, "--no-pull"))
    assert findings["volume"]["state"] == "unknown"
    assert "nodes" in findings
    assert "get persistentvolumeclaims" in findings["rights"]["words"]


def test_described_role_has_exactly_the_rights_that_are_used(
    api: Api, orch: Orch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Use all commands; objects of a deleted job exist for a while, as on a real cluster."""
    monkeypatch.setattr(kubernetes_http, "GARBAGE_SECONDS", 10.0)
    api.put("persistentvolumeclaims", CLAIM)
    kind = KINDS["trainjob"]
    del api.state.groups["kubeflow.org"]
    api.state.role = {right[:3] for right in (*rights.RIGHTS, *rights.rights_for(kind))}
    wait = in_background(orch, *CHECK, "--launcher", "trainjob")
    set_pod_status(api, PROBE_PULLED)
    findings = check_findings(wait())
    assert (findings["rights"]["state"], findings["image"]["state"]) == ("ok", "ok")
    assert api.names("pods") == []
    options = (*TWO_PODS, "--launcher", "trainjob", "--detach", "--json", "--backend", "gloo")
    process = expect_exit(orch("train", write_script(tmp_path), *options))
    run = json.loads(process.stdout)["run_id"]
    wait = in_background(orch, "attach", run)
    api.wait_for(lambda: any("watch=true" in path for _, path in api.state.requests))
    job = get_object(api, "trainjobs")
    name = f"{job['metadata']['name']}-node-0-0-abcde"
    metadata = {"name": name, "labels": job["metadata"]["labels"], "ownerReferences": [owner_reference(job)]}
    api.put("pods", {"metadata": metadata, "spec": {}, "status": RUNNING})
    api.add_log_lines(name, "[0] hello", end=True)
    api.wait_for((tmp_path / "runs" / run / "ranks" / "rank-0.log").exists)
    volume = tmp_path / "volume" / "runs" / run
    (volume / "out").mkdir(parents=True)
    wait_for_fetch = in_background(orch, "fetch", run, "--from", str(volume))
    set_pod_status(api, RUNNING, "-reader")
    expect_exit(wait_for_fetch())
    expect_exit(orch("runs", "--inventory", "k8s"))
    expect_exit(orch("stop", run))
    wait()
    expect_exit(orch("clean", "--inventory", "k8s", "--dry-run"))
    # These rights are used, but orch works without them.
    other_kinds = {("list", kind.group, kind.plural) for name, kind in KINDS.items() if name != "trainjob"}
    optional = {right[:3] for right in rights.OPTIONAL_RIGHTS}
    optional |= {("list", "", "nodes"), ("list", "", "services"), *other_kinds}
    assert api.state.used_permissions - optional == api.state.role


# Init.


def test_init_prints_manifests_without_the_token_and_applies_them_with_it(api: Api, orch: Orch, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("hf_verysecret\n")
    init = ("k8s", "init", "--token-file", "token", "--runtime")
    printed = expect_exit(orch(*init))
    encoded = base64.b64encode(b"hf_verysecret").decode()
    assert "hf_verysecret" not in printed.stdout + printed.stderr
    assert encoded not in printed.stdout
    applied = orch(*init, "--apply", "--json", warm=False)
    assert json.loads(applied.stdout) == {
        "schema": 1,
        "kind": "k8s init",
        "applied": ["PersistentVolumeClaim orch", "Secret orch-hf", "TrainingRuntime orch-torch"],
    }
    assert get_object(api, "secrets", "orch-hf")["data"] == {"HF_TOKEN": encoded}
    expect_exit(orch("k8s", "init", "--apply"))
    assert encoded not in orch("train", "bert-qa", *PYTORCHJOB, "--dry-run", "-o", "sh").stdout


def test_init_does_not_take_over_fields_of_another_manager(api: Api, orch: Orch) -> None:
    expect_exit(orch("k8s", "init", "--apply"))
    api.state.owners["persistentvolumeclaims", "orch"] = {".spec.resources.requests.storage": "helm"}
    process = expect_exit(orch("k8s", "init", "--apply", "--k8s", "storage=99Gi"), 1)
    assert 'conflict with "helm"' in process.stderr


@needs_crds
def test_shared_runtime_conforms_to_its_crd(api: Api, orch: Orch) -> None:
    expect_exit(orch("k8s", "init", "--apply", "--runtime"))
    check_manifest(get_object(api, "trainingruntimes", "orch-torch"))


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="no kubectl")
@pytest.mark.parametrize(("launcher", "objects"), [("pytorchjob", 2), ("mpijob", 2), ("trainjob", 3)])
def test_kubectl_accepts_printed_manifests(api: Api, orch: Orch, tmp_path: Path, launcher: str, objects: int) -> None:
    printed = orch("train", "bert-qa", *TWO_PODS, "--launcher", launcher, "--dry-run", "-o", "yaml")
    api.state.allow_anonymous = True
    command = ["kubectl", "create", "--dry-run=client", "--validate=false", "-f", "-"]
    environment = os.environ | {"HOME": str(tmp_path)}
    created = subprocess.run(command, input=printed.stdout, capture_output=True, text=True, timeout=60, env=environment)
    assert expect_exit(created).stdout.count("created (dry run)") == objects


# The default launcher.


def dry_run_kinds(orch: Orch) -> tuple[list[str], str]:
    """Return the kinds of the objects of a dry run, and the reason for its launcher."""
    process = expect_exit(orch("train", "bert-qa", *TWO_PODS, "--dry-run", "--json"))
    plan = json.loads(process.stdout)
    (reason,) = [decision["reason"] for decision in plan["decisions"] if decision["topic"] == "launcher"]
    return [manifest["kind"] for manifest in plan["objects"]], reason


def test_dry_run_without_launcher_queries_only_the_kinds_of_the_cluster(api: Api, orch: Orch) -> None:
    kinds, _ = dry_run_kinds(orch)
    assert kinds == ["ConfigMap", "TrainingRuntime", "TrainJob"]
    del api.state.groups["trainer.kubeflow.org"]
    kinds, reason = dry_run_kinds(orch)
    assert kinds == ["ConfigMap", "PyTorchJob"]
    assert reason.endswith("the cluster has no TrainJob")
    assert {method for method, _ in api.state.requests} == {"GET"}
    assert all(path.startswith("/apis/") for _, path in api.state.requests)


def test_dry_run_without_launcher_and_cluster_reports_its_assumption(api: Api, orch: Orch, tmp_path: Path) -> None:
    (tmp_path / "kubeconfig").write_text("")
    kinds, reason = dry_run_kinds(orch)
    assert kinds[-1] == "TrainJob"
    assert "assumed: no cluster could be queried (No cluster is configured" in reason


@pytest.mark.usefixtures("api")
def test_check_reports_the_default_launcher(orch: Orch) -> None:
    process = orch("k8s", "check", "--no-pull")
    assert "ok    default: --launcher trainjob: the cluster has it" in process.stdout


def test_lists_of_runs_have_the_progress_in_the_logs_of_pods(api: Api, run: KubernetesRun) -> None:
    pod = run.set_pod(0, RUNNING)
    run.finish()
    progress = [rank_event("progress", 0, phase="train", step=step, steps=8) for step in (1, 3)]
    api.add_log_lines(pod, rank_started(), *progress)
    for inventory in ((), ("--inventory", "k8s")):
        (row,) = json.loads(expect_exit(run.orch("runs", *inventory, "--json")).stdout)["runs"]
        assert (row["id"], row["state"], row["progress"]) == (run.id, "running", "train 3/8")
