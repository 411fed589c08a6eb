"""Run commands of orch against kube-apiserver, with RBAC, server-side apply, watches, owners and missing objects.

There is no kubelet and no operator; the tests set the status of objects themselves.
"""

from __future__ import annotations

import functools
import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from orchestrator.targets.kubernetes.namespace import role
from orchestrator.targets.kubernetes.settings import KubernetesSettings
from tests.apiserver.server import PROGRAMS, USER, Server, exists, run_server
from tests.conftest import run_orch_in
from tests.local.runs import write_script
from tests.support.kubernetes_api import NAMESPACE
from tests.support.kubernetes_schema import CRD_FILES, CRDS, needs_crds
from tests.support.waiting import wait_until

pytestmark = [
    needs_crds,
    pytest.mark.skipif(not PROGRAMS.exists(), reason="needs the kube-apiserver that `make test-k8s` builds"),
]
Orch = Callable[..., subprocess.CompletedProcess[str]]
CORE = f"/api/v1/namespaces/{NAMESPACE}"
JOBS = f"/apis/kubeflow.org/v1/namespaces/{NAMESPACE}/pytorchjobs"
ROLES = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{NAMESPACE}"
TRAIN = ("--on", "k8s", "--nodes", "2", "--ppn", "1", "--backend", "gloo")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with run_server(tmp_path_factory.mktemp("server")) as server:
        server.request("POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
        crd = yaml.load((CRDS / CRD_FILES["PyTorchJob"]).read_text(), yaml.CSafeLoader)
        server.request("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", crd)
        wait_until(lambda: exists(server, JOBS), "the API serves PyTorchJobs")
        # The printed Role, without the rights that only `orch k8s init --apply` needs.
        rules = role(KubernetesSettings(namespace=NAMESPACE), ["pytorchjob"])["rules"]
        claims = next(rule for rule in rules if "persistentvolumeclaims" in rule["resources"])
        create_role(server, "orch", [rule for rule in rules if rule is not claims] + [{**claims, "verbs": ["get"]}])
        yield server


def create_role(server: Server, name: str, rules: list[Any]) -> None:
    """Create a Role with these rules, and bind it to the user."""
    metadata, group = {"name": name}, "rbac.authorization.k8s.io"
    server.request("POST", f"{ROLES}/roles", {"metadata": metadata, "rules": rules})
    server.request(
        "POST",
        f"{ROLES}/rolebindings",
        {
            "metadata": metadata,
            "roleRef": {"apiGroup": group, "kind": "Role", "name": name},
            "subjects": [{"apiGroup": group, "kind": "User", "name": USER}],
        },
    )


@pytest.fixture
def orch(server: Server, tmp_path: Path) -> Orch:
    """Return a function that runs orch as the user."""
    (tmp_path / "orch-k8s.toml").write_text('image = "registry.example/orch:current"\ncpu = "2"\n')
    environment = {"KUBECONFIG": str(server.write_kubeconfig(tmp_path / "kubeconfig"))}
    return functools.partial(run_orch_in, tmp_path, env=environment, warm=False)


def start_detached(orch: Orch, tmp_path: Path) -> tuple[str, str]:
    """Start a detached run, and return its id and the name of its job."""
    options = ("--launcher", "pytorchjob", "--detach", "--json")
    done = orch("train", write_script(tmp_path), *TRAIN, *options)
    assert done.returncode == 0, done.stderr
    run = json.loads(done.stdout)["run_id"]
    return run, f"orch-{run}"


def config_map_names(server: Server) -> set[str]:
    """Return the names of all ConfigMaps, in which orch stores the files of runs."""
    return {item["metadata"]["name"] for item in server.request("GET", f"{CORE}/configmaps")["items"]}


def findings_by_topic(done: subprocess.CompletedProcess[str]) -> dict[str, dict[str, Any]]:
    return {finding["topic"]: finding for finding in json.loads(done.stdout)["findings"]}


def test_check_creates_the_objects_of_a_run_in_a_dry_run(orch: Orch, server: Server) -> None:
    findings = findings_by_topic(orch("k8s", "check", "--json", "--launcher", "pytorchjob"))
    assert findings["objects"]["words"] == "the API accepts ConfigMap, PyTorchJob (dry run)"
    assert findings["TrainJob"]["state"] == "absent"
    assert findings["volume"]["words"] == "no claim orch"
    assert not exists(server, f"{JOBS}/orch-orch-check")
    refused = findings_by_topic(orch("k8s", "check", "--json", "--launcher", "job"))["objects"]
    assert refused["state"] == "miss"
    assert 'cannot patch resource "services"' in refused["words"]


def test_attach_follows_a_job_until_it_fails(orch: Orch, server: Server, tmp_path: Path) -> None:
    run, job = start_detached(orch, tmp_path)
    labels = server.request("GET", f"{JOBS}/{job}")["metadata"]["labels"]
    pod = {
        "metadata": {"name": f"{job}-worker-0", "labels": labels},
        "spec": {"containers": [{"name": "pytorch", "image": "example/x"}]},
    }
    server.request("POST", f"{CORE}/pods", pod)
    pending = {"type": "PodScheduled", "status": "False", "message": "0/3 nodes are available"}
    server.set_status(f"{CORE}/pods/{job}-worker-0", {"phase": "Pending", "conditions": [pending]})
    condition = {"type": "Failed", "status": "True", "reason": "BackoffLimitExceeded", "message": "it has failed"}
    times = dict.fromkeys(("lastTransitionTime", "lastUpdateTime"), "2026-01-02T03:04:05Z")
    server.set_status(f"{JOBS}/{job}", {"conditions": [condition | times], "replicaStatuses": {}})
    done = orch("attach", run)
    assert done.returncode == 1, done.stderr
    assert "worker-0: waits for a node: 0/3 nodes are available" in done.stdout + done.stderr
    assert "it has failed" in done.stderr


def test_refused_and_missing_kinds_are_named_and_leave_no_files(orch: Orch, server: Server, tmp_path: Path) -> None:
    script, old_config_maps = write_script(tmp_path), config_map_names(server)
    job = orch("train", script, *TRAIN, "--launcher", "job", "--detach")
    assert job.returncode == 1
    assert "services" in job.stderr
    assert "k8s role" in job.stderr
    command = ("train", script, *TRAIN, "--launcher", "trainjob", "--detach")
    forbidden_trainjob = orch(*command)
    message = "Kubernetes checks permissions before it looks for the resource"
    assert "Not allowed: trainingruntimes" in forbidden_trainjob.stderr, message
    verbs, resources = ["create", "patch", "get", "list", "delete"], ["trainjobs", "trainingruntimes"]
    rule = {"verbs": verbs, "apiGroups": ["trainer.kubeflow.org"], "resources": resources}
    create_role(server, "trainer", [rule])
    missing_trainjob = orch(*command)
    assert missing_trainjob.returncode == 1
    assert "The cluster has no TrainingRuntime trainer.kubeflow.org/v1alpha1" in missing_trainjob.stderr
    assert "Traceback" not in job.stderr + forbidden_trainjob.stderr + missing_trainjob.stderr
    assert config_map_names(server) == old_config_maps


def test_job_owns_the_files_of_its_run_until_stop(orch: Orch, server: Server, tmp_path: Path) -> None:
    run, job_name = start_detached(orch, tmp_path)
    job = server.request("GET", f"{JOBS}/{job_name}")
    config_map = server.request("GET", f"{CORE}/configmaps/{job_name}-files")
    (owner,) = config_map["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"]) == ("PyTorchJob", job["metadata"]["uid"])
    assert {"pod.json", "run.json"} <= config_map["data"].keys(), "setting the owner keeps the files"
    assert {entry["manager"] for entry in config_map["metadata"]["managedFields"]} == {"orch", "orch-owner"}
    rows = json.loads(orch("runs", "--inventory", "k8s", "--json").stdout)["runs"]
    assert run in {row["id"] for row in rows}
    assert orch("stop", run).returncode == 0
    assert not exists(server, f"{JOBS}/{job_name}")
    assert f"{job_name}-files" not in config_map_names(server)


def test_object_with_a_field_that_the_api_does_not_know_is_refused(orch: Orch, server: Server, tmp_path: Path) -> None:
    """Must be the last test of this file, because it grants the user more permissions."""
    create_role(server, "job", role(KubernetesSettings(), ["job"])["rules"])
    old_config_maps = config_map_names(server)
    refused = orch("train", write_script(tmp_path), *TRAIN, "--launcher", "job")
    assert "refuses the request: failed to create typed patch object" in refused.stderr
    assert not server.request("GET", f"{CORE}/services")["items"]
    assert config_map_names(server) == old_config_maps
