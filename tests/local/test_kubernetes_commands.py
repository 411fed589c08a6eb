"""Run `orch k8s check|init`, `orch clean` and dry runs without a launcher against the test API server."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from orchestrator.targets.kubernetes.manifests import KINDS
from tests.local.kubernetes_runs import (
    OLD_TIMESTAMP,
    PYTORCHJOB,
    RUNNING,
    TWO_PODS,
    KubernetesRun,
    check_findings,
    get_object,
    in_background,
    rank_event,
    rank_started,
    set_pod_status,
)
from tests.local.runs import Orch, expect_exit, write_script
from tests.support import kubernetes_http
from tests.support.kubernetes_api import Api
from tests.support.kubernetes_operator import owner_reference
from tests.support.kubernetes_schema import check_manifest, needs_crds

CLAIM = {"metadata": {"name": "orch"}, "spec": {"accessModes": ["ReadWriteMany"]}, "status": {"phase": "Bound"}}
CHECK = ("k8s", "check", "--json")


# Check.


def test_check_finds_nothing_missing_in_a_ready_cluster(api: Api, orch: Orch) -> None:
    api.put("persistentvolumeclaims", CLAIM)
    findings = check_findings(expect_exit(orch(*CHECK, "--nodes", "2", warm=False)))
    assert {finding["state"] for finding in findings.values()} == {"ok"}
    assert "v1.36.1" in findings["API"]["words"]
    assert findings["default"]["words"].startswith("--launcher trainjob: the cluster has it")
    assert findings["objects"]["words"] == "the API accepts ConfigMap, TrainingRuntime (dry run)"
    assert all(api.names(plural) == [] for plural in ("configmaps", "trainingruntimes", "pods")), "nothing is created"


def test_check_reports_what_the_api_refuses(api: Api, orch: Orch, tmp_path: Path) -> None:
    del api.state.groups["trainer.kubeflow.org"]
    api.state.denied_permissions |= {("patch", "pytorchjobs"), ("get", "persistentvolumeclaims")}
    findings = check_findings(expect_exit(orch(*CHECK, "--launcher", "pytorchjob"), 1))
    assert (findings["TrainJob"]["state"], findings["volume"]["state"]) == ("absent", "unknown")
    assert 'cannot patch resource "pytorchjobs"' in findings["objects"]["words"]
    assert "orch k8s role" in findings["objects"]["hint"]
    api.state.denied_permissions.clear()
    (tmp_path / "orch-k8s.toml").write_text("")
    text = orch("k8s", "check").stdout
    assert "MISS  volume: no claim orch\n      hint: `orch k8s init --apply`" in text
    assert "MISS  objects: No image is given for the pods." in text


@pytest.mark.usefixtures("api")
def test_check_reports_a_missing_namespace(orch: Orch) -> None:
    """Kubernetes allows everything in a namespace that does not exist."""
    finding = check_findings(orch(*CHECK, "--k8s", "namespace=nowhere"))["objects"]
    assert (finding["state"], finding["words"]) == ("miss", 'namespaces "nowhere" not found.')


def rights_in(role: dict[str, Any]) -> set[tuple[str, str, str]]:
    """Return the verb, the API group and the resource of each right in a Role."""
    return {
        (verb, group, resource)
        for rule in role["rules"]
        for verb in rule["verbs"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }


def test_printed_role_is_sufficient_for_all_kinds(api: Api, orch: Orch, tmp_path: Path) -> None:
    role = yaml.safe_load(expect_exit(orch("k8s", "role", "--k8s", "namespace=team")).stdout)
    assert (role["kind"], role["metadata"]["namespace"]) == ("Role", "team")
    api.state.role = rights_in(role)
    for launcher in KINDS:
        options = ("--launcher", launcher, "--detach", "--backend", "gloo", "--k8s", "queue=team-a")
        expect_exit(orch("train", write_script(tmp_path), *TWO_PODS, *options))
        expect_exit(orch("stop", "last"))
        assert all(api.names(plural) == [] for plural in (f"{launcher}s", "services", "configmaps"))
    assert api.state.used_permissions <= api.state.role


def test_role_has_no_unused_right(api: Api, orch: Orch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use all commands; objects of a deleted job exist for a while, as on a real cluster."""
    monkeypatch.setattr(kubernetes_http, "GARBAGE_SECONDS", 10.0)
    del api.state.groups["kubeflow.org"]
    api.state.role = rights_in(yaml.safe_load(orch("k8s", "role", "--launcher", "trainjob").stdout))
    (tmp_path / "token").write_text("hf_secret\n")
    expect_exit(orch("k8s", "init", "--apply", "--token-file", "token", "--runtime"))
    assert check_findings(expect_exit(orch(*CHECK)))["objects"]["state"] == "ok"
    options = (*TWO_PODS, "--launcher", "trainjob", "--detach", "--json", "--backend", "gloo")
    process = expect_exit(orch("train", write_script(tmp_path), *options))
    run = json.loads(process.stdout)["run_id"]
    wait = in_background(orch, "attach", run)
    api.wait_for(lambda: any("/pods?" in path for _, path in api.state.requests))
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
    other_kinds = {("list", kind.api.split("/")[0], f"{name}s") for name, kind in KINDS.items() if name != "trainjob"}
    assert api.state.used_permissions - other_kinds - {("list", "", "services")} == api.state.role


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
    assert not any("force=true" in path for _, path in api.state.requests), "fields of another manager stay"
    expect_exit(orch("k8s", "init", "--apply"))
    assert encoded not in orch("train", "bert-qa", *PYTORCHJOB, "--dry-run", "-o", "sh").stdout


@needs_crds
def test_shared_runtime_conforms_to_its_crd(api: Api, orch: Orch) -> None:
    expect_exit(orch("k8s", "init", "--apply", "--runtime"))
    check_manifest(get_object(api, "trainingruntimes", "orch-torch"))


# The default launcher.


def dry_run_kinds(orch: Orch) -> tuple[list[str], str]:
    """Return the kinds of the objects of a dry run, and the reason for its launcher."""
    process = expect_exit(orch("train", "bert-qa", *TWO_PODS, "--dry-run", "--json"))
    plan = json.loads(process.stdout)
    (reason,) = [decision["reason"] for decision in plan["decisions"] if decision["topic"] == "launcher"]
    return [manifest["kind"] for manifest in plan["objects"]], reason


def test_launcher_of_a_dry_run_is_a_kind_of_the_cluster_or_assumed(api: Api, orch: Orch, tmp_path: Path) -> None:
    expect_exit(orch("train", "bert-qa", *PYTORCHJOB, "--dry-run"))
    assert api.state.requests == [], "a plan for a given launcher needs no cluster"
    kinds, _ = dry_run_kinds(orch)
    assert kinds == ["ConfigMap", "TrainingRuntime", "TrainJob"]
    del api.state.groups["trainer.kubeflow.org"]
    kinds, reason = dry_run_kinds(orch)
    assert kinds == ["ConfigMap", "PyTorchJob"]
    assert reason.endswith("the cluster has no TrainJob")
    assert {method for method, _ in api.state.requests} == {"GET"}
    assert all(path.startswith("/apis/") for _, path in api.state.requests)
    (tmp_path / "kubeconfig").write_text("")
    kinds, reason = dry_run_kinds(orch)
    assert kinds[-1] == "TrainJob"
    assert "assumed: no cluster could be queried (No cluster is configured" in reason


def test_lists_of_runs_have_the_progress_in_the_logs_of_pods(api: Api, run: KubernetesRun) -> None:
    pod = run.set_pod(0, RUNNING)
    run.finish()
    progress = [rank_event("progress", 0, phase="train", step=step, steps=8) for step in (1, 3)]
    api.add_log_lines(pod, rank_started(), *progress)
    for inventory in ((), ("--inventory", "k8s")):
        (row,) = json.loads(expect_exit(run.orch("runs", *inventory, "--json")).stdout)["runs"]
        assert (row["id"], row["state"], row["progress"]) == (run.id, "running", "train 3/8")


# Clean.


MANAGED = {"app.kubernetes.io/managed-by": "orch"}
DELETED_RUN = "20260102-030405-own-ab12"
CLEAN = ("clean", "--inventory", "k8s")


def make_object(
    name: str, run: str | None = DELETED_RUN, created: str | None = OLD_TIMESTAMP, **fields: Any
) -> dict[str, Any]:
    """Return an object of a run, which has no job unless it is named."""
    labels = MANAGED | ({"orch/run": run} if run else {})
    metadata = {"name": name, "labels": labels} | ({"creationTimestamp": created} if created else {})
    return {"metadata": metadata, **fields}


def test_clean_deletes_only_objects_that_no_job_needs(api: Api, orch: Orch, run: KubernetesRun) -> None:
    objects_of_job = set(api.names("configmaps"))
    owned = make_object("owned")
    owned["metadata"]["ownerReferences"] = [{"kind": "PyTorchJob", "name": "another", "uid": "1"}]
    retained = (
        make_object("without-a-run", run=None),
        make_object("of-a-running-job", run=run.id),
        make_object("just-created", created=None),
        {"metadata": {"name": "of-another-program", "creationTimestamp": OLD_TIMESTAMP}},
        owned,
    )
    for config_map in (make_object("leftover"), *retained):
        api.put("configmaps", config_map)
    api.put("pods", make_object("reader", run=run.id, status={"phase": "Succeeded"}))
    api.put("trainingruntimes", make_object("runtime"))
    leftovers = [
        f"{DELETED_RUN}: ConfigMap leftover",
        f"{DELETED_RUN}: TrainingRuntime runtime",
        f"{run.id}: Pod reader",
    ]
    before = set(api.names("configmaps"))

    (node,) = json.loads(expect_exit(orch(*CLEAN, "--dry-run", "--json"), 1).stdout)["nodes"]
    assert (node["node"], node["state"]) == ("team", "left")
    assert sorted(node["left"]) == sorted(leftovers)
    assert set(api.names("configmaps")) == before

    (node,) = json.loads(expect_exit(orch(*CLEAN, "--json", warm=False)).stdout)["nodes"]
    assert sorted(node["ended"]) == sorted(leftovers)
    assert set(api.names("configmaps")) == objects_of_job | {value["metadata"]["name"] for value in retained}
    assert api.names("pods") == api.names("trainingruntimes") == []
    assert api.names("pytorchjobs") == [run.job]
    expect_exit(orch(*CLEAN, "--dry-run"))


def test_train_job_is_deleted_after_its_time_to_live(api: Api, orch: Orch, tmp_path: Path) -> None:
    """Use the kind whose operator keeps an ended job and has no time to live for it."""
    train = ("train", write_script(tmp_path), *TWO_PODS, "--launcher", "trainjob", "--backend", "gloo", "--detach")
    expect_exit(orch(*train, "--k8s", "ttl=60"))
    job = get_object(api, "trainjobs")
    unfinished, run = job["metadata"]["name"], job["metadata"]["labels"]["orch/run"]
    assert job["metadata"]["annotations"] == {"orch/ttl": "60"}

    def put_ended(name: str, ttl: str, kind: str) -> None:
        metadata = {key: value for key, value in job["metadata"].items() if key != "uid"}
        changes = {"name": name, "annotations": {"orch/ttl": ttl}}
        condition = {"type": kind, "status": "True", "message": "", "lastTransitionTime": OLD_TIMESTAMP}
        api.put("trainjobs", {**job, "metadata": metadata | changes, "status": {"conditions": [condition]}})

    put_ended("expired", "60", "Complete")
    put_ended("retained", "99999999", "Failed")
    (node,) = json.loads(orch(*CLEAN, "--dry-run", "--json").stdout)["nodes"]
    assert node["left"] == [f"{run}: TrainJob expired"]
    expect_exit(orch(*CLEAN))
    assert api.names("trainjobs") == [unfinished, "retained"]
    put_ended("expired", "60", "Complete")
    expect_exit(orch(*train))
    assert set(api.names("trainjobs")) > {unfinished, "retained"}
    assert "expired" not in api.names("trainjobs")
