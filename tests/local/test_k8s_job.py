"""Runs as a plain Indexed Job: the promises that the kinds of Kubeflow keep."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from tests.local.test_kube import ANY, Orch, api, background, events_of, orch, own_script
from tests.local.test_pod import NODE, config
from tests.support.kube_api import Api
from tests.support.kube_operator import Operator, conditions
from tests.support.ports import free_port
from tests.unit.targets.kubernetes.test_plan_kube import REQUEST, containers, decide, objects

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

ONE_AFTER_ANOTHER = """
import os, time, torch, torch.distributed as dist
value = torch.zeros(1)
while not value.item():
    value.fill_(float(os.path.exists(os.environ["MARK"] + ".go")))
    dist.all_reduce(value)
    open(os.environ["MARK"], "w").close()
    time.sleep(0.2)
print("done")
os._exit(0)
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
    assert "failed: rank 1" in done.stdout
    assert "ValueError: rank 1 has had enough" in done.stdout
    ended = json.loads((run_of(tmp_path) / "outcome.json").read_text())
    assert (ended["state"], ended["first_failure"]["rank"]) == ("failed", 1)
    assert "[0]:" in (run_of(tmp_path) / "launcher.log").read_text()
    silent = run_of(tmp_path) / "ranks" / "rank-0.log"
    assert not silent.exists() or not silent.read_text(), "torchrun's words are not the rank's"


class Pods:
    """Two pods of one rank each, as processes with the manifest's own variables."""

    def __init__(self, folder: Path, script: str) -> None:
        self.folder = folder
        self.config = config(folder, pods=2, ppn=1, max_restarts=1)
        (folder / "script.py").write_text(script)
        request = replace(REQUEST, ppn=1, max_restarts=1)
        (container,) = containers(list(objects(decide("job", request=request))))
        said = {one["name"]: one["value"] for one in container["env"]}
        told = {name: said[name] for name in said if name.startswith(("PET_", "TORCH_"))}
        self.told = told | {"PET_RDZV_ENDPOINT": f"127.0.0.1:{free_port()}"}

    def start(self, index: int, name: str = "") -> subprocess.Popen[bytes]:
        own = {"JOB_COMPLETION_INDEX": str(index), "MARK": str(self.folder / "mark")}
        words = [str(NODE), "pod", "torchrun", str(self.config), "--"]
        with (self.folder / f"pod-{name or index}").open("w") as out:
            return subprocess.Popen(
                [sys.executable, *words, str(self.folder / "script.py")], env=os.environ | self.told | own, stdout=out
            )

    def said(self, name: str) -> str:
        return (self.folder / f"pod-{name}").read_text()

    def await_(self, found: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 200
        while not found():
            assert time.monotonic() < deadline, "waited in vain"
            time.sleep(0.2)


def test_pods_that_kubernetes_only_numbers_meet_and_start_again(tmp_path: Path) -> None:
    """The second is there first, and waits. They meet by the signed rendezvous."""
    pods = Pods(tmp_path, ONCE)
    both = [pods.start(1), pods.start(0)]
    assert [pod.wait(300) for pod in both] == [0, 0]
    assert all(pods.said(name).count("sum 4.0") == 1 for name in ("0", "1"))
    key = tmp_path / "data" / "runs" / "r" / ".rendezvous-key"
    assert key.stat().st_mode & 0o777 == 0o600


def test_a_pod_in_the_place_of_a_lost_one_joins_again(tmp_path: Path) -> None:
    pods = Pods(tmp_path, ONE_AFTER_ANOTHER)
    first, lost = pods.start(0), pods.start(1)
    try:
        pods.await_((tmp_path / "mark").exists)
        lost.terminate()
        assert lost.wait(60) != 0
        again = pods.start(1, "again")
        pods.await_(lambda: '"joined"' in pods.said("again") or again.poll() is not None)
        (tmp_path / "mark.go").touch()
        assert [first.wait(120), again.wait(120)] == [0, 0], pods.said("0") + pods.said("again")
        assert "done" in pods.said("again")
    finally:
        for pod in (first, lost):
            pod.kill()


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
    assert 'cannot patch resource "jobs"' in done.stderr
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
    api.put("localqueues", {"metadata": {"name": "team-a"}, "spec": {"clusterQueue": "cpu"}})
    script = own_script(tmp_path)
    done = orch("train", script, *JOB, "--k8s", "queue=team-a", "--detach", "--json")
    assert done.returncode == 0, done.stderr
    (name,) = api.names("jobs")
    made = api.get("jobs", name)
    assert made is not None
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
