"""Check the Role of `orch k8s role`, quotas and queues in `orch k8s check`, and hints of errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from orchestrator.errors import ExecuteError
from orchestrator.runs import store
from orchestrator.targets.kubernetes import kueue, watch
from orchestrator.targets.kubernetes.api import errors
from orchestrator.targets.kubernetes.manifests.kinds import KINDS
from orchestrator.targets.kubernetes.settings import KubernetesSettings
from orchestrator.targets.kubernetes.watch import JobWatch
from tests.local.kubernetes_runs import TWO_PODS, add_queue, check_findings, get_object, start_run
from tests.local.runs import Orch, expect_exit, write_script
from tests.local.test_kubernetes_commands import CLAIM
from tests.support.kubernetes_api import Api, make_client

CHECK = ("k8s", "check", "--json", "--no-pull", "--nodes", "2")
QUEUE = ("--k8s", "queue=team-a")
JOB = (*TWO_PODS, "--launcher", "job", "--detach")


def rights_in(role: dict[str, Any]) -> set[tuple[str, str, str]]:
    return {
        (verb, group, resource)
        for rule in role["rules"]
        for verb in rule["verbs"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }


def test_printed_role_is_sufficient_for_all_commands(api: Api, orch: Orch, tmp_path: Path) -> None:
    printed = expect_exit(orch("k8s", "role", "--k8s", "namespace=team"))
    role = yaml.safe_load(printed.stdout)
    assert (role["kind"], role["metadata"]["namespace"]) == ("Role", "team")
    api.state.role = rights_in(role)
    add_queue(api)
    (tmp_path / "token").write_text("hf_secret\n")
    expect_exit(orch("k8s", "init", "--apply", "--token-file", "token", "--runtime"))
    findings = check_findings(orch(*CHECK, *QUEUE))
    assert {findings[topic]["state"] for topic in ("rights", "init", "quota", "queue")} <= {"ok", "miss"}
    for launcher in KINDS:
        backend = "ccl" if launcher == "mpijob" else "gloo"
        options = ("--launcher", launcher, "--detach", "--backend", backend, *QUEUE)
        expect_exit(orch("train", write_script(tmp_path), *TWO_PODS, *options))
        expect_exit(orch("stop", "last"))
    assert api.state.used_permissions - api.state.role <= {("list", "", "nodes")}, "the Role has all other rights"


@pytest.mark.usefixtures("api")
def test_role_for_one_kind_has_no_rights_to_others(orch: Orch) -> None:
    role = yaml.safe_load(orch("k8s", "role", "--launcher", "job").stdout)
    groups = {group for _, group, _ in rights_in(role)}
    assert groups == {"", "batch", "kueue.x-k8s.io"}


def test_init_without_rights_refers_to_a_check_that_names_them(api: Api, orch: Orch) -> None:
    api.state.denied_permissions.add(("create", "persistentvolumeclaims"))
    assert "orch k8s check" in expect_exit(orch("k8s", "init", "--apply"), 1).stderr
    finding = check_findings(orch(*CHECK))["init"]
    assert finding["state"] == "miss"
    assert "create persistentvolumeclaims" in finding["words"]
    assert "orch k8s role" in finding["cure"]
    api.put("persistentvolumeclaims", CLAIM)
    assert check_findings(orch(*CHECK))["init"]["state"] == "absent", "runs do not need the right if the claim exists"


def add_quota(api: Api, spec: dict[str, Any], status: dict[str, Any]) -> None:
    api.put("resourcequotas", {"metadata": {"name": "small"}, "spec": spec, "status": status})


@pytest.mark.parametrize(
    ("hard", "used", "state"),
    [
        pytest.param({"requests.cpu": "8"}, {"requests.cpu": "0"}, "ok", id="fits"),
        pytest.param({"requests.cpu": "8"}, {"requests.cpu": "5500m"}, "miss", id="used-up"),
        pytest.param({"limits.memory": "8Gi"}, {}, "miss", id="too-small"),
        pytest.param({"pods": "1"}, {"pods": "0"}, "miss", id="too-few-pods"),
        pytest.param({"services": "0"}, {}, "ok", id="unrelated"),
    ],
)
def test_quota_is_checked(api: Api, orch: Orch, hard: dict[str, str], used: dict[str, str], state: str) -> None:
    add_quota(api, {"hard": hard}, {"hard": hard, "used": used})
    finding = check_findings(orch(*CHECK, "--k8s", "cpu=2", "--k8s", "memory=8Gi"))["quota"]
    assert finding["state"] == state, finding
    assert (next(iter(hard)) in finding["words"]) is (state == "miss")


def test_quota_with_scopes_is_ignored(api: Api, orch: Orch) -> None:
    add_quota(api, {"scopes": ["BestEffort"]}, {"hard": {"pods": "0"}})
    assert check_findings(orch(*CHECK))["quota"]["state"] == "ok"


def test_missing_queue_is_refused(api: Api, orch: Orch, tmp_path: Path) -> None:
    add_queue(api, "team-b")
    finding = check_findings(orch(*CHECK, *QUEUE))["queue"]
    assert (finding["state"], "team-b" in finding["cure"]) == ("miss", True)
    process = expect_exit(orch("train", write_script(tmp_path), *JOB, *QUEUE), 2)
    assert "There is no LocalQueue 'team-a' in namespace team" in process.stderr
    assert api.names("jobs") == api.names("configmaps") == []


def test_queue_without_kueue_is_refused_with_that_reason(api: Api, orch: Orch, tmp_path: Path) -> None:
    del api.state.groups["kueue.x-k8s.io"]
    finding = check_findings(orch(*CHECK, *QUEUE))["queue"]
    assert (finding["state"], "has no Kueue" in finding["words"]) == ("miss", True)
    process = expect_exit(orch("train", write_script(tmp_path), *JOB, *QUEUE), 2)
    assert "has no Kueue" in process.stderr
    assert "kubectl get localqueues" not in process.stderr


def test_kind_that_kueue_does_not_manage_is_a_miss(api: Api, orch: Orch) -> None:
    add_queue(api)
    api.state.queued_kinds = {"Job"}
    finding = check_findings(orch(*CHECK, *QUEUE, "--launcher", "job"))["queue"]
    assert (finding["state"], "manages Job" in finding["words"]) == ("ok", True)
    finding = check_findings(orch(*CHECK, *QUEUE, "--launcher", "pytorchjob"))["queue"]
    assert (finding["state"], "does not manage PyTorchJob" in finding["words"]) == ("miss", True)
    assert api.names("jobs") == api.names("pytorchjobs") == [], "the check uses dry runs"


@pytest.mark.parametrize("launcher", ["pytorchjob", "mpijob", "job"])
def test_kueue_management_is_detected_for_each_kind(api: Api, launcher: str) -> None:
    settings = KubernetesSettings(image="x", queue="team-a")
    assert kueue.is_managed(make_client(api.url), settings, launcher) is False
    api.state.queued_kinds = {KINDS[launcher].kind}
    assert kueue.is_managed(make_client(api.url), settings, launcher) is True


@pytest.mark.parametrize(
    ("suspended", "reported"),
    [
        pytest.param(False, True, id="started-without-quota"),
        pytest.param(True, False, id="suspended-while-kueue-is-slow"),
    ],
)
def test_job_without_a_workload_is_reported_unless_it_is_suspended(
    api: Api, orch: Orch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, suspended: bool, reported: bool
) -> None:
    add_queue(api)
    run = start_run(api, orch, tmp_path, *QUEUE)
    if suspended:
        run.update_job(spec={**get_object(api, "pytorchjobs")["spec"], "runPolicy": {"suspend": True}})
    monkeypatch.setattr(watch, "UNSEEN_SECONDS", -1.0)
    job_watch = JobWatch(store.load(run.folder).record, run.folder, print, make_client(api.url))
    assert job_watch.poll_job() is None
    texts = [item.text for item in job_watch.follower.items.queue]
    message = "queue team-a has no effect: Kueue has made no Workload"
    assert any(message in text for text in texts) is reported


class ApiError(Exception):
    """A response of the API, as the client raises it."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status, self.body = status, json.dumps({"message": message})


def test_webhook_that_does_not_respond_names_its_operator() -> None:
    message = (
        'Internal error occurred: failed calling webhook "validator.pytorchjob.training-operator.'
        'kubeflow.org": failed to call webhook: Post "https://training-operator.kubeflow.svc:443/'
        'validate-kubeflow-org-v1-pytorchjob?timeout=10s": dial tcp 10.96.4.2:443: connect: '
        "connection refused"
    )
    error = errors.to_execute_error(ApiError(500, message), "lab")
    assert type(error) is ExecuteError
    assert "kubectl -n kubeflow get pods" in error.hint
    assert "Nothing was created" in error.hint


def test_hint_of_an_unavailable_api_does_not_mention_a_run() -> None:
    assert "run continues" not in errors.to_execute_error(ApiError(503, "busy"), "lab").hint


@pytest.mark.usefixtures("api")
def test_init_prints_the_namespace(orch: Orch) -> None:
    printed = orch("k8s", "init", "--runtime", "--k8s", "namespace=research")
    namespaces = [manifest["metadata"]["namespace"] for manifest in yaml.safe_load_all(printed.stdout)]
    assert namespaces == ["research", "research"]
