from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import report_missing
from tests.pbs.site import Site
from tests.slurm.runs import CHECKPOINTING, CHECKPOINTING_SCRIPT
from tests.support.waiting import wait_until

FAULTY = Path(__file__).parents[1] / "cluster" / "programs" / "faulty.py"


@pytest.fixture(scope="session")
def session_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    if "ORCH_PBS" not in os.environ:
        pytest.skip("no PBS: set ORCH_PBS to the folder in which OpenPBS is installed")
    if os.getuid() != 0 or shutil.which("nsenter") is None:
        report_missing("the hosts of PBS are namespaces, which need root and nsenter")
    site = Site(Path(os.environ["ORCH_PBS"]), tmp_path_factory.mktemp("pbs"))
    try:
        wait_until(site.is_ready, "the server of PBS", 120)
        site.wait_for_free_nodes()
        shutil.copy(FAULTY, site.home)
        (site.home / CHECKPOINTING).write_text(CHECKPOINTING_SCRIPT)
        yield site
    finally:
        site.stop()


@pytest.fixture
def site(session_site: Site) -> Iterator[Site]:
    """Return a PBS without jobs, both of whose nodes are free."""
    yield session_site
    session_site.reset()
