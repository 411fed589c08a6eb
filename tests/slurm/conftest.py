from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.images import need_engine, run
from tests.slurm.site import Site, slurm_site


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    need_engine()
    suite = os.environ.get("ORCH_SLURM_SUITE", "bookworm")  # Slurm 22.05; trixie has 24.11
    image = run("tests/slurm/image", suite).strip().splitlines()[-1]
    folder = tmp_path_factory.mktemp("slurm")
    for one in (folder, *folder.parents[:2]):
        one.chmod(one.stat().st_mode | 0o011)
    with slurm_site(folder, image) as found:
        yield found
