"""Check quantities of CPUs and memory."""

from __future__ import annotations

import pytest

from orchestrator.errors import PlanError
from orchestrator.targets.kubernetes.settings import amount


def test_quantities_are_exact() -> None:
    assert amount("500m", "x") * 2 == 1
    assert amount("64Gi", "x") == 64 * 2**30
    assert amount("1.5", "x") == amount("1500m", "x")
    assert amount("1e3", "x") == amount("1k", "x") == 1000
    for text in ("", "0", "1 Gi", "1gi", "Gi", "1.2.3", "0x10", "1e", "-5", "5%"):
        with pytest.raises(PlanError):
            amount(text, "x")
