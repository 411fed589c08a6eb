"""orch_fabric of the inventory: what the ranks of its nodes talk over."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orchestrator.load.agreed import agreed

VARIABLE = "orch_fabric"


def asked_fabric(hosts: Mapping[str, Mapping[str, Any]]) -> str | None:
    """The same for all hosts of a run. Raises RequestError."""
    said = {host: variables.get(VARIABLE) for host, variables in hosts.items()}
    found = {host: (str(one),) if one else () for host, one in said.items()}
    return next(iter(agreed(VARIABLE, found, "All ranks talk over one fabric")), None)
