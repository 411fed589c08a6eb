"""Run `orch clean --inventory k8s`, which deletes what runs have left in the namespace, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.local.kubernetes_runs import OLD_TIMESTAMP, TWO_PODS, KubernetesRun, get_object
from tests.local.runs import Orch, expect_exit, write_script
from tests.support.kubernetes_api import Api

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


def with_condition(job: dict[str, Any], kind: str) -> dict[str, Any]:
    """Return a job that has ended long ago with this condition."""
    condition = {"type": kind, "status": "True", "message": "", "lastTransitionTime": OLD_TIMESTAMP}
    return {**job, "status": {"conditions": [condition]}}


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
        api.put("trainjobs", with_condition({**job, "metadata": metadata | changes}, kind))

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
