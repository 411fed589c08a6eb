"""Run on this machine what pods run: real torchrun."""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from orch_node.pod.project import unpack
from orch_node.protocol.layout import PRECISION_PLACEHOLDER
from orch_node.protocol.pod import PodProject
from orch_node.streams import without_marks

from orchestrator.files import LIB, pack_files
from orchestrator.load.clusters import local_facts
from tests.conftest import HOSTILE_TEXTS
from tests.local.runs import CHECKPOINT_SCRIPT, Process, expect_exit, write_script
from tests.support.kubernetes_plans import REQUEST, containers, make_plan, objects
from tests.support.ports import free_port
from tests.support.projects import FILES, write_project
from tests.support.waiting import wait_until

NODE = Path(__file__).parents[2] / "train" / "node.py"
FAIL_ON_RANK_1 = """
import time, torch.distributed as dist
if dist.get_rank() == 1:
    raise ValueError("rank 1 has had enough")
time.sleep(60)
"""
SUM_SCRIPT = """
import sys, torch, torch.distributed as dist
dist.init_process_group("gloo")
value = torch.tensor([float(dist.get_rank())])
dist.all_reduce(value)
print("sum", value.item(), "of", dist.get_world_size())
print(repr(sys.argv[1:]))
"""
SLEEP_SCRIPT = "import time\ntime.sleep(90)"
# Settings of a pod whose backend is ccl.
CCL = {
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


def write_pod_config(folder: Path, **changes: Any) -> Path:
    """Write the configuration of a pod with two ranks, and return its path."""
    value = {
        "run_dir": str(folder / "data" / "runs" / "r"),
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
    } | changes
    path = folder / "pod.json"
    path.write_text(json.dumps(value))
    return path


def pod_command(mode: str, config: Path, *script: str) -> list[str]:
    return [sys.executable, str(NODE), "pod", mode, str(config), "--", *script]


def rendezvous(endpoint: str, run: str, *, ranks: int, restarts: int) -> dict[str, str]:
    """Return this environment with the variables by which two pods meet."""
    return os.environ | {
        "PET_NNODES": "2:2",
        "PET_NPROC_PER_NODE": str(ranks),
        "PET_RDZV_BACKEND": "c10d",
        "PET_RDZV_ENDPOINT": endpoint,
        "PET_RDZV_ID": run,
        "PET_MAX_RESTARTS": str(restarts),
    }


def run_pod(mode: str, config: Path, *script: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a pod to its end."""
    command, environment = pod_command(mode, config, *script), os.environ | variables
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)


def parse_events(output: str, *kinds: str) -> list[dict[str, Any]]:
    """Return the events of these kinds in a pod's output, by default of all kinds."""
    values = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    events = [value for value in values if "event" in value]
    return [event for event in events if not kinds or event["event"] in kinds]


def rank_lines(output: str, rank: int) -> list[str]:
    """Return the lines of a rank in a pod's output."""
    return re.findall(rf"^\[{rank}\] (.*)$", without_marks(output), re.MULTILINE)


def make_script(folder: Path, text: str) -> str:
    """Write a script with a space in its name, and return its path."""
    return str(folder / write_script(folder, text, "own script.py"))


PRECISIONS = {"bf16": ["--chosen", "bf16"], "fp32": ["--chosen", "fp32"]}


def check_precision(process: Process, output_dir: Path, expected: str) -> None:
    """Check that a pod has recorded its decision."""
    (decision,) = parse_events(process.stdout, "decision")
    assert (decision["topic"], decision["value"]) == ("precision", expected)
    assert (output_dir / "precision.txt").read_text() == f"{expected}\n"


def test_torchrun_joins_the_ranks_of_a_pod_and_all_choose_the_same_precision(tmp_path: Path) -> None:
    output_dir = tmp_path / "data" / "output"
    precision = {"arguments": PRECISIONS, "file": str(output_dir / "precision.txt")}
    config, script = write_pod_config(tmp_path, precision=precision, **CCL), make_script(tmp_path, SUM_SCRIPT)
    process = expect_exit(run_pod("torchrun", config, script, PRECISION_PLACEHOLDER, *HOSTILE_TEXTS))
    expected = "bf16" if local_facts(sys.executable).bf16 else "fp32"
    for rank in (0, 1):
        assert "sum 1.0 of 2" in rank_lines(process.stdout, rank)
        assert repr([*PRECISIONS[expected], *HOSTILE_TEXTS]) in rank_lines(process.stdout, rank)
    check_precision(process, output_dir, expected)
    joined = {(event["rank"], event["backend"]) for event in parse_events(process.stdout, "joined")}
    assert joined == {(0, "ccl"), (1, "ccl")}
    assert [event["code"] for event in parse_events(process.stdout, "exit")] == [0, 0]
    assert '{"metrics": 0' in process.stdout
    run_dir = tmp_path / "data/runs/r"
    assert (run_dir / "ranks/rank-1.log").exists()
    modes = [path.stat().st_mode & 0o777 for path in (run_dir, run_dir / "ranks")]
    assert modes == [0o700, 0o700], "only the user of the pod may read the run's folder"


def test_failing_rank_ends_the_pod_soon_and_is_reported(tmp_path: Path) -> None:
    start = time.monotonic()
    config = write_pod_config(tmp_path)
    process = expect_exit(run_pod("torchrun", config, make_script(tmp_path, FAIL_ON_RANK_1)), 1)
    assert time.monotonic() - start < 45
    exits = {event["rank"]: event for event in parse_events(process.stdout, "exit")}
    assert exits[1]["code"] == 1
    assert exits[0]["stopped"]
    assert "ValueError: rank 1 has had enough" in rank_lines(process.stdout, 1)
    assert any("own script.py" in line for line in rank_lines(process.stdout, 0)), "its stack trace is shown"


FORGE_EVENTS = r"""
import json, os, sys
print(repr(sys.argv[1:]))
fd = int(os.environ["ORCH_EVENTS_FD"])
for line in (
    {"event": "started", "rank": 7, "time": 1.0, "pid": -1, "wrapper": 0},
    {"event": "exit", "rank": 7, "time": 1.0, "code": 3},
    {"event": "progress", "rank": 0, "step": "three"},
):
    os.write(fd, json.dumps(line).encode() + b"\n")
"""


def test_forged_events_end_no_process_of_a_pod_which_keeps_the_recorded_precision(tmp_path: Path) -> None:
    """Forge a process id of -1, which means all processes."""
    output_dir = tmp_path / "data" / "output"
    output_dir.mkdir(parents=True)
    (output_dir / "precision.txt").write_text("fp32\n")
    precision = {"arguments": PRECISIONS, "file": str(output_dir / "precision.txt")}
    config, script = write_pod_config(tmp_path, ppn=1, precision=precision), make_script(tmp_path, FORGE_EVENTS)
    process = expect_exit(run_pod("torchrun", config, script, "--first", PRECISION_PLACEHOLDER, "--last"))
    assert repr(["--first", *PRECISIONS["fp32"], "--last"]) in rank_lines(process.stdout, 0)
    check_precision(process, output_dir, "fp32")
    rejected = [event["text"] for event in parse_events(process.stdout, "left_out")]
    assert rejected == ["progress: step is 'three', not a number"]


def test_pod_without_progress_is_ended(tmp_path: Path) -> None:
    """Let the only rank sleep, so that its heartbeats stop."""
    config = write_pod_config(tmp_path, stall_timeout=6.0, ppn=1)
    process = run_pod("torchrun", config, make_script(tmp_path, SLEEP_SCRIPT))
    assert process.returncode != 0
    (event,) = parse_events(process.stdout, "stalled")
    assert "no progress for 6 s" in event["text"]


def test_pod_that_is_preempted_writes_a_checkpoint(tmp_path: Path) -> None:
    command = pod_command("torchrun", write_pod_config(tmp_path), make_script(tmp_path, CHECKPOINT_SCRIPT))
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert any("[0] trains\n" in line for line in process.stdout)
        process.send_signal(signal.SIGTERM)
        output = process.stdout.read()
    assert process.returncode == 75
    assert len({event["step"] for event in parse_events(output, "preempted")}) == 1
    assert [event["code"] for event in parse_events(output, "exit")] == [75, 75]


def test_pod_that_cannot_run_the_ranks_is_refused(tmp_path: Path) -> None:
    damaged = mount_project(tmp_path)
    (tmp_path / "part-1").write_bytes(b"")
    for changes, variables, message in (
        ({}, {"ORCH_STACK": "intel-2.7"}, "stack 'intel-2.7'"),
        ({"pods": 2}, {}, "planned for 2:"),
        ({}, {"PET_NNODES": "1:3"}, "torchrun joins 1:3"),
        ({"project": damaged}, {}, "the project is not the one that was sent"),
        ({"run_dir": f"{tmp_path}/part-1/runs/r"}, {}, "cannot be written (Not a directory)"),
    ):
        process = expect_exit(run_pod("torchrun", write_pod_config(tmp_path, **changes), "x.py", **variables), 78)
        (event,) = parse_events(process.stdout)
        assert event["event"] == "refused"
        assert message in event["text"]
    assert [path.name for path in (tmp_path / "data/runs/r").iterdir()] == ["ranks"]


# A project.


def mount_project(folder: Path) -> dict[str, Any]:
    """Write the project as two mounted files, and return what pod.json says about it."""
    source, buffer = folder / "project", io.BytesIO()
    write_project(source)
    pack_files(buffer, source, [source / name for name in FILES])
    archive = buffer.getvalue()
    for number, part in enumerate((archive[:100], archive[100:])):
        (folder / f"part-{number}").write_bytes(part)
    copy = str(folder / "data" / "runs" / "r" / "project")
    return {
        "parts": [str(folder / f"part-{number}") for number in range(2)],
        "sha256": hashlib.sha256(archive).hexdigest(),
        "copy": copy,
        "working_directory": copy,
    }


def test_copy_of_a_project_is_made_once(tmp_path: Path) -> None:
    """Unpack it in several pods at the same time, and once more after the ranks have written into the copy."""
    project = PodProject(**mount_project(tmp_path))
    copy = Path(project.copy)
    copy.parent.mkdir(parents=True)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(unpack, [project] * 8))
    (copy / "written").touch()
    unpack(project)
    assert {str(path.relative_to(copy)) for path in copy.rglob("*") if path.is_file()} == {*FILES, "written"}
    assert all((copy / name).read_bytes() == (tmp_path / "project" / name).read_bytes() for name in FILES)
    assert list(copy.parent.iterdir()) == [copy], "no incomplete copy remains"
    name = next(iter(FILES))
    (copy / name).write_text("changed")
    written = (copy / name).stat().st_mtime
    unpack(replace(project, replaced=(name,)), attempt=2)
    assert (copy / name).read_bytes() == (tmp_path / "project" / name).read_bytes()
    assert (copy / name).stat().st_mtime >= written, "a new time, or Python may use the bytecode of the earlier file"


ATTACK = r"""
import base64, os, pickle, sys, time
from torch.distributed import TCPStore

class Payload:
    def __reduce__(self):
        return os.system, (f"touch {sys.argv[2]}",)

store = TCPStore("127.0.0.1", int(sys.argv[1]), is_master=False)
key = "torch.rendezvous.r"
while not store.check(["/" + key]) and not store.check([key]):
    time.sleep(0.05)
store.set(key, base64.b64encode(pickle.dumps(Payload())))
"""


def test_program_in_the_pod_network_runs_no_code_in_a_pod(tmp_path: Path) -> None:
    """Write to the rendezvous of a torchrun that waits for another pod."""
    port, mark = free_port(), tmp_path / "PWNED"
    environment = rendezvous(f"127.0.0.1:{port}", "r", ranks=2, restarts=0)
    command = pod_command("torchrun", write_pod_config(tmp_path, pods=2), make_script(tmp_path, SUM_SCRIPT))
    pod = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)
    subprocess.run([sys.executable, "-c", ATTACK, str(port), str(mark)], timeout=90, check=True)
    try:
        output, _ = pod.communicate(timeout=60)
    finally:
        pod.kill()
    assert not mark.exists()
    assert pod.returncode not in (0, None)
    assert "a host that is not a node of this run" in output


# Two pods, one of which is replaced.


HOST, PEER = "127.0.0.2", "127.0.0.1"
WAIT_SCRIPT = """
import os, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
print("joined as", os.environ["RANK"], flush=True)
# All ranks leave the loop in the same round, because one that leaves earlier would break the others' collective.
done = torch.zeros(1)
while not done:
    time.sleep(0.1)
    done.fill_(os.path.exists(os.environ["DONE"]))
    dist.all_reduce(done)
dist.barrier()
dist.destroy_process_group()  # without it, gloo's threads may abort the process at its exit
"""
START_POD = """
import sys
from orch_node.pod import main
process = main.start("--local_addr=" + sys.argv[1], "--rdzv_conf=is_host=" + sys.argv[2],
                     sys.argv[3], key=b"k" * 64)
for line in process.stdout:
    sys.stdout.buffer.write(line)
    sys.stdout.flush()
sys.exit(process.wait())
"""


@contextmanager
def start_pod(folder: Path, address: str, port: int, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Start a pod with an address, which stands for its name: both stay the same when a pod is replaced."""
    variables = {"PYTHONPATH": str(LIB), "DONE": str(folder / "done"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", START_POD, address, str(int(address == HOST)), str(folder / "own.py")]
    environment = rendezvous(f"{HOST}:{port}", "run", ranks=1, restarts=2) | variables
    with (
        log.open("wb") as output,
        subprocess.Popen(command, env=environment, stdout=output, stderr=output, start_new_session=True) as process,
    ):
        try:
            yield process
        finally:
            end_pod(process)


def end_pod(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def await_in_logs(condition: Callable[[], bool], *logs: Path) -> None:
    """Wait for a condition, or fail with the ends of the logs."""
    try:
        wait_until(condition, "the condition")
    except AssertionError as error:
        texts = [log.read_text(errors="replace")[-2000:] for log in logs if log.exists()]
        raise AssertionError(texts) from error


def test_replacement_of_the_pod_of_rank_0_joins(tmp_path: Path) -> None:
    """Check that the remaining pod does not look for the ranks' store at the address of the deleted pod."""
    write_script(tmp_path, WAIT_SCRIPT)
    port = free_port()
    logs = host_log, first_log, second_log = [tmp_path / name for name in ("host.log", "first.log", "second.log")]
    with start_pod(tmp_path, HOST, port, host_log) as host:
        with start_pod(tmp_path, PEER, port, first_log) as first:
            await_in_logs(lambda: "joined as 0" in first_log.read_text(), *logs)
            await_in_logs(lambda: "joined as 1" in host_log.read_text(), *logs)
            end_pod(first)
        with start_pod(tmp_path, PEER, port, second_log) as second:
            await_in_logs(lambda: "joined as" in second_log.read_text(), *logs)
            await_in_logs(lambda: host_log.read_text().count("joined as") == 2, *logs)
            (tmp_path / "done").touch()
            await_in_logs(lambda: second.poll() == 0 and host.poll() == 0, *logs)


# Pods of a plain Indexed Job, which must keep what the kinds of Kubeflow promise.


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
    key = tmp_path / "data" / "runs" / "r" / ".rendezvous" / "key"
    assert key.stat().st_mode & 0o777 == 0o600
