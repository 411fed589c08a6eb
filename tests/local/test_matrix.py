"""Run launchers and backends on this machine; tests/cluster runs them on two nodes."""

from __future__ import annotations

from functools import partial

import pytest

from tests.conftest import require_mpi
from tests.local.workspaces import Workspace
from tests.support import matrix


@pytest.mark.parametrize(("starter", "backend"), matrix.cells(1))
def test_cell_trains_on_one_node(one_host: Workspace, starter: str, backend: str) -> None:
    options = matrix.STARTERS[starter]
    require_mpi(options[options.index("--mpi") + 1] if "--mpi" in options else "intel")
    matrix.check(partial(one_host.train, code=1), starter, backend, planned=("127.0.0.1",))
