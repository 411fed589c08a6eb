"""`--container`: ranks in an image, by a real Apptainer on the nodes of a real Slurm."""

from __future__ import annotations

import json
import os
import sys

import pytest

from tests.slurm.site import CHECKOUT, Site
from tests.slurm.test_run_slurm import SLOW, TWO, Started, train
from tests.support import images
from tests.support.waiting import wait_until

pytestmark = pytest.mark.skipif(
    os.environ.get("ORCH_SLURM_SUITE") != "trixie", reason="needs ORCH_SLURM_SUITE=trixie (make test-all)"
)
INSIDE = """
import os, pathlib, socket
import torch.distributed as dist
dist.init_process_group()
system = pathlib.Path("/etc/os-release").read_text()
print("INSIDE", "bookworm" in system, os.environ["HOME"], socket.gethostname(), flush=True)
assert "LEAK" not in os.environ
dist.barrier()
"""


@pytest.fixture(scope="session")
def folder(site: Site) -> str:
    """An unpacked image: another Debian than that of the nodes. The ranks' Python is mounted."""
    images.run_program("docker", "save", "--output", str(site.home / "image.tar"), images.build_bare_image())
    (site.home / "image.tar").chmod(0o644)
    return built(site, "image", "--sandbox")


@pytest.fixture(scope="session")
def sif(site: Site, folder: str) -> str:
    return built(site, "image.sif")


def built(site: Site, name: str, *words: str) -> str:
    site.said("apptainer", "build", *words, name, "docker-archive:image.tar")
    return f"/home/alice/{name}"


def inside(image: str) -> tuple[str, ...]:
    python = f"container-python={sys.executable}"
    mounts = [f"container-mounts={one}:{one}:ro" for one in (CHECKOUT, sys.base_prefix)]
    return (*TWO, "--container", image, *(word for one in (python, *mounts) for word in ("--slurm", one)))


@pytest.mark.parametrize("launcher", ["srun", "mpirun", "torchrun"])
def test_ranks_run_in_the_image(ready: Site, sif: str, launcher: str) -> None:
    (ready.home / "inside.py").write_text(INSIDE)
    words = ("train", "inside.py", *inside(sif), "--launcher", launcher, "--json")
    done = ready.orch(*words)
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads(done.stdout)
    logs = ready.home / "runs" / told["run_id"] / "ranks"
    said = [(logs / f"rank-{rank}.log").read_text() for rank in range(2)]
    assert ["INSIDE True /tmp n1" in said[0], "INSIDE True /tmp n2" in said[1]] == [True, True], said


def test_a_rank_that_is_killed_in_its_image_is_named(ready: Site, folder: str) -> None:
    told = train(ready, *inside(folder), "--json", "--", "--fault", "kill", code=1)
    failure = told["failure"]
    assert (failure["rank"], failure["node"], failure["signal"]) == (1, "n2", "SIGKILL")


def test_a_hang_in_an_image_is_told_with_its_stack_trace(ready: Site, folder: str) -> None:
    words = (*inside(folder), "--stall-timeout", "20", "--json", "--", "--fault", "sleep")
    told = train(ready, *words, code=1)
    assert "no progress" in told["problem"], told
    trace = ready.home / "runs" / told["run_id"] / "stacks" / "rank-1.txt"
    assert "faulty.py" in trace.read_text()


def test_stop_leaves_nothing_of_an_image(ready: Site, sif: str) -> None:
    run = Started(ready, *inside(sif), *SLOW)
    run.await_event("joined", 2)
    done = ready.orch("stop", run.folder.name)
    assert done.returncode == 0, done.stdout + done.stderr
    assert run.end()[0] == 130
    wait_until(lambda: ready.said("squeue", "--noheader") == "", "that the job has ended")
    for node in ("n1", "n2"):
        assert ready.on(node, "pgrep", "-u", "alice").stdout == ""


def test_an_image_without_that_python_is_told_by_each_node(ready: Site, folder: str) -> None:
    words = (*TWO, "--container", folder, "--slurm", "container-python=nosuch")
    done = ready.orch("train", "faulty.py", *words)
    assert done.returncode == 1
    words = done.stdout + done.stderr
    assert "n1 started no container" in words, words
    assert "Set the Python of the image with --slurm container-python=PATH" in words
