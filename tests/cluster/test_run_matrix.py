"""The matrix of tests/support/matrix.py between two real nodes: every launcher."""

from __future__ import annotations

import pytest

from tests.cluster.lab import ON_TWO
from tests.cluster.sites import Site
from tests.support import matrix

pytestmark = pytest.mark.cluster


@pytest.mark.parametrize(("starter", "backend"), matrix.cells(2))
def test_on_two_nodes(lab_session: Site, starter: str, backend: str) -> None:
    def start(script: str, *words: str) -> matrix.Cell:
        split = words.index("--")
        asked = (script, *words[:split], *ON_TWO, "--fresh", *words[split:])
        return matrix.Cell.of(1, lab_session.train(*asked, code=1))

    planned = tuple(lab_session.cluster.address(node) for node in ("node0", "node1"))
    matrix.check(start, starter, backend, planned=planned)
