"""Every launcher with every backend on this machine; tests/cluster has two nodes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import matrix
from tests.conftest import mpi_here
from tests.local.grounds import Ground

README = Path(__file__).parents[2] / "README.md"


def needs(starter: str) -> None:
    words = matrix.STARTERS[starter]
    mpi_here(words[words.index("--mpi") + 1] if "--mpi" in words else "intel")


@pytest.mark.parametrize(("starter", "backend"), matrix.CELLS)
def test_on_one_node(one: Ground, starter: str, backend: str) -> None:
    needs(starter)
    matrix.check(one.start, starter, backend, planned=("127.0.0.1",))


def test_the_table_of_the_readme_is_current() -> None:
    text = README.read_text()
    assert matrix.with_table(text) == text, "python -m tests.matrix README.md"
