"""Use orch from Python: scripts, functions on all ranks, errors, and a notebook."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from tests.conftest import orch_environment
from tests.local.runs import Process, expect_exit, run_in
from tests.local.workspaces import Workspace

ROOT = Path(__file__).parents[2]
CALLS = """
import functools, sys, cloudpickle, orch
import constants, helper
cloudpickle.register_pickle_by_value(constants)
job = orch.submit(functools.partial(helper.add, 5), kwargs={"factor": 2}, inventory=sys.argv[1], ppn=1)
job.futures[0].cancel()  # as a timeout of asyncio does; a rank cannot be cancelled
print("RESULTS", job.results(timeout=120))
print("STATE", job.wait(show="1").state, orch.run(job.id).state, orch.runs()[-1].id == job.id)
print("EVENTS", sorted({event.name for event in job.events()} & {"joined", "finished"}))
print("LINES", [line.text for line in job.logs(rank=1) if "hello" in line.text])
"""
HELPER = """
import os
import constants
import torch.distributed as dist
SUMMAND = 3
def add(offset, factor):
    import torch
    value = torch.ones(1) * (dist.get_rank() + offset) * factor
    dist.all_reduce(value)
    print("hello from", dist.get_rank())
    rank = dist.get_rank()
    dist.destroy_process_group()
    os.chdir("/")
    return {"sum": value.item() + SUMMAND + constants.SUMMAND, "rank": rank}
"""
FAILURES = """
import pathlib, sys, threading, orch
pathlib.Path("sleep.py").write_text("import time; time.sleep(100)")
pathlib.Path("dead.yml").write_text("all: {hosts: {node0: {ansible_host: 127.0.0.1, ansible_port: 1}}}")
def fails():
    import torch.distributed as dist
    if dist.get_rank() == 1:
        raise ValueError("no such thing")
    dist.barrier()
def competes():
    sleeper = orch.train("sleep.py")
    next(sleeper.events())
    try:
        refused = orch.train("sleep.py")
        refused.wait(show="0")
        refused.result
    finally:
        sleeper.stop()
for call in (
    lambda: orch.submit(fails, ppn=2).results(),
    lambda: orch.submit(sys.exit, ppn=1).results(),
    competes,
    lambda: orch.submit(threading.Lock().acquire),
    lambda: orch.provision("./dead.yml"),
):
    try:
        call()
    except orch.OrchError as error:
        print(type(error).__name__, str(error).splitlines()[0], "|", str(error).splitlines()[-1], "|", error.hint)
"""
EXPECTED_FAILURES = [
    r"RunError failed: rank 1 on node0 .* ValueError: no such thing \| .*logs\(\)",
    r"ExecuteError .* has no results. \| .* \| The function must return",
    r"RunError refused: node0 is taken: .* \| Another run has reserved the cores. \| --wait-for-cores waits",
    r"RequestError The function .* cannot be pickled",
    r"ExecuteError node0: .*nothing listens on its SSH port. \| .* \| Start sshd on the node, .* Ansible's output: ",
]


def run_python(workspace: Workspace, text: str, *arguments: str) -> Process:
    """Run a program that uses orch in a workspace's folder."""
    (workspace.folder / "program.py").write_text(text)
    (workspace.folder / "helper.py").write_text(HELPER)
    (workspace.folder / "constants.py").write_text("SUMMAND = -2\n")
    return run_in(workspace.folder, sys.executable, "program.py", *arguments, seconds=300)


def test_a_function_runs_on_all_ranks_and_returns_its_results(two_hosts: Workspace) -> None:
    """Run it on two hosts; the notebook of the documentation uses this machine."""
    done = expect_exit(run_python(two_hosts, CALLS, two_hosts.options[-1]))
    assert [line for line in done.stdout.splitlines() if line.split()[0].isupper()] == [
        "RESULTS [{'sum': 23.0, 'rank': 0}, {'sum': 23.0, 'rank': 1}]",
        "STATE done done True",
        "EVENTS ['finished', 'joined']",
        "LINES ['hello from 1']",
    ]
    assert "hello from 1" in done.stdout.splitlines()
    assert "\x1b" not in done.stdout + done.stderr


def test_errors_are_exceptions_with_a_hint(one_host: Workspace) -> None:
    done = expect_exit(run_python(one_host, FAILURES))
    assert re.search(r"^refused: node0 is taken.*\n.*\nhint: --wait-for-cores", done.stderr, re.MULTILINE)
    lines = done.stdout.splitlines()
    assert len(lines) == len(EXPECTED_FAILURES)
    for line, pattern in zip(lines, EXPECTED_FAILURES, strict=True):
        assert re.match(pattern, line), line


def test_the_notebook_of_the_documentation_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in orch_environment(tmp_path).items():
        monkeypatch.setenv(name, value)
    notebook = nbformat.read(ROOT / "docs/how-to/python.ipynb", as_version=4)
    NotebookClient(notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": tmp_path}}).execute()
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    values = [output.data["text/plain"] for cell in cells for output in cell.outputs if "data" in output]
    printed = "".join(output.text for cell in cells for output in cell.outputs if output.output_type == "stream")
    assert values[0] == "[10.0]"
    assert values[1].startswith("('done'")
    assert values[2] == "(40, True, True)"
    assert "train: 40/40 loss" in printed
    assert "There is no script 'missing.py'." in printed
    assert "\x1b" not in printed
