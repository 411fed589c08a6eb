"""The Role of `orch k8s role`, quota and queues in `orch k8s check`, and hints that help."""

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
from orchestrator.targets.kubernetes.settings import KubeSettings
from orchestrator.targets.kubernetes.watch import KubeWatch
from tests.local.test_k8s_cli import CLAIM, findings
from tests.local.test_kube import ANY, Orch, api, orch, own_script, started
from tests.support.kube_api import Api, client_of

__all__ = ["api", "orch"]
CHECK = ("k8s", "check", "--json", "--no-pull", "--nodes", "2")
QUEUE = ("--k8s", "queue=team-a")


def rights_in(role: dict[str, Any]) -> set[tuple[str, str, str]]:
    return {
        (verb, group, resource)
        for rule in role["rules"]
        for verb in rule["verbs"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }


def test_the_printed_role_is_enough_for_everything(api: Api, orch: Orch, tmp_path: Path) -> None:
    printed = orch("k8s", "role", "--k8s", "namespace=team")
    assert printed.returncode == 0, printed.stderr
    role = yaml.safe_load(printed.stdout)
    assert (role["kind"], role["metadata"]["namespace"]) == ("Role", "team")
    api.state.role = rights_in(role)
    api.put("localqueues", {"metadata": {"name": "team-a"}, "spec": {"clusterQueue": "cpu"}})
    (tmp_path / "token").write_text("hf_secret\n")
    init = orch("k8s", "init", "--apply", "--token-file", "token", "--runtime")
    assert init.returncode == 0, init.stderr
    found = findings(orch(*CHECK, *QUEUE))
    assert {found[topic]["state"] for topic in ("rights", "init", "quota", "queue")} <= {"ok", "miss"}
    for launcher in KINDS:
        script = own_script(tmp_path)
        done = orch(
            "train",
            script,
            *ANY,
            "--launcher",
            launcher,
            "--detach",
            "--backend",
            "gloo",
            *QUEUE,
            *(("--backend", "ccl") if launcher == "mpijob" else ()),
        )
        assert done.returncode == 0, f"{launcher}: {done.stderr}"
        assert orch("stop", "last").returncode == 0
    asked = api.state.used - api.state.role
    assert asked <= {("list", "", "nodes")}, "everything else is in the Role"


def test_a_role_for_one_kind_has_no_rights_to_others(orch: Orch) -> None:
    role = yaml.safe_load(orch("k8s", "role", "--launcher", "job").stdout)
    groups = {group for _, group, _ in rights_in(role)}
    assert groups == {"", "batch", "kueue.x-k8s.io"}


def test_init_without_rights_leads_to_a_check_that_names_them(api: Api, orch: Orch) -> None:
    api.state.denied.add(("create", "persistentvolumeclaims"))
    init = orch("k8s", "init", "--apply")
    assert init.returncode == 1
    assert "orch k8s check" in init.stderr
    missing = findings(orch(*CHECK))["init"]
    assert missing["state"] == "miss"
    assert "create persistentvolumeclaims" in missing["words"]
    assert "orch k8s role" in missing["cure"]
    api.put("persistentvolumeclaims", CLAIM)
    assert findings(orch(*CHECK))["init"]["state"] == "absent", "runs do not need it any more"


@pytest.mark.parametrize(
    ("hard", "used", "state"),
    [
        pytest.param({"requests.cpu": "8"}, {"requests.cpu": "0"}, "ok", id="fits"),
        pytest.param({"requests.cpu": "8"}, {"requests.cpu": "5500m"}, "miss", id="used-up"),
        pytest.param({"limits.memory": "8Gi"}, {}, "miss", id="too-small"),
        pytest.param({"pods": "1"}, {"pods": "0"}, "miss", id="too-few-pods"),
        pytest.param({"services": "0"}, {}, "ok", id="about-something-else"),
    ],
)
def test_resource_quota_is_checked(
    api: Api, orch: Orch, hard: dict[str, str], used: dict[str, str], state: str
) -> None:
    api.put(
        "resourcequotas",
        {"metadata": {"name": "small"}, "spec": {"hard": hard}, "status": {"hard": hard, "used": used}},
    )
    quota = findings(orch(*CHECK, "--k8s", "cpu=2", "--k8s", "memory=8Gi"))["quota"]
    assert quota["state"] == state, quota
    assert (next(iter(hard)) in quota["words"]) is (state == "miss")


def test_a_quota_for_some_pods_only_is_left_out(api: Api, orch: Orch) -> None:
    api.put(
        "resourcequotas",
        {"metadata": {"name": "small"}, "spec": {"scopes": ["BestEffort"]}, "status": {"hard": {"pods": "0"}}},
    )
    assert findings(orch(*CHECK))["quota"]["state"] == "ok"


def test_a_queue_that_does_not_exist_is_refused(api: Api, orch: Orch, tmp_path: Path) -> None:
    api.put("localqueues", {"metadata": {"name": "team-b"}, "spec": {"clusterQueue": "cpu"}})
    queue = findings(orch(*CHECK, *QUEUE))["queue"]
    assert (queue["state"], "team-b" in queue["cure"]) == ("miss", True)
    done = orch("train", own_script(tmp_path), *ANY, "--launcher", "job", "--detach", *QUEUE)
    assert done.returncode == 2
    assert "There is no LocalQueue 'team-a' in namespace team" in done.stderr
    assert api.names("jobs") == api.names("configmaps") == []


def test_a_queue_on_a_cluster_without_kueue_is_refused_as_that(api: Api, orch: Orch, tmp_path: Path) -> None:
    del api.state.groups["kueue.x-k8s.io"]
    queue = findings(orch(*CHECK, *QUEUE))["queue"]
    assert (queue["state"], "has no Kueue" in queue["words"]) == ("miss", True)
    done = orch("train", own_script(tmp_path), *ANY, "--launcher", "job", "--detach", *QUEUE)
    assert done.returncode == 2
    assert "has no Kueue" in done.stderr
    assert "kubectl get localqueues" not in done.stderr


def test_a_kind_that_kueue_does_not_manage_is_a_miss(api: Api, orch: Orch) -> None:
    api.put("localqueues", {"metadata": {"name": "team-a"}, "spec": {"clusterQueue": "cpu"}})
    api.state.queued_kinds = {"Job"}
    queue = findings(orch(*CHECK, *QUEUE, "--launcher", "job"))["queue"]
    assert (queue["state"], "manages Job" in queue["words"]) == ("ok", True)
    queue = findings(orch(*CHECK, *QUEUE, "--launcher", "pytorchjob"))["queue"]
    assert (queue["state"], "does not manage PyTorchJob" in queue["words"]) == ("miss", True)
    assert api.names("jobs") == api.names("pytorchjobs") == [], "it was a dry run"


@pytest.mark.parametrize("launcher", ["pytorchjob", "mpijob", "job"])
def test_kueue_management_is_seen_for_each_kind(api: Api, launcher: str) -> None:
    settings = KubeSettings(image="x", queue="team-a")
    assert kueue.is_managed(client_of(api.url), settings, launcher) is False
    api.state.queued_kinds = {KINDS[launcher].kind}
    assert kueue.is_managed(client_of(api.url), settings, launcher) is True


@pytest.mark.parametrize(
    ("suspended", "reported"),
    [
        pytest.param(False, True, id="started-without-quota"),
        pytest.param(True, False, id="suspended-while-kueue-is-slow"),
    ],
)
def test_a_job_without_a_workload_is_reported_unless_it_is_suspended(
    api: Api, orch: Orch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, suspended: bool, reported: bool
) -> None:
    api.put("localqueues", {"metadata": {"name": "team-a"}, "spec": {"clusterQueue": "cpu"}})
    run, name = started(api, orch, tmp_path, *QUEUE)
    if suspended:
        job = api.get("pytorchjobs", name) or {}
        api.put("pytorchjobs", {**job, "spec": {**job["spec"], "runPolicy": {"suspend": True}}})
    folder = tmp_path / "runs" / run
    monkeypatch.setattr(watch, "UNSEEN_SECONDS", -1.0)
    following = KubeWatch(store.load(folder).record, folder, print, client_of(api.url))
    assert following.poll_job() is None
    texts = [item.text for item in following.follower.items.queue]  # type: ignore[union-attr]
    assert any("queue team-a has no effect: Kueue has made no Workload" in one for one in texts) is reported


class Answered(Exception):
    """A response of the API, as the client raises it."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status, self.body = status, json.dumps({"message": message})


def test_a_webhook_that_does_not_respond_names_its_operator() -> None:
    message = (
        'Internal error occurred: failed calling webhook "validator.pytorchjob.training-operator.'
        'kubeflow.org": failed to call webhook: Post "https://training-operator.kubeflow.svc:443/'
        'validate-kubeflow-org-v1-pytorchjob?timeout=10s": dial tcp 10.96.4.2:443: connect: '
        "connection refused"
    )
    error = errors.to_execute_error(Answered(500, message), "lab")
    assert type(error) is ExecuteError
    assert "kubectl -n kubeflow get pods" in error.hint
    assert "Nothing was created" in error.hint


def test_an_api_that_fails_is_not_said_to_have_a_run() -> None:
    assert "goes on" not in errors.to_execute_error(Answered(503, "busy"), "lab").hint


def test_init_prints_the_namespace(orch: Orch) -> None:
    shown = orch("k8s", "init", "--runtime", "--k8s", "namespace=research")
    namespaces = [one["metadata"]["namespace"] for one in yaml.safe_load_all(shown.stdout)]
    assert namespaces == ["research", "research"]
