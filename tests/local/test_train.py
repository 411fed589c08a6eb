"""`orch train` with a script of the user's, on this machine, under the real mpiexec.hydra."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.conftest import HOSTILE, orch_environment
from tests.local.runs import Orch, expect_exit, last_run, leftover_processes, rank_log, write_script

DDP = """
import os, sys, time
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group()  # a script that knows nothing of orch
rank = dist.get_rank()
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    optimizer.zero_grad()
    model(torch.full((2, 4), float(rank + 1))).mean().backward()
    optimizer.step()
print("weights", model.module.weight.sum().item(), "args", sys.argv[1:])
sys.stdout.flush()
"""


# The same of a script that trains nothing: DDP imports torch's compiler, half of all that it takes.
JOINED = """
import os, sys, time
import torch
import torch.distributed as dist

dist.init_process_group()
rank = dist.get_rank()
dist.all_reduce(torch.ones(1))
print("joined", "args", sys.argv[1:])
sys.stdout.flush()
"""


def write_training(folder: Path, ending: str = "", *, beginning: str = JOINED) -> None:
    write_script(folder, beginning + ending, "script.py")


@pytest.mark.parametrize("backend", ["ccl", "gloo"])
def test_an_unmodified_ddp_script_trains_on_two_ranks(orch: Orch, tmp_path: Path, backend: str) -> None:
    write_training(tmp_path, "print(dist.get_backend())\n", beginning=DDP)
    process = expect_exit(orch("train", "script.py", "--ppn", "2", "--backend", backend, "--", "--flag", "value"))
    run = last_run(tmp_path)
    weights = [re.search(r"weights (\S+) args (.*)", rank_log(run, rank)) for rank in (0, 1)]
    assert weights[0]
    assert weights[1]
    assert weights[0].groups() == weights[1].groups(), "DDP keeps the ranks equal"
    assert weights[0].group(2) == "['--flag', 'value']"
    assert f"mpirun, {backend}, stack current" in process.stderr
    assert f"weights {weights[0].group(1)}" in process.stderr, "rank 0 is heard"
    assert rank_log(run, 1).endswith(f"{backend}\n")
    assert f"files: {run}\n" in process.stderr
    assert process.stdout.endswith(f"details: orch report {run.name}\n")


@pytest.mark.parametrize("name", ["two words", "$(touch PWNED)", 'it\'s "q"', "new\nline", "-n*"])
def test_hostile_paths_and_arguments_arrive_unchanged(orch: Orch, tmp_path: Path, name: str) -> None:
    folder = tmp_path / name
    folder.mkdir()
    script = folder / "show $(x).py"
    script.write_text(
        "import sys, os, pathlib\npathlib.Path(os.environ['ORCH_RUN_DIR'], 'seen').write_text(repr(sys.argv))"
    )
    expect_exit(orch("train", str(script), "--", *HOSTILE))
    assert (last_run(tmp_path) / "seen").read_text() == repr([str(script), *HOSTILE])
    assert not list(tmp_path.rglob("PWNED"))


def test_ranks_run_where_the_layout_says(orch: Orch, tmp_path: Path) -> None:
    tail = "print('mask', open('/proc/self/status').read()); time.sleep(0)"
    write_training(tmp_path, tail)
    expect_exit(orch("train", "script.py", "--ppn", "2"))
    run = last_run(tmp_path)
    planned = [rank["cpus"] for rank in json.loads((run / "layout.json").read_text())["ranks"]]
    events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    joined = {e["rank"]: e["cpus"] for e in events if e["event"] == "joined"}
    assert [joined[0], joined[1]] == planned
    for rank, cpus in enumerate(planned):
        assert f"Cpus_allowed_list:\t{cpus[0]}\n" in rank_log(run, rank)


def test_a_dry_run_pasted_into_a_shell_is_the_same_training(orch: Orch, tmp_path: Path) -> None:
    write_training(tmp_path)
    printed = expect_exit(orch("train", "script.py", "--ppn", "2", "--dry-run", "--", "it's", "$(x)"))
    assert not (tmp_path / "runs").exists(), "a dry run touches nothing"
    process = subprocess.run(
        ["sh"],
        input=printed.stdout,
        cwd=tmp_path,
        text=True,
        capture_output=True,
        timeout=120,
        env=orch_environment(tmp_path),
    )
    assert process.returncode == 0, process.stderr
    run = last_run(tmp_path)
    assert json.loads((run / "outcome.json").read_text())["state"] == "done"
    assert """args ["it's", '$(x)']""" in rank_log(run, 1)


def test_a_dry_run_needs_no_network(tmp_path: Path) -> None:
    write_training(tmp_path)
    command = [sys.executable, "-m", "orchestrator.cli.main", "train", "script.py", "--dry-run"]
    process = subprocess.run(
        ["unshare", "--map-root-user", "--net", *command],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env=orch_environment(tmp_path),
    )
    assert process.returncode == 0, process.stderr


FAULTS = {
    "exception": ("if rank == 1: raise ValueError('boom')", r"rank 1 on node0 exited with code 1", "ValueError: boom"),
    "exit": ("if rank == 1: sys.exit(7)", r"rank 1 on node0 exited with code 7", "sys.exit(7)"),
    "argparse": (
        "if rank == 1: __import__('argparse').ArgumentParser(prog='x').parse_args(['-e'])",
        r"rank 1 on node0 exited with code 2",
        "  x: error: unrecognized arguments: -e\n",
    ),
    "printed": (
        "import traceback\nif rank == 1:\n  try: None.x\n  except AttributeError: traceback.print_exc(); sys.exit(3)",
        r"rank 1 on node0 exited with code 3",
        "\n  Traceback (most recent call last):\n",
    ),
    "message": ("if rank == 1: sys.exit('no data')", r"rank 1 on node0 exited with code 1", "no data"),
    "kill": ("if rank == 1: os.kill(os.getpid(), 9)", r"rank 1 on node0 was ended by SIGKILL", ""),
    "crash": ("if rank == 1: os.kill(os.getpid(), 11)", r"rank 1 on node0 was ended by SIGSEGV", ""),
}


@pytest.mark.parametrize("backend", ["ccl", "gloo"])
@pytest.mark.parametrize("fault", FAULTS)
def test_the_first_failing_rank_is_named_and_the_others_are_stopped(
    orch: Orch, tmp_path: Path, fault: str, backend: str
) -> None:
    code, who, what = FAULTS[fault]
    write_training(tmp_path, f"{code}\ntime.sleep(100)\n")
    began = time.monotonic()
    process = expect_exit(orch("train", "script.py", "--ppn", "2", "--backend", backend), 1)
    assert time.monotonic() - began < 60, "the rank that sleeps was waited for"
    assert re.search(who, process.stdout), process.stdout
    assert "most recent call first" not in process.stderr
    assert what in process.stdout
    run = last_run(tmp_path)
    assert process.stdout.endswith(f"details: orch logs {run.name}\n")
    assert "time.sleep" in rank_log(run, 0) or 'script.py", line' in rank_log(run, 0), "its stack is kept"
    assert leftover_processes(run) == []


def test_a_rank_that_dies_before_it_joins(orch: Orch, tmp_path: Path) -> None:
    (tmp_path / "x.py").write_text("")
    plan = orch("train", "x.py", "--ppn", "2", "--dry-run").stdout
    broken = plan.replace('"backend": "ccl"', '"backend": "nonsense"')
    process = subprocess.run(
        ["sh"], input=broken, cwd=tmp_path, text=True, capture_output=True, timeout=120, env=orch_environment(tmp_path)
    )
    assert process.returncode == 1
    outcome = json.loads((last_run(tmp_path) / "outcome.json").read_text())
    assert "nonsense" in outcome["first_failure"]["text"]


@pytest.mark.parametrize("backend", ["ccl", "gloo"])
def test_a_script_that_trains_alone_on_every_rank_is_stopped(orch: Orch, tmp_path: Path, backend: str) -> None:
    alone = DDP.replace("dist.init_process_group()", "").replace(
        "DistributedDataParallel(torch.nn.Linear(4, 1))", "torch.nn.Linear(4, 1)"
    )
    (tmp_path / "alone.py").write_text(alone)
    process = expect_exit(orch("train", "alone.py", "--ppn", "2", "--backend", backend), 1)
    assert "trains alone on every rank" in process.stdout
    assert "Traceback" not in process.stdout


@pytest.mark.parametrize("backend", ["ccl", "gloo"])
def test_one_rank_finds_a_group_and_may_train_alone(orch: Orch, tmp_path: Path, backend: str) -> None:
    (tmp_path / "one.py").write_text(
        "import torch, torch.distributed as dist\nassert dist.get_world_size() == 1\n"
        "m = torch.nn.Linear(2, 1)\no = torch.optim.SGD(m.parameters(), lr=0.1)\n"
        "for step in range(4):\n    m(torch.ones(1, 2)).sum().backward()\n    o.step()\n"
        "value = torch.tensor([3.0])\ndist.all_reduce(value)\ndist.barrier()\n"
        "assert value.item() == 3.0\n"
        "m = torch.nn.parallel.DistributedDataParallel(m)\n"
        "m(torch.ones(1, 2)).sum().backward()\nprint(dist.get_rank())\n"
    )
    expect_exit(orch("train", "one.py", "--ppn", "1", "--backend", backend))


STUBBORN = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('deaf')\n"


@pytest.mark.parametrize(
    ("number", "times", "code"),
    [(signal.SIGINT, 1, ""), (signal.SIGTERM, 1, ""), (signal.SIGTERM, 2, STUBBORN)],
    ids=["ctrl-c", "sigterm", "forced"],
)
def test_interrupting_stops_all_ranks(tmp_path: Path, number: signal.Signals, times: int, code: str) -> None:
    write_training(tmp_path, f"{code}time.sleep(100)\n")
    process = subprocess.Popen(
        [sys.executable, "-m", "orchestrator.cli.main", "train", "script.py", "--ppn", "2"],
        cwd=tmp_path,
        env=orch_environment(tmp_path),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 60
    while not (list(tmp_path.glob("runs/*/ranks/rank-1.log")) and "joined" in rank_log(last_run(tmp_path), 1)):
        assert time.monotonic() < deadline, "the ranks never joined"
        time.sleep(0.2)
    assert process.stderr is not None
    for _ in range(times):
        process.send_signal(number)
        assert any("interrupted" in line for line in process.stderr)
    process.communicate(timeout=30)
    assert process.returncode == 130
    run = last_run(tmp_path)
    assert leftover_processes(run) == []
    assert times > 1 or json.loads((run / "outcome.json").read_text())["state"] == "stopped"


STANDSTILLS = {
    "one rank behind": (
        "if dist.get_rank() == 1:\n    time.sleep(1000)\ndist.barrier()\n",
        "rank 1 never reached the first collective; it is at hang.py:4 <module>",
    ),
    "all ranks idle": (
        "dist.barrier()\ntime.sleep(1000)\n",
        "ranks 0-1 are all at collective 1; rank 0 is at hang.py:4 <module>; rank 1 is at hang.py:4 <module>",
    ),
}


@pytest.mark.parametrize("case", STANDSTILLS)
def test_a_standstill_is_reported_while_the_run_continues(tmp_path: Path, case: str) -> None:
    body, place = STANDSTILLS[case]
    (tmp_path / "hang.py").write_text(f"import time\nimport torch.distributed as dist\n{body}")
    options = ("--ppn", "2", "--stall-timeout", "60")  # half of it: to join may take as long
    process = subprocess.Popen(
        [sys.executable, "-m", "orchestrator.cli.main", "train", "hang.py", *options],
        cwd=tmp_path,
        env=orch_environment(tmp_path),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    report = next(line for line in process.stderr if line.startswith("no progress for 30 s"))
    assert report.endswith(f"{place}\n"), report
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=30)
    assert process.returncode == 130, "it was running"


def test_a_runs_dir_that_cannot_be_written(orch: Orch, tmp_path: Path) -> None:
    write_training(tmp_path)
    (tmp_path / "file").write_text("")
    process = expect_exit(orch("train", "script.py", "--runs-dir", "file/runs"), 2)
    assert process.stderr.splitlines()[-2].startswith("error: The run directory")
    assert "--runs-dir" in process.stderr
    assert (tmp_path / "file").read_text() == ""


BAD_REQUESTS = {
    "no-recipe": (("train", "bert-q"), "Did you mean 'bert-qa'?"),
    "no-script": (("train", "nowhere.py"), "There is no script 'nowhere.py'"),
    "no-stack": (("train", "bert-qa", "--stack", "curent"), "Did you mean 'current'?"),
    "no-key": (("train", "bert-qa", "--set", "lerning_rate=1"), "Did you mean 'learning_rate'?"),
    "no-file": (("train", "bert-qa", "--set", "train_file=none.json"), "file not found"),
    "no-inventory": (("train", "bert-qa", "--inventory", "locl"), "Did you mean 'local'?"),
    "ppn": (("train", "bert-qa", "--ppn", "1000"), "--ppn 1000, but node0 has"),
    "nodes": (("train", "bert-qa", "--nodes", "9"), "--nodes 9, but cluster 'local' has 1 node"),
    "backend": (("train", "bert-qa", "--backend", "nccl"), "--backend nccl"),
    "workers": (
        ("train", "bert-qa", "--ppn", "1", "--ccl-workers", "1000"),
        "--ccl-workers 1000, but a rank on node0 has",
    ),
    "gloo-workers": (
        ("train", "bert-qa", "--backend", "gloo", "--ccl-workers", "1"),
        "--ccl-workers 1, but the backend is gloo",
    ),
    "ipex": (("train", "bert-qa", "--ipex"), "--ipex: stack 'current' has no IPEX"),
    "precision": (("train", "bert-qa", "--precision", "fp8"), "no precision 'fp8'"),
    "no-run": (("runs", "show", "nothing"), "There are no runs"),
}


@pytest.mark.parametrize("case", BAD_REQUESTS)
def test_a_bad_request_is_one_clear_message(orch: Orch, tmp_path: Path, case: str) -> None:
    arguments, words = BAD_REQUESTS[case]
    process = expect_exit(orch(*arguments), 2)
    assert words in process.stderr
    assert "Traceback" not in process.stderr
    assert len([line for line in process.stderr.splitlines() if line.startswith("error:")]) == 1
    assert not (tmp_path / "runs").exists(), "nothing half-written"


@pytest.mark.parametrize("target", [(), ("--on", "k8s", "--nodes", "2", "--k8s", "image=x")], ids=["here", "k8s"])
def test_an_unknown_isa_override_is_one_clear_message(orch: Orch, tmp_path: Path, target: tuple[str, ...]) -> None:
    process = expect_exit(orch("train", "bert-qa", "--dry-run", *target, env={"ORCH_CPU_ISA": "avx3"}), 2)
    assert "ORCH_CPU_ISA=avx3: expected one of avx2" in process.stderr
    assert "Traceback" not in process.stderr
    assert not (tmp_path / "runs").exists()


def test_an_isa_override_lowers_the_precision_and_limits_the_kernels(orch: Orch, tmp_path: Path) -> None:
    planned = orch("train", "bert-qa", "--dry-run", env={"ORCH_CPU_ISA": "avx2"})
    assert "precision: fp32 (node0 has no BF16 instructions)" in planned.stdout
    (tmp_path / "s.py").write_text("import torch\nprint('CAPABILITY', torch.backends.cpu.get_cpu_capability())\n")
    process = expect_exit(orch("train", "s.py", "--ppn", "1", "--show", "0", env={"ORCH_CPU_ISA": "avx2"}))
    assert "CAPABILITY AVX2" in process.stderr


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("model.parameters(), lr", "copies.parameters(), lr", "does not change the weights that the model uses"),
        ("    model(torch", "    model.module(torch", "every rank trains alone"),
    ],
)
def test_a_script_that_does_not_train_what_computes_is_stopped(
    orch: Orch, tmp_path: Path, old: str, new: str, words: str
) -> None:
    script = DDP.replace("optimizer = ", "import copy; copies = copy.deepcopy(model)\noptimizer = ")
    assert old in script
    (tmp_path / "wrong.py").write_text(script.replace(old, new))
    process = expect_exit(orch("train", "wrong.py", "--ppn", "2", "--backend", "gloo"), 1)
    assert words in process.stdout
    assert "rank " in process.stdout
    assert "Traceback" not in process.stdout


def test_a_warning_of_a_rank_is_told(orch: Orch, tmp_path: Path) -> None:
    initial_state = "    if step == 0:\n        initial = {n: t.clone() for n, t in model.state_dict().items()}\n"
    restoring = "    model.load_state_dict(initial)\n    optimizer.zero_grad()\n"
    write_script(tmp_path, DDP.replace("    optimizer.zero_grad()\n", initial_state + restoring), "put_back.py")
    asked = ("put_back.py", "--ppn", "2", "--backend", "gloo")
    process = expect_exit(orch("train", *asked, "--show", "none"))
    told = [line for line in process.stderr.splitlines() if "have not changed" in line]
    assert len(told) == 1
    assert told[0].startswith("rank ")
