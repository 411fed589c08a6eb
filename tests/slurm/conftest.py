from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.slurm.laptop import NAME, Laptop
from tests.slurm.runs import CHECKPOINTING, CHECKPOINTING_SCRIPT, UNTIL_FINISH, UNTIL_FINISH_SCRIPT
from tests.slurm.site import Site
from tests.support.images import require_docker, run_program

FAULTY = Path(__file__).parents[1] / "cluster" / "programs" / "faulty.py"
# Slurm's programs run in login shells there. The lines of the banner look like the fields of jobs in their output.
BANNER = 'echo "RULES | be kind | clean up | pay"\necho "MAINTENANCE|Friday|all nodes|sorry"\n'


def build_image() -> str:
    """Build the image of the hosts if it is missing, and return its name."""
    suite = os.environ.get("ORCH_SLURM_SUITE", "bookworm")  # Slurm 22.05; trixie has 24.11
    return run_program("tests/slurm/image", suite).strip().splitlines()[-1]


def open_to_others(folder: Path) -> Path:
    """Let other users pass through a temporary folder, and return it."""
    for path in (folder, *folder.parents[:2]):
        path.chmod(path.stat().st_mode | 0o011)
    return folder


def start_site(factory: pytest.TempPathFactory, name: str, *, strict: bool = False) -> Iterator[Site]:
    require_docker()
    site = Site(open_to_others(factory.mktemp(name)), build_image(), strict=strict)
    try:
        site.start()
        yield site
    finally:
        site.stop()


def prepare(site: Site) -> Site:
    """Remove what the previous test has left, and return the site."""
    site.reset()
    shutil.copy(FAULTY, site.home)
    (site.home / UNTIL_FINISH).write_text(UNTIL_FINISH_SCRIPT)
    (site.home / CHECKPOINTING).write_text(CHECKPOINTING_SCRIPT)
    return site


@pytest.fixture(scope="session")
def session_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    yield from start_site(tmp_path_factory, "slurm")


@pytest.fixture
def site(session_site: Site) -> Site:
    """Return a Slurm without jobs, all of whose nodes are idle."""
    return prepare(session_site)


@pytest.fixture(scope="session")
def laptop(session_site: Site, tmp_path_factory: pytest.TempPathFactory) -> Laptop:
    laptop = Laptop(session_site, tmp_path_factory.mktemp("laptop"))
    (session_site.home / ".bash_profile").write_text(BANNER)
    shutil.copy(FAULTY, laptop.home)
    (laptop.home / "orch-slurm.toml").write_text(f'login = "{NAME}"\npython = "{sys.executable}"\n')
    return laptop
