"""Collective x dtype x operation x size x ranks, against arithmetic done by hand.

Once under each launcher, and without one, each rank is a Python of its own: warm=False.
"""

from __future__ import annotations

import pytest


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_every_collective_on_mpi(launch, ranks):
    outcome = launch("matrix.py", ranks=ranks, timeout=150, warm=ranks > 2)
    assert outcome.code == 0, outcome.text
    assert outcome.text.count("checked") == ranks


def test_every_collective_without_mpirun(launch):
    outcome = launch("matrix.py", by="torchrun", timeout=200, warm=False)
    assert outcome.code == 0, outcome.text
    assert outcome.text.count("checked") == 2


def test_a_group_of_one_needs_no_launcher(launch):
    """It does not even wake oneCCL, which would tell of each of its variables."""
    outcome = launch("matrix.py", by="bare", ranks=1, warm=False)
    assert outcome.code == 0, outcome.text
    assert "CCL_WARN" not in outcome.text
