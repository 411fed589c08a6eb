"""Every launcher with every backend on this machine; tests/cluster has two nodes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import matrix
from tests.conftest import mpi_here
from tests.local.grounds import Ground

PAGE = Path(__file__).parents[2] / "docs" / "launchers.md"


def needs(starter: str) -> None:
    words = matrix.STARTERS[starter]
    mpi_here(words[words.index("--mpi") + 1] if "--mpi" in words else "intel")


@pytest.mark.parametrize(("starter", "backend"), matrix.CELLS)
def test_on_one_node(one: Ground, starter: str, backend: str) -> None:
    needs(starter)
    matrix.check(one.start, starter, backend, planned=("127.0.0.1",))


def test_the_table_for_users_is_current() -> None:
    text = PAGE.read_text()
    assert matrix.with_table(text) == text, "python -m tests.matrix docs/launchers.md"
