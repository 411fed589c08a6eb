"""Build images for tests of ranks in containers on this machine, because no registry may be reachable."""

from __future__ import annotations

import functools
import platform
import shutil
import subprocess
from pathlib import Path

from orchestrator import load
from orchestrator.model.packages import Platform, Requirements
from orchestrator.operations import image as operation
from orchestrator.operations.image import make_image
from orchestrator.provisioning import wheelhouse
from orchestrator.stacks.stack import GLIBC, Stack
from tests.conftest import require_program
from tests.support.files import write_program
from tests.support.wheels import make_wheel

TESTS = Path(__file__).parents[1]
CLUSTER = TESTS.parent / "test-cluster"
PYTHON_IMAGE, STACK_IMAGE = "orch-test-python", "orch-test:current"
BARE_IMAGE = "debian:bookworm-slim"
# Packages of the stack that no test uses in a container; they take a quarter of the time to build the image.
UNUSED_PACKAGES = ("pandas", "pyarrow", "datasets", "torchao", "tensorboard", "grpcio", "pillow", "mpich", "openmpi")
USER_PACKAGE = "orch_test_greeter"  # in the image in addition to the stack
MPI_FLAVOURS = ("intel", "mpich", "openmpi")  # that all nodes of the tests have


def stack_of_nodes() -> Stack:
    """Return the stack of all nodes and images of the tests, so that its wheels are downloaded once."""
    return load.stack("current").with_mpi(MPI_FLAVOURS)


def require_docker() -> None:
    """Start Docker if it does not run; skip the test, or fail it in CI, if Docker is not installed."""
    require_program("docker")
    run_program(str(CLUSTER / "docker-daemon"))


def build_bare_image() -> str:
    """Build an image of Debian with Python and without orch, and return its name."""
    require_docker()
    run_program(str(CLUSTER / "base-image"))
    return BARE_IMAGE


def build_stack_image(folder: Path) -> str:
    """Build an image of the stack with orch's Dockerfile, and return its name."""
    build_bare_image()
    base = folder / "base"
    shutil.copytree(TESTS / "docker", base)
    (base / "apt-settings").write_text(run_program("bash", "-c", "cd test-cluster && . ./common && apt_settings"))
    run_program("docker", "build", "--network", "host", "--tag", PYTHON_IMAGE, str(base))
    image = make_image(stack_of_nodes(), tag=STACK_IMAGE, base=PYTHON_IMAGE, python="3.11", engine="docker")
    context = folder / "context"
    make_wheel(folder / "index", USER_PACKAGE, "1.0", requires=["numpy"], module="VERSION = '1.0'")
    lines = ("--no-index", f"--find-links {folder / 'index'}", USER_PACKAGE)
    operation.lay_out(image, context, (), print, Requirements(source="needs.txt", lines=lines))
    for wheel in (context / "wheels").rglob("*.whl"):
        if wheel.name.startswith(UNUSED_PACKAGES):
            wheel.unlink()
    operation.build(image, context)
    return STACK_IMAGE


ENTRYPOINT = """#!/bin/sh
exec python3 -m torch.distributed.run --nproc_per_node="$NPROC_PER_NODE" --nnodes="$WORLD_SIZE" \\
    --node_rank="$RANK" --master_addr="$MASTER_ADDR" --master_port="$MASTER_PORT" "$@"
"""


def build_entrypoint_image(folder: Path, stack_image: str) -> str:
    """Build an image whose entrypoint starts torchrun, like images of GPU clusters, and return its name."""
    write_program(folder / "start", ENTRYPOINT)
    (folder / "Dockerfile").write_text(f'FROM {stack_image}\nCOPY start /start\nENTRYPOINT ["/start"]\n')
    run_program("docker", "build", "--tag", "orch-test:entry", str(folder))
    return "orch-test:entry"


def run_program(*command: str) -> str:
    """Run a command in the checkout, and return its output."""
    done = subprocess.run(command, cwd=TESTS.parent, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


def list_containers() -> list[str]:
    """Return the ids of orch's containers on this machine, running or not."""
    return run_program("docker", "ps", "--all", "--quiet", "--filter=label=orch.run").split()


@functools.cache
def fetch_wheels() -> Path:
    """Download and build the wheels for images and nodes once for all tests, and return their folder."""
    target = Platform(python="3.11", machine=platform.machine(), libc=GLIBC)
    stack = stack_of_nodes().for_backend(stack_of_nodes().backends[0])
    return wheelhouse.prepare_wheelhouse(stack, target, (), print).folder


if __name__ == "__main__":
    fetch_wheels()
