"""Test `--image` on Slurm: ranks in an image that a real Apptainer runs on the nodes of a real Slurm."""

from __future__ import annotations

import json
import os
import sys

import pytest

from tests.conftest import ORCH
from tests.slurm.runs import LONG_RUN, TWO_NODES, BackgroundRun, train
from tests.slurm.site import LOGIN, MOUNTED, USER, Site
from tests.support import images
from tests.support.projects import ARGUMENTS, RESULT, write_project

pytestmark = pytest.mark.skipif(
    os.environ.get("ORCH_SLURM_SUITE") != "trixie", reason="needs ORCH_SLURM_SUITE=trixie (make test-all)"
)
SYSTEM_SCRIPT = """
import os, pathlib, socket
import torch.distributed as dist
dist.init_process_group()
system = pathlib.Path("/etc/os-release").read_text()
print("INSIDE", "bookworm" in system, os.environ["HOME"], socket.gethostname(), flush=True)
assert "LEAK" not in os.environ
dist.barrier()
"""


@pytest.fixture(scope="session")
def folder(session_site: Site) -> str:
    """Return the path of an unpacked image with another Debian than that of the nodes, and without Python."""
    archive = session_site.home / "image.tar"
    images.run_program("docker", "save", "--output", str(archive), images.build_bare_image())
    archive.chmod(0o644)
    return build(session_site, "image", "--sandbox")


@pytest.fixture(scope="session")
def sif(session_site: Site, folder: str) -> str:
    return build(session_site, "image.sif")


def build(site: Site, name: str, *options: str) -> str:
    site.stdout_of("apptainer", "build", *options, name, "docker-archive:image.tar")
    return f"/home/{USER}/{name}"


def container_options(image: str) -> tuple[str, ...]:
    """Return the options of `orch train` for ranks in an image, into which the Python of the tests is mounted."""
    settings = (f"python={sys.executable}", *(f"mounts={path}:{path}:ro" for path in MOUNTED))
    return (*TWO_NODES, "--image", image, *(f"--image-option={setting}" for setting in settings))


def test_project_is_in_the_image(site: Site, folder: str) -> None:
    write_project(site.home / "my project", git=False)
    options = (*container_options(folder), "--project", "my project")
    done = site.orch("train", "my project/train.py", *options, "--json", "--", *ARGUMENTS)
    name = json.loads(done.stdout)["run_id"]
    assert site.orch("logs", name).stdout.count(f"RESULT {RESULT}") == 2
    assert (site.home / "runs" / name / "project/out/model.txt").read_text() == "trained"


@pytest.mark.parametrize("launcher", ["srun", "mpirun", "torchrun"])
def test_ranks_run_in_the_image_without_variables_of_the_user(site: Site, sif: str, launcher: str) -> None:
    (site.home / "system.py").write_text(SYSTEM_SCRIPT)
    command = (*ORCH, "train", "system.py", *container_options(sif), "--launcher", launcher, "--json")
    done = site.run_on(LOGIN, "env", "LEAK=yes", *command)
    assert done.returncode == 0, done.stdout + done.stderr
    folder = site.home / "runs" / json.loads(done.stdout)["run_id"] / "ranks"
    logs = [(folder / f"rank-{rank}.log").read_text() for rank in range(2)]
    assert ["INSIDE True /tmp n1" in logs[0], "INSIDE True /tmp n2" in logs[1]] == [True, True], logs


def test_a_hang_in_an_image_is_reported_with_its_stack_trace(site: Site, folder: str) -> None:
    options = (*container_options(folder), "--stall-timeout", "40", "--json", "--", "--fault", "sleep")
    result = train(site, *options, code=1)
    assert "no progress" in result["problem"], result
    trace = site.home / "runs" / result["run_id"] / "stacks" / "rank-1.txt"
    assert "faulty.py" in trace.read_text()


def test_stop_ends_all_processes_of_an_image(site: Site, sif: str) -> None:
    run = BackgroundRun(site, *container_options(sif), *LONG_RUN)
    run.wait_for_event("joined", 2)
    site.orch("stop", run.folder.name)
    run.wait(code=130)
    site.wait_for_no_jobs()
    site.wait_until_ended(".", "n1", "n2")
