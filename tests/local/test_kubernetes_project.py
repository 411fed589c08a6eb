"""Run a user's project of several files in pods, and fetch what it has written."""

from __future__ import annotations

import base64
import io
import json
import os
import tarfile
from functools import partial
from pathlib import Path

import pytest

from tests.conftest import run_orch_in
from tests.local.kubernetes_runs import RUNNING, TWO_PODS, get_object, in_background, set_pod_status
from tests.local.runs import Orch, expect_exit, last_run, write_script
from tests.support.kubernetes_api import Api
from tests.support.kubernetes_operator import Operator
from tests.support.ports import free_port
from tests.support.projects import ARGUMENTS, RESULT, write_project


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Return the folder of a project that needs two ConfigMaps."""
    folder = tmp_path / "my project"
    write_project(folder)
    with (folder / ".gitignore").open("a") as file:
        file.write(".*/\n")  # the state of orch if it runs here
    (folder / "large.bin").write_bytes(os.urandom(1_000_000))
    return folder


# The first version of the script, which fails.
FAILING = """
import torch.distributed as dist
dist.barrier()
open("saved", "w").write("a checkpoint")
dist.barrier()
raise SystemExit(1)
"""


def test_project_trains_in_pods_and_resumes_in_its_copy_with_new_code(api: Api, tmp_path: Path, project: Path) -> None:
    train = (project / "train.py").read_text()
    (project / "train.py").write_text(FAILING)
    operator, orch = Operator(api), partial(run_orch_in, project)
    settings = ("--k8s-file", str(tmp_path / "orch-k8s.toml"))
    options = (*TWO_PODS, *settings, "--launcher", "job", "--backend", "gloo", "--", *ARGUMENTS)
    wait = in_background(orch, "train", "-m", "train", *options)
    operator.run("jobs", free_port())
    failed = expect_exit(wait(), 1)
    first = get_object(api, "jobs")
    run_id = last_run(project).name
    assert f"resume: orch resume {run_id}" in failed.stderr
    assert len(api.names("configmaps")) == 3
    owners = [get_object(api, "configmaps", name)["metadata"]["ownerReferences"] for name in api.names("configmaps")]
    assert {owner["name"] for (owner,) in owners} == set(api.names("jobs"))
    (project / "train.py").write_text(f"{train}print('continues with', open('saved').read())\n")
    wait = in_background(orch, "resume", run_id, "--code")
    api.wait_for(
        lambda: any(
            get_object(api, "jobs", name)["metadata"]["uid"] != first["metadata"]["uid"] for name in api.names("jobs")
        ),
        100,
    )
    operator.run("jobs", free_port())
    process = expect_exit(wait())
    assert f"RESULT {RESULT}" in process.stdout
    assert "continues with a checkpoint" in process.stdout
    assert len(api.names("jobs")) == 1
    copy = tmp_path / "volume" / "runs" / run_id / "project"
    assert json.loads((copy / "conf/small.json").read_text()) == {"steps": 4}
    assert json.loads((project / "conf/small.json").read_text()) == {"steps": 3}
    assert not list(copy.parent.glob("project.*")), "no incomplete copy remains"
    assert run_id in orch("runs", "--inventory", "k8s").stdout
    wait = in_background(orch, "fetch", run_id, "--json")
    set_pod_status(api, RUNNING, "-reader")
    assert sorted(json.loads(expect_exit(wait()).stdout)["brought"]) == ["conf/small.json", "out/model.txt", "saved"]
    expect_exit(orch("stop", run_id))
    assert api.names("configmaps") == []


def test_credentials_of_the_cluster_are_not_sent(api: Api, orch: Orch, tmp_path: Path) -> None:
    del api
    plan = expect_exit(orch("train", write_script(tmp_path), *TWO_PODS, "--launcher", "job", "--dry-run", "--json"))
    objects = json.loads(plan.stdout)["objects"]
    (part,) = (item["binaryData"]["part"] for item in objects if "binaryData" in item)
    with tarfile.open(fileobj=io.BytesIO(base64.b64decode(part))) as archive:
        names = archive.getnames()
    assert {"own.py", "orch-k8s.toml"} <= set(names)
    assert (tmp_path / "kubeconfig").exists()
    assert "kubeconfig" not in names
