from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.slurm.site import LOGIN, NODES, USER, Site, slurm_site
from tests.support.images import require_docker, run_program

FAULTY = Path(__file__).parents[1] / "cluster" / "programs" / "faulty.py"


def image_of() -> str:
    suite = os.environ.get("ORCH_SLURM_SUITE", "bookworm")  # Slurm 22.05; trixie has 24.11
    return run_program("tests/slurm/image", suite).strip().splitlines()[-1]


def opened(folder: Path) -> Path:
    """That other users may pass through."""
    for one in (folder, *folder.parents[:2]):
        one.chmod(one.stat().st_mode | 0o011)
    return folder


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    require_docker()
    with slurm_site(opened(tmp_path_factory.mktemp("slurm")), image_of()) as found:
        yield found


@pytest.fixture
def ready(site: Site) -> Site:
    """No job is left of the test before, and all nodes are there."""
    shutil.copy(FAULTY, site.home)
    for host in NODES:
        subprocess.run(["docker", "start", site.container(host)], capture_output=True)
    site.on(LOGIN, "scancel", "--user", USER)
    site.on(LOGIN, "scontrol", "update", "nodename=n[1-3]", "state=resume", user="root")
    site.await_idle()
    return site
