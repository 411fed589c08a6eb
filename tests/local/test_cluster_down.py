"""Remove the test cluster of a checkout that shares the engine with another one."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import images

NUMBER = "3"  # no test starts this cluster
NETWORK, CONTAINER = f"orch{NUMBER}-nodes", f"orch{NUMBER}-node0"


def docker(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["docker", *arguments], capture_output=True, text=True)


@pytest.fixture
def foreign_container() -> Iterator[None]:
    """Start a container of another checkout in the network of the cluster."""
    image = images.build_bare_image()
    docker("network", "create", NETWORK)
    options = ("--name", CONTAINER, "--network", NETWORK, "--label", "orch.checkout=/elsewhere")
    process = docker("run", "--detach", "--rm", *options, image, "sleep", "600")
    assert process.returncode == 0, process.stderr
    yield
    docker("rm", "--force", CONTAINER)
    docker("network", "rm", NETWORK)


@pytest.mark.usefixtures("foreign_container")
def test_containers_that_keep_the_network_are_named_with_the_command_that_removes_them(tmp_path: Path) -> None:
    shutil.copytree(images.CLUSTER, tmp_path / images.CLUSTER.name, ignore=shutil.ignore_patterns(".state*"))
    down = [str(tmp_path / images.CLUSTER.name / "down"), "nodes"]
    environment = {**os.environ, "ORCH_CLUSTER": NUMBER, "VAGRANT_DEFAULT_PROVIDER": "docker"}
    process = subprocess.run(down, env=environment, capture_output=True, text=True)
    assert process.returncode == 1
    assert f"error: network {NETWORK} has containers of another checkout: {CONTAINER}." in process.stderr
    command = f"docker rm --force {CONTAINER}"
    assert f": {command}\n" in process.stderr
    subprocess.run(command.split(), check=True, capture_output=True)
    process = subprocess.run(down, env=environment, capture_output=True, text=True)
    assert (process.returncode, process.stderr) == (0, "")
    assert docker("network", "inspect", NETWORK).returncode == 1
