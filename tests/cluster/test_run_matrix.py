"""Run the launchers of tests/support/matrix.py between two nodes."""

from __future__ import annotations

import pytest

from tests.cluster.lab import TWO_NODES
from tests.cluster.sites import Site
from tests.support import matrix

pytestmark = pytest.mark.cluster


@pytest.mark.parametrize(("starter", "backend"), matrix.cells(2))
def test_launcher_and_backend_train_on_two_nodes(site: Site, starter: str, backend: str) -> None:
    def start(script: str, *arguments: str) -> matrix.Cell:
        separator = arguments.index("--")
        options, script_arguments = arguments[:separator], arguments[separator:]
        return matrix.Cell.from_report(1, site.train(script, *options, *TWO_NODES, *script_arguments, code=1))

    matrix.check(start, starter, backend, planned=tuple(site.cluster.address(node) for node in ("node0", "node1")))
