"""Runs as a plain Indexed Job: the promises that the kinds of Kubeflow keep."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.kube_api import Api
from tests.kube_operator import Operator, conditions
from tests.local.test_kube import ANY, Orch, api, background, events_of, orch, own_script
from tests.local.test_pod import NODE, config
from tests.ports import free_port

__all__ = ["api", "orch"]
JOB = (*ANY, "--launcher", "job", "--backend", "gloo")
RAISES = """
import time, torch.distributed as dist
if dist.get_rank() == 1:
    raise ValueError("rank 1 has had enough")
time.sleep(60)
"""
ONCE = """
import os, sys, torch, torch.distributed as dist
value = torch.ones(1)
dist.all_reduce(value)
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and dist.get_rank() == 1:
    sys.exit(3)
dist.all_reduce(value)
print("sum", value.item())
"""


def run_of(tmp_path: Path) -> Path:
    (run,) = [path for path in (tmp_path / "runs").iterdir() if (path / "plan.json").exists()]
    return run


def test_the_first_rank_that_failed_is_named(api: Api, orch: Orch, tmp_path: Path) -> None:
    operator = Operator(api)
    end = background(orch, "train", own_script(tmp_path, RAISES), *JOB)
    operator.run("jobs", free_port())
    done = end()
    assert done.returncode == 1
    assert "rank 1" in done.stderr
    assert "ValueError: rank 1 has had enough" in done.stdout
    ended = json.loads((run_of(tmp_path) / "outcome.json").read_text())
    assert (ended["state"], ended["first_failure"]["rank"]) == ("failed", 1)


def test_pods_that_kubernetes_only_numbers_meet_and_start_again(tmp_path: Path) -> None:
    """The second is there first, and waits. They meet by the signed rendezvous."""
    path, port = config(tmp_path, pods=2, ppn=1, max_restarts=1), free_port()
    (tmp_path / "once.py").write_text(ONCE)
    told = {
        "PET_NNODES": "2:2", "PET_NPROC_PER_NODE": "1", "PET_MAX_RESTARTS": "1",
        "PET_RDZV_BACKEND": "c10d", "PET_RDZV_ID": "r", "PET_RDZV_ENDPOINT": f"127.0.0.1:{port}",
    }  # fmt: skip
    command = [sys.executable, str(NODE), "pod", "torchrun", str(path), "--"]
    pods = []
    for index in (1, 0):
        own = os.environ | told | {"JOB_COMPLETION_INDEX": str(index)}
        with (tmp_path / f"pod-{index}").open("w") as out:
            pods.append(
                subprocess.Popen([*command, str(tmp_path / "once.py")], env=own, stdout=out)
            )
    assert [pod.wait(300) for pod in pods] == [0, 0]
    said = [(tmp_path / f"pod-{index}").read_text() for index in (0, 1)]
    assert all(text.count("sum 4.0") == 1 for text in said)
    key = tmp_path / "data" / "runs" / "r" / ".rendezvous-key"
    assert key.stat().st_mode & 0o777 == 0o600


def test_stop_takes_the_service_along(api: Api, orch: Orch, tmp_path: Path) -> None:
    done = orch("train", own_script(tmp_path), *JOB, "--detach", "--json")
    assert done.returncode == 0, done.stderr
    (job,) = api.names("jobs")
    (service,) = api.names("services")
    made = api.get("services", service)
    assert made is not None
    assert made["metadata"]["ownerReferences"][0]["kind"] == "Job"
    stopped = orch("stop", "last")
    assert stopped.returncode == 0, stopped.stderr
    assert api.names("jobs") == api.names("services") == api.names("configmaps") == []
    assert job == service


def test_what_a_failed_start_leaves_is_cleaned(api: Api, orch: Orch, tmp_path: Path) -> None:
    api.state.denied.add(("patch", "jobs"))
    done = orch("train", own_script(tmp_path), *JOB)
    assert done.returncode == 1
    assert "cannot patch jobs" in done.stderr
    assert api.names("services") == api.names("configmaps") == []


def test_the_rights_of_a_plain_job_are_asked_where_it_is_wanted(api: Api, orch: Orch) -> None:
    api.state.denied |= {("create", "services"), ("create", "jobs")}
    told = orch("k8s", "check", "--no-pull", "--launcher", "job").stdout
    assert "create services (names of its pods)" in told
    assert "create services" not in orch("k8s", "check", "--no-pull").stdout
    api.state.groups = {"batch": api.state.groups["batch"]}
    alone = orch("k8s", "check", "--no-pull").stdout
    assert "default: --launcher job: the cluster has no TrainJob and no PyTorchJob" in alone
    assert "create services" in alone


def test_a_job_that_waits_for_quota_says_so(api: Api, orch: Orch, tmp_path: Path) -> None:
    script = own_script(tmp_path)
    done = orch("train", script, *JOB, "--k8s", "queue=team-a", "--detach", "--json")
    assert done.returncode == 0, done.stderr
    (name,) = api.names("jobs")
    made = api.get("jobs", name)
    assert made is not None
    api.put("localqueues", {"metadata": {"name": "team-a"}, "spec": {"clusterQueue": "cpu"}})
    labels = {"kueue.x-k8s.io/job-uid": made["metadata"]["uid"]}
    short = {"type": "QuotaReserved", "status": "False", "message": "1 more cpu is needed"}
    workload = {"metadata": {"name": "job-x", "labels": labels}, "status": {"conditions": [short]}}
    api.put("workloads", workload)
    api.put("jobs", {**made, "status": conditions("Suspended")})
    end = background(orch, "attach", "last")
    told = "waits for quota in ClusterQueue cpu: 1 more cpu is needed"
    api.await_(lambda: events_of(tmp_path, run_of(tmp_path).name, told), 60.0)
    api.put("jobs", {**made, "status": conditions("Complete")})
    done = end()
    assert told in done.stderr
    assert done.returncode == 0
