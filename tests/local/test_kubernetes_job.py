"""Run as a plain Indexed Job, which must keep what the kinds of Kubeflow promise."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from pathlib import Path

from tests.local.kubernetes_runs import TWO_PODS, get_object, in_background
from tests.local.pods import await_in_logs, pod_command, write_pod_config
from tests.local.runs import Orch, expect_exit, last_run, read_events, write_script
from tests.support.kubernetes_api import Api
from tests.support.kubernetes_operator import make_conditions
from tests.support.kubernetes_plans import REQUEST, containers, make_plan, objects
from tests.support.ports import free_port

JOB = (*TWO_PODS, "--launcher", "job", "--backend", "gloo")
FAIL_ONCE = """
import os, sys, torch, torch.distributed as dist
value = torch.ones(1)
dist.all_reduce(value)
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and dist.get_rank() == 1:
    sys.exit(3)
dist.all_reduce(value)
print("sum", value.item())
"""
WAIT_FOR_FILE = """
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


class Pods:
    """Two pods of one rank each, as processes with the variables of the manifest."""

    def __init__(self, folder: Path, script: str) -> None:
        self.folder = folder
        self.config = write_pod_config(folder, pods=2, ppn=1)
        self.script = folder / write_script(folder, script)
        request = replace(REQUEST, ppn=1, max_restarts=1)
        (container,) = containers(list(objects(make_plan("job", request=request))))
        variables = {variable["name"]: variable["value"] for variable in container["env"]}
        self.variables = {name: value for name, value in variables.items() if name.startswith(("PET_", "TORCH_"))}
        self.variables["PET_RDZV_ENDPOINT"] = f"127.0.0.1:{free_port()}"

    def start(self, index: int, name: str = "") -> subprocess.Popen[str]:
        variables = {"JOB_COMPLETION_INDEX": str(index), "MARK": str(self.folder / "mark")}
        environment = os.environ | self.variables | variables
        command = pod_command("torchrun", self.config, str(self.script))
        with self.log(name or str(index)).open("w") as log:
            return subprocess.Popen(command, env=environment, stdout=log, text=True)

    def log(self, name: str) -> Path:
        return self.folder / f"pod-{name}"


def test_pods_with_only_a_number_find_each_other_and_restart(tmp_path: Path) -> None:
    """Start the second pod first, so that it waits; they meet by the signed rendezvous."""
    pods = Pods(tmp_path, FAIL_ONCE)
    processes = [pods.start(1), pods.start(0)]
    assert [process.wait(300) for process in processes] == [0, 0]
    assert all(pods.log(name).read_text().count("sum 4.0") == 1 for name in ("0", "1"))
    key = tmp_path / "data" / "runs" / "r" / ".rendezvous-key"
    assert key.stat().st_mode & 0o777 == 0o600


def test_replacement_of_a_lost_pod_joins(tmp_path: Path) -> None:
    pods = Pods(tmp_path, WAIT_FOR_FILE)
    first, lost = pods.start(0), pods.start(1)
    logs = [pods.log(name) for name in ("0", "replacement")]
    try:
        await_in_logs((tmp_path / "mark").exists, *logs)
        lost.terminate()
        assert lost.wait(60) != 0
        replacement = pods.start(1, "replacement")
        await_in_logs(lambda: '"joined"' in logs[1].read_text() or replacement.poll() is not None, *logs)
        (tmp_path / "mark.go").touch()
        assert [first.wait(120), replacement.wait(120)] == [0, 0], [log.read_text() for log in logs]
        assert "done" in logs[1].read_text()
    finally:
        for process in (first, lost):
            process.kill()


def test_stop_deletes_the_service_of_the_job(api: Api, orch: Orch, tmp_path: Path) -> None:
    expect_exit(orch("train", write_script(tmp_path), *JOB, "--detach"))
    service = get_object(api, "services")
    assert service["metadata"]["ownerReferences"][0]["kind"] == "Job"
    assert api.names("jobs") == [service["metadata"]["name"]]
    expect_exit(orch("stop", "last"))
    assert api.names("jobs") == api.names("services") == api.names("configmaps") == []


def test_job_that_kueue_suspends_is_reported(api: Api, orch: Orch, tmp_path: Path) -> None:
    expect_exit(orch("train", write_script(tmp_path), *JOB, "--k8s", "queue=team-a", "--detach"))
    job = get_object(api, "jobs")
    assert job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "team-a"
    api.put("jobs", {**job, "status": make_conditions("Suspended")})
    wait = in_background(orch, "attach", "last")
    message = "suspended by Kueue until there is quota"
    api.wait_for(lambda: any(message in str(event) for event in read_events(last_run(tmp_path))), 60.0)
    api.put("jobs", {**job, "status": make_conditions("Complete")})
    assert message in expect_exit(wait()).stderr
