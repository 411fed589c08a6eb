"""A fixture for the tests of orch's kernels."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture
def kernels() -> Iterator[None]:
    """Replace torch's functions by orch's kernels during a test, with the same random numbers in each run."""
    import orch_kernels
    import torch

    orch_kernels.use()
    torch.manual_seed(0)
    yield
    orch_kernels.restore()
