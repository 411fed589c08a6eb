"""Run as a plain Indexed Job, which must keep what the kinds of Kubeflow promise."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from pathlib import Path

from tests.local.pods import pod_command, write_pod_config
from tests.local.runs import write_script
from tests.support.kubernetes_plans import REQUEST, containers, make_plan, objects
from tests.support.ports import free_port

FAIL_ONCE = """
import os, sys, torch, torch.distributed as dist
value = torch.ones(1)
dist.all_reduce(value)
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and dist.get_rank() == 1:
    sys.exit(3)
dist.all_reduce(value)
print("sum", value.item())
"""


def test_pods_with_only_a_number_find_each_other_and_restart(tmp_path: Path) -> None:
    """Start the second pod first, so that it waits; they meet by the signed rendezvous."""
    (container,) = containers(list(objects(make_plan("job", request=replace(REQUEST, ppn=1, max_restarts=1)))))
    variables = {variable["name"]: variable["value"] for variable in container["env"]}
    variables = {name: value for name, value in variables.items() if name.startswith(("PET_", "TORCH_"))}
    variables["PET_RDZV_ENDPOINT"] = f"127.0.0.1:{free_port()}"
    config = write_pod_config(tmp_path, pods=2, ppn=1)
    command = pod_command("torchrun", config, str(tmp_path / write_script(tmp_path, FAIL_ONCE)))
    pods = []
    for index in (1, 0):
        environment = os.environ | variables | {"JOB_COMPLETION_INDEX": str(index)}
        pods.append(subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True))
    outputs = [pod.communicate(timeout=300)[0] for pod in pods]
    assert [pod.returncode for pod in pods] == [0, 0], outputs
    assert [output.count("sum 4.0") for output in outputs] == [1, 1]
    key = tmp_path / "data" / "runs" / "r" / ".rendezvous-key"
    assert key.stat().st_mode & 0o777 == 0o600
