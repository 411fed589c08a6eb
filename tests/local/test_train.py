"""Run `orch train` with scripts on this machine, under the real mpiexec.hydra."""

from __future__ import annotations

import json
import re
import signal
import sys
import time
from pathlib import Path

import pytest

from tests.conftest import HOSTILE_TEXTS, ORCH
from tests.local.runs import (
    Orch,
    carry_out,
    expect_exit,
    last_run,
    rank_log,
    read_events,
    read_outcome,
    run_in,
    run_processes,
    start_orch,
    wait_for_exit,
    write_script,
)
from tests.support.waiting import wait_until

DDP = """
import os, sys, time
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group()  # the script does not know orch
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
# Does not train, because DDP imports torch's compiler, which takes half of the time.
JOIN = """
import os, sys, time
import torch
import torch.distributed as dist

dist.init_process_group()
rank = dist.get_rank()
dist.all_reduce(torch.ones(1))
print("joined", "args", sys.argv[1:])
sys.stdout.flush()
"""
TWO_RANKS = ("--ppn", "2")


def test_unmodified_ddp_script_trains_on_two_ranks(orch: Orch, tmp_path: Path) -> None:
    """Check also that its ranks run on the planned cores; the matrix trains with gloo."""
    text = DDP.replace("(4, 1))", "(4, 1), check_reduction=True)")  # causes a warning that names the caller
    script = write_script(tmp_path, f"{text}print(open('/proc/self/status').read())\nprint(dist.get_backend())\n")
    process = expect_exit(orch("train", script, *TWO_RANKS, "--backend", "ccl", "--", "--flag", "value"))
    run = last_run(tmp_path)
    first, second = (re.search(r"weights (\S+) args (.*)", rank_log(run, rank)) for rank in (0, 1))
    assert first.groups() == second.groups(), "DDP keeps the weights equal"
    assert first.group(2) == "['--flag', 'value']"
    assert "mpirun, ccl, stack current" in process.stderr
    assert f"weights {first.group(1)}" in process.stdout, "the output of rank 0 is shown"
    assert rank_log(run, 1).endswith("ccl\n")
    assert f"{script}:10: FutureWarning: The `check_reduction`" in rank_log(run, 1)
    assert f"run: {run.name} in {run.parent}\n" in process.stderr
    assert process.stderr.endswith(f"details: orch report {run.name}\n")
    planned = [rank["cpus"] for rank in json.loads((run / "layout.json").read_text())["ranks"]]
    joined = {event["rank"]: event["cpus"] for event in read_events(run, "joined")}
    assert [joined[0], joined[1]] == planned
    for rank, cpus in enumerate(planned):
        assert f"Cpus_allowed_list:\t{cpus[0]}\n" in rank_log(run, rank)


def test_hostile_paths_and_arguments_arrive_unchanged(orch: Orch, tmp_path: Path) -> None:
    folder = tmp_path.joinpath("two words", "$(touch PWNED)", 'it\'s "q"', "new\nline", "-n*")
    folder.mkdir(parents=True)
    script = folder / "show $(x).py"
    script.write_text("import sys\nprint(repr(sys.argv))\n")
    expect_exit(orch("train", str(script), "--ppn", "1", "--", *HOSTILE_TEXTS))
    assert rank_log(last_run(tmp_path), 0).splitlines()[-1] == repr([str(script), *HOSTILE_TEXTS])
    assert [path.name for path in tmp_path.rglob("PWNED")] == []


def test_files_and_command_of_a_dry_run_train(orch: Orch, tmp_path: Path) -> None:
    train = ("train", write_script(tmp_path, JOIN), "--ppn", "1", "--dry-run")
    formats = (("-o", "sh"), ("--json",))
    listing, plan = (expect_exit(orch(*train, *format, "--", "it's", "$(x)")).stdout for format in formats)
    assert not (tmp_path / "runs").exists(), "a dry run writes nothing"
    assert [line for line in listing.splitlines() if not line.startswith("# ")][-1].endswith("'$(x)'")
    expect_exit(carry_out(plan, tmp_path))
    run = last_run(tmp_path)
    assert read_outcome(run)["state"] == "done"
    assert """args ["it's", '$(x)']""" in rank_log(run, 0)


def test_dry_run_needs_no_network(tmp_path: Path) -> None:
    command = ["unshare", "--map-root-user", "--net", *ORCH, "train", write_script(tmp_path, JOIN), "--dry-run"]
    expect_exit(run_in(tmp_path, *command))


def test_first_failing_rank_is_named_and_others_are_stopped(orch: Orch, tmp_path: Path) -> None:
    crash = "if rank == 1:\n  os.kill(os.getpid(), 11)\n"
    script = write_script(tmp_path, f"{JOIN}{crash}time.sleep(100)\n")
    start = time.monotonic()
    process = expect_exit(orch("train", script, *TWO_RANKS, "--backend", "ccl"), 1)
    assert time.monotonic() - start < 60, "orch does not wait for the rank that sleeps"
    assert "rank 1 on node0 was ended by SIGSEGV" in process.stderr
    assert "most recent call first" not in process.stderr
    assert ", in <module>\n" in process.stderr
    run = last_run(tmp_path)
    assert process.stderr.endswith(f"details: orch logs {run.name}\nresume: orch resume {run.name}\n")
    assert "time.sleep" in rank_log(run, 0) or f'{script}", line' in rank_log(run, 0), "its log has a stack trace"
    assert run_processes(run) == []


def test_script_whose_ranks_train_separately_is_stopped(orch: Orch, tmp_path: Path) -> None:
    linear = "torch.nn.Linear(4, 1)"
    text = DDP.replace("dist.init_process_group()", "").replace(f"DistributedDataParallel({linear})", linear)
    process = expect_exit(orch("train", write_script(tmp_path, text), *TWO_RANKS), 1)
    assert "trains alone on every rank" in process.stderr
    assert "Traceback" not in process.stderr


LOCAL_STEPS = """
import torch, torch.distributed as dist
torch.manual_seed({seed})
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(1, 9):
    loss = (model(torch.rand(2, 4)) - {target}).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 4 == 0:
        for value in {values}:
            dist.all_reduce(value)
            value /= 2
"""
RANK, WEIGHTS, LOSSES = "dist.get_rank()", "model.state_dict().values()", "[loss.detach()]"


@pytest.mark.parametrize(
    ("seed", "target", "values", "code", "message"),
    [
        ("0", RANK, WEIGHTS, 0, "averaged later, every rank trains alone"),
        ("0", "1", LOSSES, 1, "the script trains alone on every rank"),
        (RANK, "1", LOSSES, 1, "the script trains alone on every rank"),
    ],
    ids=["averages-weights", "averages-losses", "averages-losses-from-different-starts"],
)
def test_script_that_begins_to_communicate_later_must_average_its_weights(
    orch: Orch, tmp_path: Path, seed: str, target: str, values: str, code: int, message: str
) -> None:
    script = write_script(tmp_path, LOCAL_STEPS.format(seed=seed, target=target, values=values))
    assert message in expect_exit(orch("train", script, *TWO_RANKS), code).stderr


TRAIN_IN_A_PROCESS = """
import torch
def train():
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        model(torch.ones(1, 4)).sum().backward()
        optimizer.step()
if __name__ == "__main__":
    process = torch.multiprocessing.get_context("METHOD").Process(target=train)
    process.start()
    process.join()
"""


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_script_whose_processes_train_separately_is_stopped(orch: Orch, tmp_path: Path, method: str) -> None:
    script = write_script(tmp_path, TRAIN_IN_A_PROCESS.replace("METHOD", method))
    process = expect_exit(orch("train", script, *TWO_RANKS), 1)
    assert "trains alone on every rank" in process.stderr


TRAIN_ON_ONE_RANK = """
import torch, torch.distributed as dist
assert dist.get_world_size() == 1
print("CAPABILITY", torch.backends.cpu.get_cpu_capability())
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(4):
    model.load_state_dict({"weight": torch.ones(1, 2), "bias": torch.ones(1)})
    optimizer.zero_grad()
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
value = torch.tensor([3.0])
dist.all_reduce(value)
dist.barrier()
assert value.item() == 3.0
"""


def test_single_rank_trains_without_ddp_on_the_requested_isa(orch: Orch, tmp_path: Path) -> None:
    """Check also that its process group works, and that its warning is shown without its output."""
    avx2 = {"ORCH_CPU_ISA": "avx2"}
    dry_run = orch("train", "bert-qa", "--dry-run", env=avx2)
    assert "precision: fp32 (node0 has no BF16 instructions)" in dry_run.stdout
    options = ("--ppn", "1", "--backend", "ccl", "--show", "none")
    process = expect_exit(orch("train", write_script(tmp_path, TRAIN_ON_ONE_RANK), *options, env=avx2))
    assert "CAPABILITY AVX2\n" in rank_log(last_run(tmp_path), 0)
    assert "CAPABILITY" not in process.stdout + process.stderr
    (warning,) = [line for line in process.stderr.splitlines() if "have not changed" in line]
    assert warning.startswith("rank ")


IGNORE_SIGTERM = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('deaf')\n"


def test_second_interrupt_stops_ranks_that_ignore_the_first(tmp_path: Path) -> None:
    script = write_script(tmp_path, f"{JOIN}{IGNORE_SIGTERM}time.sleep(100)\n")
    process = start_orch(tmp_path, "train", script, *TWO_RANKS)
    log = "runs/*/ranks/rank-1.log"
    wait_until(lambda: any("deaf" in path.read_text() for path in tmp_path.glob(log)), "two ranks")
    for _ in range(2):
        process.send_signal(signal.SIGINT)
        assert any("interrupted" in line for line in process.stderr)
    wait_for_exit(process, 130, seconds=30)
    assert run_processes(last_run(tmp_path)) == []


# Ends itself by SIGTERM as soon as the run has been started, before the command knows that.
INTERRUPTED_START = """
import signal
from orchestrator.cli.main import main
from orchestrator.operations import train

start = train.start

def start_and_interrupt(plan, base, resumed):
    handle = start(plan, base, resumed)
    signal.raise_signal(signal.SIGTERM)
    return handle

train.start = start_and_interrupt
main()
"""


def test_interrupted_start_leaves_no_run(tmp_path: Path) -> None:
    script = write_script(tmp_path, f"{JOIN}time.sleep(100)\n")
    process = run_in(tmp_path, sys.executable, "-c", INTERRUPTED_START, "train", script, *TWO_RANKS)
    run = last_run(tmp_path)
    assert f"Stopped run {run.name}." in expect_exit(process, 130).stderr
    assert run_processes(run) == []
    assert read_outcome(run)["state"] == "stopped"


def test_stall_is_reported_while_the_run_continues(tmp_path: Path) -> None:
    body = "if dist.get_rank() == 1:\n    time.sleep(1000)\ndist.barrier()\n"
    script = write_script(tmp_path, f"import time\nimport torch.distributed as dist\n{body}")
    # The report comes after half of this limit, which must be longer than joining may take; ccl would wait on the CPU.
    options = (*TWO_RANKS, "--backend", "gloo", "--stall-timeout", "60")
    process = start_orch(tmp_path, "train", script, *options)
    report = next(line for line in process.stderr if line.startswith("no progress for 30 s"))
    assert report.endswith("rank 1 never reached the first collective; it is at own.py:4 <module>\n"), report
    process.send_signal(signal.SIGTERM)
    wait_for_exit(process, 130, seconds=30)  # the run has continued
