"""Ranks in containers of a real engine, with an image of the stack."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import HOSTILE, mpi_here
from tests.local.runs import expect_exit
from tests.local.workspaces import Workspace
from tests.support import images, matrix
from tests.support.waiting import until

SCRIPTS = Path(__file__).parents[1] / "scripts"
# The engine here may not be allowed to raise limits; that it tries is a test of its own.
MEMLOCK = ("--docker", "memlock=inherit")
SMALL = (
    "max_steps=3",
    "logging_steps=1",
    "max_train_samples=40",
    "max_eval_samples=8",
    "evaluate_before_training=false",
    "do_eval=false",
    "max_seq_length=64",
    "doc_stride=16",
)
TELL = """
import json, os, sys
import torch.distributed as dist
dist.init_process_group()
print("ARGUMENTS", json.dumps(sys.argv[2:]), flush=True)
dist.barrier()
if dist.get_rank() == 1:
    os.kill(os.getpid(), 9) if sys.argv[1] == "kill" else os._exit(int(sys.argv[1]))
"""
WAIT = """
import sys, time
import torch.distributed as dist
dist.init_process_group()
dist.barrier()
print("waiting", sys.argv[1:], flush=True)
time.sleep(300)
"""


@pytest.fixture(scope="session")
def image(tmp_path_factory: pytest.TempPathFactory) -> str:
    return images.with_stack(tmp_path_factory.mktemp("image"))


@pytest.fixture
def ground(tmp_path: Path, image: str) -> Iterator[Workspace]:
    yield in_image(tmp_path, image)
    assert not images.containers(), "no test leaves a container"


def in_image(folder: Path, image: str, *words: str) -> Workspace:
    return Workspace(folder, "--ppn", "2", "--docker-image", image, *MEMLOCK, *words)


TWICE = """
import collections, importlib.metadata as found
counted = collections.Counter(one.name for one in found.distributions())
print([name for name, times in counted.items() if times > 1])
"""


def test_the_image_is_small_and_has_each_package_once(image: str) -> None:
    assert images.size_of_whole(image) < 1.6e9
    assert images.run("docker", "run", "--rm", image, "python3", "-c", TWICE) == "[]\n"


FIRST_ENVIRONMENTS: dict[tuple[str, int, int], dict[str, str]] = {}


@pytest.mark.parametrize(
    ("starter", "backend"),
    [("mpirun, Intel MPI", "ccl"), ("mpirun, Open MPI", "gloo"), ("torchrun", "ccl"), ("accelerate, MPICH", "gloo")],
)
def test_every_launcher_starts_the_same_ranks_and_a_failure_is_named(
    ground: Workspace, monkeypatch: pytest.MonkeyPatch, starter: str, backend: str
) -> None:
    words = matrix.STARTERS[starter]
    mpi_here(words[words.index("--mpi") + 1] if "--mpi" in words else "intel")
    monkeypatch.setattr(matrix, "FIRST_ENVIRONMENTS", FIRST_ENVIRONMENTS)  # libraries of the image have other paths
    monkeypatch.delenv("ORCH_WRITE_MATRIX", raising=False)
    matrix.check(ground.train, starter, backend, planned=("127.0.0.1",))
    environment = FIRST_ENVIRONMENTS[backend, 1, 0]
    assert environment["LD_PRELOAD"].startswith("/opt/orch/stack/lib/libiomp5.so")


@pytest.mark.parametrize("backend", ["gloo", "ccl"])
def test_a_recipe_trains_with_the_packages_of_the_image(ground: Workspace, backend: str) -> None:
    settings = [word for pair in SMALL for word in ("--set", pair)]
    cell = ground.train("bert-qa", "--backend", backend, *settings)
    assert cell.code == 0, cell.report
    output = ground.folder / "runs" / cell.report["run_id"] / "output"
    steps = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    assert [step["step"] for step in steps if "loss" in step] == [1, 2, 3]


def test_arguments_and_the_end_of_a_rank_survive_the_way_into_the_container(image: str, tmp_path: Path) -> None:
    folder = tmp_path / 'with, comma "and" quotes'  # ends of a mount, to docker
    folder.mkdir()
    ground = in_image(folder, image)
    script = folder / "tell me.py"
    script.write_text(TELL)
    cell = ground.train(str(script), "--backend", "gloo", "--", "137", *HOSTILE)
    assert json.loads(cell.printed("ARGUMENTS", 0)) == list(HOSTILE)
    failure = cell.report["failure"]
    assert (failure["rank"], failure["code"], failure["signal"]) == (1, 137, None)
    cell = ground.train(str(script), "--backend", "gloo", "--", "kill")
    failure = cell.report["failure"]
    assert (failure["rank"], failure["signal"]) == (1, "SIGKILL")
    assert (cell.code, cell.report["nodes"]["node0"]["left"]) == (1, [])


@pytest.mark.parametrize("start", ["rank", "node"])
def test_variables_of_a_file_reach_the_ranks_and_no_inspect(
    ground: Workspace, image: str, tmp_path: Path, start: str
) -> None:
    (tmp_path / "entry").mkdir()
    name = images.with_entrypoint(tmp_path / "entry", image) if start == "node" else image
    (tmp_path / "own env").write_text("ORCH_TEST_TOKEN=hush $(id) 'x'\nHERE_ALONE\n")
    script = tmp_path / "entry" / "wait.py"
    script.write_text(
        "import json, os, time\nprint('waiting', json.dumps(os.environ['ORCH_TEST_TOKEN']), "
        "flush=True)\ntime.sleep(300)\n"
    )
    words = ("--docker", f"start={start}", "--docker", f"env_file={tmp_path / 'own env'}")
    ground = in_image(tmp_path, name, *words)
    backend = ("--backend", "gloo") if start == "rank" else ()
    expect_exit(ground.orch("train", str(script), *backend, *ground.options, "--detach"))
    (run,) = (tmp_path / "runs").iterdir()
    log = run / "ranks" / "rank-0.log"
    until(lambda: log.exists() and "waiting" in log.read_text(), "a rank that waits")
    inspected = subprocess.run(["docker", "inspect", *images.containers()], capture_output=True, text=True, check=True)
    listed = subprocess.run(["ps", "axww"], capture_output=True, text=True, check=True)
    assert json.dumps("hush $(id) 'x'") in log.read_text()
    assert "hush" not in inspected.stdout + listed.stdout
    expect_exit(ground.orch("stop", run.name))


def test_an_image_starts_the_ranks_of_a_node_itself(ground: Workspace, image: str, tmp_path: Path) -> None:
    (tmp_path / "entry").mkdir()
    own = images.with_entrypoint(tmp_path / "entry", image)
    ground = in_image(tmp_path, own, "--docker", "start=node")
    # Nobody destroys the group for ranks that are not orch's: torch may abort at the exit then.
    script = tmp_path / "entry" / "curve.py"
    text = (SCRIPTS / "curve.py").read_text()
    end = "    dist.barrier()\n"
    script.write_text(text.replace(end, f"{end}    dist.destroy_process_group()\n"))
    cell = ground.train(str(script), "--", "--by-hand", "--fail", "9")
    assert cell.code == 0, cell.logs
    assert cell.logs[0].count("LOSSES") == 2, "NPROC_PER_NODE ranks, in one log"
    cell = ground.train(str(script), "--", "--by-hand", "--fail", "1")
    assert cell.code == 1
    assert "boom of this script" in cell.logs[0]
    assert cell.report["failure"]["code"] == 1


def waiting(ground: Workspace) -> Path:
    """A detached run whose ranks sleep; -> its folder."""
    script = ground.folder / "wait.py"
    script.write_text(WAIT)
    expect_exit(ground.orch("train", str(script), "--backend", "gloo", *ground.options, "--detach"))
    (run,) = (ground.folder / "runs").iterdir()
    logs = [run / "ranks" / f"rank-{rank}.log" for rank in (0, 1)]
    until(lambda: all(log.exists() and "waiting" in log.read_text() for log in logs), "they wait")
    assert len(images.containers()) == 1
    return run


def living(run: Path, program: str = "") -> list[int]:
    """Processes of a program that name the run, in the container or not."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                command = (folder / "cmdline").read_bytes()
                environment = (folder / "environ").read_bytes()
            except OSError:
                continue  # it has ended meanwhile
            if os.fsencode(run.name) in command + environment and program.encode() in command:
                found.append(int(folder.name))
    return found


def test_a_stop_takes_ranks_and_container_away(ground: Workspace) -> None:
    run = waiting(ground)
    assert len(living(run, "run-script")) == 2
    expect_exit(ground.orch("stop", run.name))
    assert (living(run), images.containers()) == ([], [])


def test_nothing_is_left_when_the_supervisor_is_killed(ground: Workspace) -> None:
    run = waiting(ground)
    (supervisor,) = living(run, "supervise")
    os.kill(supervisor, signal.SIGKILL)
    until(lambda: not living(run) and not images.containers(), "the end of all")


def test_clean_finds_a_container_that_nobody_watches(ground: Workspace) -> None:
    run = waiting(ground)
    # Stopped first: neither may see the other's end.
    watchers = [*living(run, "supervise"), *living(run, "agent")]
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for pid in watchers:
            os.kill(pid, number)
    for pid in (*living(run, "mpiexec"), *living(run, "node.py\0rank\0")):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    until(lambda: not living(run, "run-script"), "the end of those with a pipe to them")
    looked = ground.orch("clean", "--check")
    assert "container" in looked.stdout
    assert run.name in looked.stdout
    assert images.containers(), "a look changes nothing"
    expect_exit(ground.orch("clean"))


def test_what_the_engine_refuses_is_told_with_the_cure(ground: Workspace) -> None:
    cell = in_image(ground.folder, "no-such:image").train(str(SCRIPTS / "curve.py"))
    assert cell.code == 1
    assert "No such image: no-such:image" in cell.report["problem"]
    assert "--docker-load" in cell.report["problem"]
