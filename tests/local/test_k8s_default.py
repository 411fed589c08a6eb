"""Without --launcher the cluster is asked which kinds it has; a plan without a cluster says so."""

from __future__ import annotations

import json
from pathlib import Path

from tests.local.test_kube import ANY, Orch, api, orch
from tests.support.kube_api import Api

__all__ = ["api", "orch"]


def planned(orch: Orch, *more: str) -> tuple[list[str], str]:
    """(kinds of the objects, what is said of the launcher) of a dry run."""
    done = orch("train", "bert-qa", *ANY, "--dry-run", "--json", *more)
    assert done.returncode == 0, done.stderr
    plan = json.loads(done.stdout)
    (told,) = [one for one in plan["decisions"] if one["topic"] == "launcher"]
    return [one["kind"] for one in plan["objects"]], told["reason"]


def test_the_cluster_is_asked_for_its_kinds_and_nothing_else(api: Api, orch: Orch) -> None:
    assert planned(orch)[0] == ["ConfigMap", "TrainingRuntime", "TrainJob"]
    del api.state.groups["trainer.kubeflow.org"]
    kinds, why = planned(orch)
    assert kinds == ["ConfigMap", "PyTorchJob"]
    assert why.endswith("the cluster has no TrainJob")
    assert {method for method, _ in api.state.requests} == {"GET"}
    assert all(path.startswith("/apis/") for _, path in api.state.requests)


def test_without_a_cluster_a_plan_says_what_it_assumes(api: Api, orch: Orch, tmp_path: Path) -> None:
    api.state.groups.clear()
    (tmp_path / "kubeconfig").write_text("")
    kinds, why = planned(orch)
    assert kinds[-1] == "TrainJob"
    assert "assumed: no cluster could be queried (No cluster is configured" in why


def test_the_check_says_what_the_default_is(api: Api, orch: Orch) -> None:
    done = orch("k8s", "check", "--no-pull")
    assert "ok    default: --launcher trainjob: the cluster has it" in done.stdout
