"""Run ranks in containers of a real engine, with an image of the stack."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.conftest import HOSTILE_TEXTS, require_mpi
from tests.local.recipes import QA_SETTINGS
from tests.local.runs import SCRIPTS, expect_exit, last_run, read_outcome, run_processes, settings_options
from tests.local.workspaces import Workspace
from tests.support import images, matrix
from tests.support.jobs import read_metrics
from tests.support.waiting import wait_until

# The engine may not be allowed to raise limits; another test checks that this is attempted.
MEMLOCK = ("--image-option", "memlock=inherit")
GLOO = ("--backend", "gloo")
PRINT_ARGUMENTS = """
import json, os, sys
import torch.distributed as dist
dist.init_process_group()
print("ARGUMENTS", json.dumps(sys.argv[1:]), flush=True)
dist.barrier()
if dist.get_rank() == 1:
    os._exit(137)
"""
WAIT = """
import json, os, time
import torch.distributed as dist
dist.init_process_group()
dist.barrier()
print("waiting", json.dumps(os.environ.get("APP_TEST_TOKEN")), flush=True)
time.sleep(300)
"""
PRINT_DUPLICATES = """
import collections, importlib.metadata as metadata
counts = collections.Counter(package.name for package in metadata.distributions())
print([name for name, count in counts.items() if count > 1])
"""


@pytest.fixture(scope="session")
def image(tmp_path_factory: pytest.TempPathFactory) -> str:
    return images.build_stack_image(tmp_path_factory.mktemp("image"))


@pytest.fixture
def workspace(tmp_path: Path, image: str) -> Iterator[Workspace]:
    yield make_workspace(tmp_path, image)
    assert not images.list_containers(), "no test leaves a container"


def make_workspace(folder: Path, image: str, *options: str) -> Workspace:
    return Workspace(folder, "--ppn", "2", "--image", image, *MEMLOCK, *options)


SCRIPT_WITH_PACKAGES = """
# /// script
# dependencies = ["orch-test-greeter"]
# ///
import orch_test_greeter
print("GREETER", orch_test_greeter.VERSION, flush=True)
"""


def test_packages_of_the_user_are_in_the_image_once_and_checked(workspace: Workspace, image: str) -> None:
    label = images.run_program("docker", "inspect", "--format", '{{index .Config.Labels "orch.packages"}}', image)
    assert label == "orch-test-greeter==1.0\n"
    assert images.run_program("docker", "run", "--rm", image, "python3", "-c", PRINT_DUPLICATES) == "[]\n"
    cell = workspace.train_text(SCRIPT_WITH_PACKAGES, *GLOO)
    assert cell.printed("GREETER", 1) == "1.0"
    script = SCRIPT_WITH_PACKAGES.replace("greeter", "parser").replace("orch_test_parser", "json")
    cell = workspace.train_text(script, *GLOO, code=1)
    assert f"image {image} does not have orch-test-parser, which the script requires" in cell.report["failure"]["text"]


@pytest.mark.parametrize(("starter", "backend"), [("mpirun, Intel MPI", "ccl"), ("torchrun", "gloo")])
def test_launcher_starts_the_same_ranks_and_names_a_failure(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch, starter: str, backend: str
) -> None:
    require_mpi("intel")
    monkeypatch.setattr(matrix, "FIRST_ENVIRONMENTS", {})  # libraries of the image have other paths
    matrix.check(partial(workspace.train, code=1), starter, backend, planned=("127.0.0.1",))
    assert matrix.FIRST_ENVIRONMENTS[backend, 1, 0]["LD_PRELOAD"].startswith("/opt/orch/stack/lib/libiomp5.so")


def test_recipe_trains_with_the_packages_of_the_image(workspace: Workspace) -> None:
    cell = workspace.train(
        "bert-qa", *settings_options(**QA_SETTINGS, max_steps=3, max_eval_samples=8, max_seq_length=64, doc_stride=16)
    )
    output = workspace.folder / "runs" / cell.report["run_id"] / "output"
    assert [line["step"] for line in read_metrics(output) if "loss" in line] == [1, 2, 3]


def test_arguments_and_exit_codes_pass_through_the_container_unchanged(image: str, tmp_path: Path) -> None:
    folder = tmp_path / 'with, comma "and" quotes'  # docker's syntax of mounts gives them a meaning
    folder.mkdir()
    workspace = make_workspace(folder, image)
    script = folder / "print arguments.py"
    script.write_text(PRINT_ARGUMENTS)
    cell = workspace.train(str(script), *GLOO, "--", *HOSTILE_TEXTS, code=1)
    assert json.loads(cell.printed("ARGUMENTS", 0)) == list(HOSTILE_TEXTS)
    failure = cell.report["failure"]
    assert (failure["rank"], failure["code"], failure["signal"]) == (1, 137, None)
    assert cell.report["nodes"]["node0"]["left"] == []


@pytest.mark.usefixtures("workspace")
def test_variables_of_a_file_reach_ranks_but_no_listing_and_stop_ends_the_container(image: str, tmp_path: Path) -> None:
    (tmp_path / "own env").write_text("APP_TEST_TOKEN=hush $(id) 'x'\nHERE_ALONE\n")
    workspace = make_workspace(tmp_path, image, "--wait-for-cores", "--image-option", f"env_file={tmp_path}/own env")
    run = start_waiting_run(workspace)
    inspected = images.run_program("docker", "inspect", *images.list_containers())
    assert json.dumps("hush $(id) 'x'") in (run / "ranks" / "rank-0.log").read_text()
    assert "hush" not in inspected + images.run_program("ps", "axww")
    assert len(run_processes(run, "run-script")) == 2
    assert expect_exit(workspace.orch("stop", run.name)).stdout.startswith(f"Stopped run {run.name}.")
    assert (run_processes(run), images.list_containers()) == ([], [])


@pytest.mark.usefixtures("workspace")
def test_image_can_start_the_ranks_of_a_node_itself(image: str, tmp_path: Path) -> None:
    image = images.build_entrypoint_image(tmp_path / "image", image)
    workspace = make_workspace(tmp_path, image, "--image-option", "start=node")
    # The script destroys the group because orch does so only in its own ranks; torch may abort at the exit otherwise.
    barrier = "    dist.barrier()\n"
    script = (SCRIPTS / "curve.py").read_text().replace(barrier, f"{barrier}    dist.destroy_process_group()\n")
    cell = workspace.train_text(script, "--", "--by-hand")
    assert cell.logs[0].count("LOSSES") == 2, "one log has the lines of NPROC_PER_NODE ranks"
    cell = workspace.train_text(script, "--", "--by-hand", "--fail", "1", code=1)
    assert "boom of this script" in cell.logs[0]
    assert cell.report["failure"]["code"] == 1


def start_waiting_run(workspace: Workspace) -> Path:
    """Start a detached run whose ranks sleep, and return its folder."""
    script = workspace.folder / "wait.py"
    script.write_text(WAIT)
    expect_exit(workspace.orch("train", str(script), *GLOO, *workspace.options, "--detach"))
    run = last_run(workspace.folder)
    logs = [run / "ranks" / f"rank-{rank}.log" for rank in range(2)]
    wait_until(lambda: all(log.exists() and "waiting" in log.read_text() for log in logs), "ranks that wait")
    assert len(images.list_containers()) == 1
    return run


def test_ranks_and_container_end_when_the_supervisor_is_killed(workspace: Workspace) -> None:
    run = start_waiting_run(workspace)
    (supervisor,) = run_processes(run, "supervise")
    os.kill(supervisor, signal.SIGKILL)
    wait_until(lambda: not run_processes(run) and not images.list_containers(), "the end of ranks and container")


def test_run_fails_soon_after_its_container_has_ended(workspace: Workspace) -> None:
    run = start_waiting_run(workspace)
    images.run_program("docker", "rm", "--force", *images.list_containers())
    wait_until(lambda: (run / "outcome.json").exists(), "the end of the run")
    outcome = read_outcome(run)
    assert (outcome["state"], outcome["first_failure"]["signal"]) == ("failed", "SIGKILL")
    wait_until(lambda: not run_processes(run) and not images.list_containers(), "the end of ranks and container")


def test_clean_finds_a_container_without_supervisor_and_agent(workspace: Workspace) -> None:
    run = start_waiting_run(workspace)
    # Stop both before killing them, so that neither can react to the other's end.
    watchers = [*run_processes(run, "supervise"), *run_processes(run, "agent")]
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for pid in watchers:
            os.kill(pid, number)
    for pid in (*run_processes(run, "mpiexec"), *run_processes(run, "node.py rank ")):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not run_processes(run, "run-script"), "the end of scripts whose pipes are closed")
    check = workspace.orch("clean", "--dry-run")
    assert "container" in check.stdout
    assert run.name in check.stdout
    assert images.list_containers(), "a check changes nothing"
    expect_exit(workspace.orch("clean"))


def test_refusal_of_the_engine_is_reported_with_a_hint(workspace: Workspace, image: str) -> None:
    for name, option, message, hint in (
        ("no-such:image", "shm=1g", "No such image: no-such:image", "--docker-load"),
        (image, "python=/no/python", "/no/python: no such file", "--image-option python=PATH"),
        (image, "mounts=/no-such:/data", "path does not exist: /no-such", "Every node must have"),
    ):
        cell = make_workspace(workspace.folder, name, "--image-option", option).train(str(SCRIPTS / "curve.py"), code=1)
        assert message in cell.report["problem"]
        assert hint in cell.report["problem"]
