"""The commands against a real API server: RBAC with exactly the Role that is told, server-side
apply, watches, owners, and what it says of what is not there. No kubelet and no operator are here:
the tests play them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import pytest
import yaml

from orchestrator.targets.kubernetes import rights
from orchestrator.targets.kubernetes.manifests.kinds import KINDS
from tests.apiserver.build import built_programs
from tests.apiserver.server import NAMESPACE, USER, Server, exists, run_server
from tests.conftest import orch_environment
from tests.local.runs import write_script
from tests.support.kube_schema import CRD_FILES, CRDS, needs_crds
from tests.support.waiting import wait_until

pytestmark = [
    needs_crds,
    pytest.mark.skipif(built_programs() is None, reason="needs the kube-apiserver that `make test-k8s` builds"),
]
Orch = Callable[..., subprocess.CompletedProcess[str]]
CORE = f"/api/v1/namespaces/{NAMESPACE}"
JOBS = f"/apis/kubeflow.org/v1/namespaces/{NAMESPACE}/pytorchjobs"
ROLES = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{NAMESPACE}"
TRAIN = ("--on", "k8s", "--nodes", "2", "--ppn", "1", "--backend", "gloo")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with run_server(tmp_path_factory.mktemp("server")) as found:
        found.request("POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
        for kind in ("PyTorchJob", "MPIJob"):
            crd = yaml.load((CRDS / CRD_FILES[kind]).read_text(), yaml.CSafeLoader)
            found.request("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", crd)
        wait_until(lambda: exists(found, JOBS), "PyTorchJobs that are served", seconds=30)
        give_role(found)
        yield found


def give_role(server: Server) -> None:
    """Exactly what `orch k8s check` says is needed for PyTorchJobs."""
    give(server, "orch", (*rights.RIGHTS, *rights.rights_for(KINDS["pytorchjob"])))


def give(server: Server, name: str, granted: Iterable[tuple[str, str, str, str]]) -> None:
    bind(
        server,
        name,
        [{"verbs": [verb], "apiGroups": [group], "resources": [resource]} for verb, group, resource, _ in granted],
    )


def allow(server: Server, name: str, group: str, *resources: str) -> None:
    verbs = ["create", "patch", "get", "list", "delete"]
    bind(server, name, [{"verbs": verbs, "apiGroups": [group], "resources": list(resources)}])


def bind(server: Server, name: str, rules: list[Any]) -> None:
    """A Role for the user."""
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
    (tmp_path / "orch-k8s.toml").write_text('image = "registry.example/orch:current"\ncpu = "2"\n')
    environment = orch_environment(tmp_path) | {"KUBECONFIG": str(server.write_kubeconfig(tmp_path / "kubeconfig"))}

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "orchestrator.cli.main", *arguments],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
        )

    return run


def started(orch: Orch, tmp_path: Path, launcher: str = "pytorchjob") -> tuple[str, str]:
    """(run id, job) of a run that is left running."""
    words = ("--launcher", launcher, "--detach", "--json")
    done = orch("train", write_script(tmp_path), *TRAIN, *words)
    assert done.returncode == 0, done.stderr
    run = json.loads(done.stdout)["run_id"]
    return run, f"orch-{run}"


def files_of_runs(server: Server) -> set[str]:
    return {one["metadata"]["name"] for one in server.request("GET", f"{CORE}/configmaps")["items"]}


def findings(done: subprocess.CompletedProcess[str]) -> dict[str, dict[str, Any]]:
    return {one["topic"]: one for one in json.loads(done.stdout)["findings"]}


def test_the_role_that_is_told_is_enough(orch: Orch) -> None:
    found = findings(orch("k8s", "check", "--json", "--no-pull", "--launcher", "pytorchjob"))
    assert found["rights"]["state"] == "ok", found["rights"]
    assert found["PyTorchJob"]["state"] == "ok"
    assert found["TrainJob"]["state"] == "absent"
    assert found["volume"]["words"] == "no claim orch"
    assert found["nodes"]["state"] == "unknown", "nodes are the cluster's, and in no Role"


def test_a_job_is_watched_to_its_end(orch: Orch, server: Server, tmp_path: Path) -> None:
    run, job = started(orch, tmp_path)
    labels = server.request("GET", f"{JOBS}/{job}")["metadata"]["labels"]
    pod = {
        "metadata": {"name": f"{job}-worker-0", "labels": labels},
        "spec": {"containers": [{"name": "pytorch", "image": "example/x"}]},
    }
    server.request("POST", f"{CORE}/pods", pod)
    server.status(
        f"{CORE}/pods/{job}-worker-0",
        {
            "phase": "Pending",
            "conditions": [{"type": "PodScheduled", "status": "False", "message": "0/3 nodes are available"}],
        },
    )
    condition = {
        "type": "Failed",
        "status": "True",
        "reason": "BackoffLimitExceeded",
        "message": "it has failed",
        "lastTransitionTime": "2026-01-02T03:04:05Z",
        "lastUpdateTime": "2026-01-02T03:04:05Z",
    }
    server.status(f"{JOBS}/{job}", {"conditions": [condition], "replicaStatuses": {}})
    done = orch("attach", run)
    assert done.returncode == 1, done.stderr
    assert "worker-0: waits for a node: 0/3 nodes are available" in done.stdout + done.stderr
    assert "it has failed" in done.stdout


def test_what_one_may_not_do_and_what_is_not_there(orch: Orch, server: Server, tmp_path: Path) -> None:
    script, before = write_script(tmp_path), files_of_runs(server)
    mpi = orch("train", script, *TRAIN, "--launcher", "mpijob", "--detach")
    assert mpi.returncode == 1
    assert "mpijobs" in mpi.stderr
    assert "k8s check" in mpi.stderr
    words = ("train", script, *TRAIN, "--launcher", "trainjob", "--detach")
    unknown = orch(*words)
    assert "Not allowed: trainingruntimes" in unknown.stderr, "rights come before what there is"
    allow(server, "trainer", "trainer.kubeflow.org", "trainjobs", "trainingruntimes")
    trainer = orch(*words)
    assert trainer.returncode == 1
    assert "The cluster has no TrainingRuntime trainer.kubeflow.org/v1alpha1" in trainer.stderr
    assert "Traceback" not in mpi.stderr + unknown.stderr + trainer.stderr
    assert files_of_runs(server) == before


def test_a_field_of_somebody_elses_is_not_taken_over(orch: Orch, server: Server) -> None:
    denied = orch("k8s", "init", "--apply")
    assert denied.returncode == 1
    assert "persistentvolumeclaims" in denied.stderr
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "orch"},
        "spec": {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}},
    }
    path = f"{CORE}/persistentvolumeclaims"
    server.request("PATCH", f"{path}/orch?fieldManager=helm", claim, "apply-patch+yaml")
    allow(server, "claims", "", "persistentvolumeclaims")
    done = orch("k8s", "init", "--apply")
    assert done.returncode == 1
    assert "helm" in done.stderr, done.stderr
    volume = findings(orch("k8s", "check", "--json", "--no-pull"))["volume"]
    assert volume["words"] == "claim orch is Pending"
    server.request("DELETE", f"{path}/orch")


def test_a_namespace_that_is_not_there(orch: Orch, server: Server) -> None:
    done = orch("k8s", "init", "--apply", "--k8s", "namespace=nowhere")
    assert done.returncode == 1
    with pytest.raises(HTTPError):
        server.request("GET", "/api/v1/namespaces/nowhere")


@pytest.mark.parametrize("launcher", ["pytorchjob", "mpijob"])
def test_what_a_run_is_made_of_belongs_to_its_job(orch: Orch, server: Server, tmp_path: Path, launcher: str) -> None:
    """Last in this file: it gives the user more rights."""
    kind = KINDS[launcher]
    if launcher != "pytorchjob":  # whose Role the user has
        give(server, launcher, rights.rights_for(kind))
    jobs = f"/apis/{kind.group}/{kind.version}/namespaces/{NAMESPACE}/{kind.plural}"
    run, job = started(orch, tmp_path, launcher)
    made = server.request("GET", f"{jobs}/{job}")
    found = server.request("GET", f"{CORE}/configmaps/{job}-files")
    (owner,) = found["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"]) == (kind.kind, made["metadata"]["uid"])
    assert {"pod.json", "run.json"} <= found["data"].keys(), "an owner takes nothing away"
    managers = {one["manager"] for one in found["metadata"]["managedFields"]}
    assert managers == {"orch", "orch-owner"}
    listed = json.loads(orch("runs", "--inventory", "k8s", "--json").stdout)["runs"]
    assert run in {one["id"] for one in listed}
    assert orch("stop", run).returncode == 0
    assert not exists(server, f"{jobs}/{job}")
    assert f"{job}-files" not in files_of_runs(server)
