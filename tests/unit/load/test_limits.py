"""The minimum resources that an inventory requires of its nodes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator import load
from orchestrator.errors import RequestError
from orchestrator.model.cluster import GIB, Limits


def test_limits_of_the_inventory_replace_the_defaults() -> None:
    limits = load.limits("a", {"orch_limits": {"disk_gb": 1, "skew_seconds": "60"}})
    assert limits == replace(Limits(), disk=GIB, skew=60.0)
    assert load.limits("a", {}) == Limits()


def test_invalid_limit_is_rejected_with_its_name() -> None:
    for limits, message in (
        ({"disc_gb": 1}, "orch_limits.disc_gb of a: unknown key."),
        ({"disk_gb": "much"}, "orch_limits.disk_gb of a: expected a valid number"),  # text
        ([1], "orch_limits of a: "),  # list
    ):
        with pytest.raises(RequestError, match=message) as exc_info:
            load.limits("a", {"orch_limits": limits})
        assert "disk_gb" in exc_info.value.hint
