"""Every launcher on this machine; with every backend here or on two nodes (tests/cluster)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import matrix
from tests.conftest import mpi_here
from tests.local.grounds import Ground

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "launchers.md"


def needs(starter: str) -> None:
    words = matrix.STARTERS[starter]
    mpi_here(words[words.index("--mpi") + 1] if "--mpi" in words else "intel")


@pytest.mark.parametrize(("starter", "backend"), matrix.cells(1))
def test_on_one_node(one: Ground, starter: str, backend: str) -> None:
    needs(starter)
    matrix.check(one.start, starter, backend, planned=("127.0.0.1",))


def test_each_launcher_meets_each_backend_and_is_tried_on_one_node_and_on_two() -> None:
    found = [matrix.cells(nodes) for nodes in (1, 2)]
    assert sorted({*found[0], *found[1]}) == sorted(matrix.CELLS)
    assert all({starter for starter, _ in some} == set(matrix.STARTERS) for some in found)


def test_the_table_for_users_is_current() -> None:
    text = PAGE.read_text()
    assert matrix.with_table(text) == text, "python -m tests.matrix docs/how-to/launchers.md"
