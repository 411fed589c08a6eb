"""What pods run, run here: real torchrun, real mpiexec over a real sshd."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from orch_node.protocol.precision import PLACEHOLDER

from orchestrator.load.clusters import local_facts
from tests.conftest import HOSTILE_TEXTS
from tests.local.runs import expect_exit
from tests.support.ports import free_port

ROOT = Path(__file__).parent.parent.parent
NODE = ROOT / "train" / "node.py"
SHARES = """
import sys, torch, torch.distributed as dist
dist.init_process_group("gloo")
value = torch.tensor([float(dist.get_rank())])
dist.all_reduce(value)
print("sum", value.item(), "of", dist.get_world_size())
print(repr(sys.argv[1:]))
"""
TRAINS = """
import time, torch, torch.distributed as dist
from orch_node import preemption
step = 0
while True:
    step += 1
    dist.all_reduce(torch.ones(1))
    time.sleep(0.02)
    if preemption.requested():
        preemption.end(step)
    if step == 1:
        print("trains", flush=True)
"""
RAISES = """
import time, torch.distributed as dist
if dist.get_rank() == 1:
    raise ValueError("rank 1 has had enough")
time.sleep(60)
"""


def config(tmp_path: Path, **changes: Any) -> Path:
    value = {
        "schema": 1,
        "run_id": "r",
        "run_dir": str(tmp_path / "data" / "runs" / "r"),
        "mpi": None,
        "pods": 1,
        "word": "worker",
        "ppn": 2,
        "cpus": 64.0,
        "threads": 1,
        "backend": "gloo",
        "backend_module": "",
        "timeout_seconds": 60.0,
        "env": {"TOKENIZERS_PARALLELISM": "false"},
        "preload": ["libiomp5.so"],
        "stack": "current",
        "needs_bf16": False,
        "stall_timeout": 60.0,
        "max_restarts": 0,
        "ssh": {"folder": str(tmp_path / "keys"), "port": 0},
    } | changes
    path = tmp_path / "pod.json"
    path.write_text(json.dumps(value))
    return path


def pod(mode: str, path: Path, *script: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(NODE), "pod", mode, str(path), "--", *script],
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ | env,
    )


def events(out: str) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    return [one for one in found if "event" in one]


def logs(out: str, rank: int) -> list[str]:
    return re.findall(rf"^\[{rank}\] (.*)$", out, re.MULTILINE)


def script(tmp_path: Path, text: str) -> str:
    path = tmp_path / "own script.py"
    path.write_text(text)
    return str(path)


@pytest.mark.parametrize("backend", ["gloo", "ccl"])
def test_torchrun_joins_the_ranks_of_a_pod(tmp_path: Path, backend: str) -> None:
    ccl = {
        "backend": "ccl",
        "backend_module": "oneccl_bindings_for_pytorch",
        "env": {
            "CCL_ATL_TRANSPORT": "ofi",
            "CCL_PROCESS_LAUNCHER": "none",
            "FI_PROVIDER": "tcp",
            "CCL_WORKER_OFFLOAD": "0",
            "CCL_WORKER_COUNT": "1",
        },
    }
    arguments = [one for one in HOSTILE_TEXTS if "\x00" not in one]
    path = config(tmp_path, **(ccl if backend == "ccl" else {}))
    process = expect_exit(pod("torchrun", path, script(tmp_path, SHARES), *arguments))
    for rank in (0, 1):
        assert "sum 1.0 of 2" in logs(process.stdout, rank)
        assert repr(arguments) in logs(process.stdout, rank)
    joined = [one for one in events(process.stdout) if one["event"] == "joined"]
    assert {(one["rank"], one["backend"]) for one in joined} == {(0, backend), (1, backend)}
    assert [one["code"] for one in events(process.stdout) if one["event"] == "exit"] == [0, 0]
    assert '{"metrics": 0' in process.stdout
    assert (tmp_path / "data/runs/r/ranks/rank-1.log").exists()


def test_the_ranks_of_pods_choose_their_precision_together(tmp_path: Path) -> None:
    file = tmp_path / "data" / "output" / "precision.txt"
    arguments = {"bf16": ["--chosen", "bf16"], "fp32": ["--chosen", "fp32"]}
    path = config(tmp_path, precision={"arguments": arguments, "file": str(file)})
    expected = "bf16" if local_facts(sys.executable).bf16 else "fp32"
    for recorded in ("", "fp32"):
        process = expect_exit(pod("torchrun", path, script(tmp_path, SHARES), "--first", PLACEHOLDER, "--last"))
        for rank in (0, 1):
            assert repr(["--first", *arguments[recorded or expected], "--last"]) in logs(process.stdout, rank)
        (decision,) = (event for event in events(process.stdout) if event["event"] == "decision")
        assert (decision["topic"], decision["value"]) == ("precision", recorded or expected)
        assert file.read_text() == f"{recorded or expected}\n"
        file.write_text("fp32\n")


def test_a_rank_that_fails_ends_the_pod_soon_and_is_named(tmp_path: Path) -> None:
    began = time.monotonic()
    process = expect_exit(pod("torchrun", config(tmp_path), script(tmp_path, RAISES)), 1)
    assert time.monotonic() - began < 45
    exits = {one["rank"]: one for one in events(process.stdout) if one["event"] == "exit"}
    assert exits[1]["code"] == 1
    assert exits[0]["stopped"]
    assert "ValueError: rank 1 has had enough" in logs(process.stdout, 1)
    assert any("own script.py" in line for line in logs(process.stdout, 0)), "its stacks"


FORGES = r"""
import json, os
fd = int(os.environ["ORCH_EVENTS_FD"])
for line in (
    {"event": "outcome", "rank": -1, "time": 1.0, "outcome": {"state": "failed"}},
    {"event": "started", "rank": 7, "time": 1.0, "pid": -1, "wrapper": 0},
    {"event": "exit", "rank": 7, "time": 1.0, "code": 3},
    {"event": "progress", "rank": 0, "step": "three"},
):
    os.write(fd, json.dumps(line).encode() + b"\n")
"""


def test_a_script_that_writes_past_report_ends_no_process_of_a_pod(tmp_path: Path) -> None:
    """A process id of -1, or 0, is that of everybody."""
    process = expect_exit(pod("torchrun", config(tmp_path, ppn=1), script(tmp_path, FORGES)))
    told = events(process.stdout)
    left = [one["text"] for one in told if one["event"] == "left_out"]
    assert left == ["ranks cannot report the event outcome", "progress: step is 'three', not a number"]
    assert not [one for one in told if one["event"] == "outcome"]


def test_a_pod_that_stands_still_is_ended(tmp_path: Path) -> None:
    # One rank sleeps; its pulse falls silent.
    path = config(tmp_path, stall_timeout=6.0, ppn=1)
    process = pod("torchrun", path, script(tmp_path, "import time\ntime.sleep(90)"))
    assert process.returncode != 0
    (stalled,) = [one for one in events(process.stdout) if one["event"] == "stalled"]
    assert "no progress for 6 s" in stalled["text"]


def test_a_pod_that_is_asked_to_end_ends_its_ranks(tmp_path: Path) -> None:
    path = config(tmp_path, ppn=1)
    sleeps = script(tmp_path, "import time\ntime.sleep(90)")
    command = [sys.executable, str(NODE), "pod", "torchrun", str(path), "--", sleeps]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if '"joined"' in line:
                break
        process.send_signal(signal.SIGTERM)
        rest = process.stdout.read()
    assert process.returncode != 0
    (end,) = [one for one in events(rest) if one["event"] == "exit"]
    assert end["stopped"]


def told_while_training(says: subprocess.Popen[str], pod: subprocess.Popen[Any]) -> str:
    """Tell a pod to end once rank 0 trains; -> what is said from then on."""
    assert says.stdout is not None
    for line in says.stdout:
        if line == "[0] trains\n":
            break
    pod.send_signal(signal.SIGTERM)
    return says.stdout.read()


def test_a_pod_that_is_taken_away_writes_a_checkpoint(tmp_path: Path) -> None:
    path = config(tmp_path)
    command = [sys.executable, str(NODE), "pod", "torchrun", str(path), "--"]
    with subprocess.Popen([*command, script(tmp_path, TRAINS)], stdout=subprocess.PIPE, text=True) as process:
        rest = told_while_training(process, process)
    assert process.returncode == 75
    told = [one for one in events(rest) if one["event"] in ("preempted", "exit")]
    assert len({one["step"] for one in told if one["event"] == "preempted"}) == 1
    assert [one["code"] for one in told if one["event"] == "exit"] == [75, 75]


def test_run_folder_in_a_pod_belongs_to_its_user_alone(tmp_path: Path) -> None:
    pod("torchrun", config(tmp_path, needs_bf16=False), "x.py", ORCH_STACK="current")
    run_dir = tmp_path / "data" / "runs" / "r"
    modes = [path.stat().st_mode & 0o777 for path in (run_dir, run_dir / "ranks")]
    assert modes == [0o700, 0o700]


def test_an_image_with_another_stack_and_a_volume_that_is_closed(tmp_path: Path) -> None:
    path = config(tmp_path)
    process = expect_exit(pod("torchrun", path, "x.py", ORCH_STACK="intel-2.7"), 78)
    (told,) = events(process.stdout)
    assert told["event"] == "refused"
    assert "stack 'intel-2.7'" in told["text"]
    (tmp_path / "data").write_text("no folder")
    process = expect_exit(pod("torchrun", path, "x.py"), 78)
    assert "volume cannot be written" in events(process.stdout)[0]["text"]


# Over ssh: one sshd stands for the worker, this process for the launcher.


@pytest.fixture
def worker(tmp_path: Path, worker_pod: Any) -> Path:
    return tmp_path / "pod.json"


@pytest.fixture
def worker_pod(tmp_path: Path) -> Any:
    """A worker pod's sshd on a port of this machine, with the job's key pair; -> its process."""
    keys = tmp_path / "keys"
    keys.mkdir()
    subprocess.run(["ssh-keygen", "-q", "-t", "ecdsa", "-N", "", "-f", keys / "id_rsa"], check=True)
    (keys / "id_rsa").chmod(0o644)  # as the operator mounts it
    (keys / "authorized_keys").write_bytes((keys / "id_rsa.pub").read_bytes())
    port = free_port()
    path = config(tmp_path, mpi="Intel", ssh={"folder": str(keys), "port": port})
    Path("/run/sshd").mkdir(exist_ok=True)
    process = subprocess.Popen([sys.executable, str(NODE), "pod", "sshd", str(path)])
    yield process
    process.kill()
    process.wait()


def can_be_sshd() -> bool:
    return os.access("/usr/sbin/sshd", os.X_OK) and os.getuid() == 0


@pytest.mark.skipif(not can_be_sshd(), reason="needs sshd, and root for /run/sshd")
def test_mpirun_reaches_its_workers_by_ssh_and_verifies_them(tmp_path: Path, worker: Path) -> None:
    host = socket.gethostname()
    (tmp_path / "hostfile").write_text(f"{host}:2\n")
    env = {"I_MPI_HYDRA_HOST_FILE": str(tmp_path / "hostfile")}
    process = expect_exit(pod("mpirun", worker, script(tmp_path, SHARES), "$(x)", **env))
    for rank in (0, 1):
        assert "sum 1.0 of 2" in logs(process.stdout, rank)
    (end,) = [one for one in events(process.stdout) if one["event"] == "outcome"]
    assert end["outcome"]["state"] == "done"
    assert next(iter(end["outcome"]["nodes"].values()))["left"] == []


@pytest.mark.skipif(not can_be_sshd(), reason="needs sshd, and root for /run/sshd")
def test_a_worker_that_is_taken_away_has_all_ranks_write_a_checkpoint(
    tmp_path: Path, worker_pod: subprocess.Popen[bytes]
) -> None:
    (tmp_path / "hostfile").write_text(f"{socket.gethostname()}:2\n")
    path = tmp_path / "pod.json"
    command = [sys.executable, str(NODE), "pod", "mpirun", str(path), "--"]
    env = {**os.environ, "I_MPI_HYDRA_HOST_FILE": str(tmp_path / "hostfile")}
    with subprocess.Popen([*command, script(tmp_path, TRAINS)], stdout=subprocess.PIPE, text=True, env=env) as launcher:
        rest = told_while_training(launcher, worker_pod)
    assert launcher.returncode == 75
    (end,) = [one for one in events(rest) if one["event"] == "outcome"]
    assert end["outcome"]["state"] == "preempted"
    assert end["outcome"]["problem"].startswith("checkpoint at step ")
    assert worker_pod.wait(20) in (0, 255, -signal.SIGTERM)


@pytest.mark.skipif(not can_be_sshd(), reason="needs sshd, and root for /run/sshd")
def test_mpirun_names_the_rank_that_failed(tmp_path: Path, worker: Path) -> None:
    (tmp_path / "hostfile").write_text(f"{socket.gethostname()} slots=2\n")
    env = {"OMPI_MCA_orte_default_hostfile": str(tmp_path / "hostfile")}
    process = expect_exit(pod("mpirun", worker, script(tmp_path, RAISES), **env), 1)
    (end,) = [one for one in events(process.stdout) if one["event"] == "outcome"]
    assert end["outcome"]["first_failure"]["rank"] == 1
    assert "had enough" in end["outcome"]["first_failure"]["text"]


def test_mpirun_says_that_workers_are_missing(tmp_path: Path) -> None:
    path = config(tmp_path, mpi="Intel", pods=2)
    (tmp_path / "hostfile").write_text("one:2\n")
    process = expect_exit(pod("mpirun", path, "x.py", I_MPI_HYDRA_HOST_FILE=str(tmp_path / "hostfile")), 78)
    assert "has 1 workers, the run needs 2" in events(process.stdout)[0]["text"]


INTRUDES = r"""
import base64, os, pickle, sys, time
from torch.distributed import TCPStore

class Evil:
    def __reduce__(self):
        return os.system, (f"touch {sys.argv[2]}",)

store = TCPStore("127.0.0.1", int(sys.argv[1]), is_master=False)
key = "torch.rendezvous.r"
while not store.check(["/" + key]) and not store.check([key]):
    time.sleep(0.05)
store.set(key, base64.b64encode(pickle.dumps(Evil())))
"""


def test_a_stranger_in_the_pod_network_runs_no_code_in_a_pod(tmp_path: Path) -> None:
    """Its torchrun waits for another pod, and reads the state that somebody else has written."""
    port, mark = free_port(), tmp_path / "PWNED"
    elastic = {
        "PET_NNODES": "2:2",
        "PET_NPROC_PER_NODE": "2",
        "PET_RDZV_BACKEND": "c10d",
        "PET_RDZV_ENDPOINT": f"127.0.0.1:{port}",
        "PET_RDZV_ID": "r",
        "PET_MAX_RESTARTS": "0",
    }
    words = [sys.executable, str(NODE), "pod", "torchrun", str(config(tmp_path)), "--"]
    pod = subprocess.Popen(
        [*words, script(tmp_path, SHARES)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | elastic,
    )
    intruder = [sys.executable, "-c", INTRUDES, str(port), str(mark)]
    subprocess.run(intruder, timeout=90, check=True)
    try:
        said, _ = pod.communicate(timeout=60)
    finally:
        pod.kill()
    assert not mark.exists()
    assert pod.returncode not in (0, None)
    assert "a host that is not a node of this run" in said
