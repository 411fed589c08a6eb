"""orch_limits of the inventory -> Limits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, NonNegativeFloat, ValidationError

from orchestrator.errors import RequestError
from orchestrator.model.limits import GIB, Limits

VARIABLE = "orch_limits"
DEFAULT = Limits()


class LimitsVariable(BaseModel):
    """A mapping of the inventory; an ini inventory gives the numbers as text."""

    model_config = ConfigDict(extra="forbid")

    disk_gb: NonNegativeFloat = DEFAULT.disk / GIB
    memory_gb: NonNegativeFloat = DEFAULT.memory / GIB
    shm_gb: NonNegativeFloat = DEFAULT.shm / GIB
    skew_seconds: NonNegativeFloat = DEFAULT.skew


def limits(host: str, variables: Mapping[str, Any]) -> Limits:
    """What the inventory asks of one node at least. Raises RequestError that names the key."""
    try:
        found = LimitsVariable.model_validate(variables.get(VARIABLE, {}))
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join([VARIABLE, *map(str, first["loc"])])
        raise RequestError(
            f"{key} of {host}: {first['msg']}", hint=f"{VARIABLE} may have: {', '.join(LimitsVariable.model_fields)}."
        ) from None
    return Limits(
        disk=int(found.disk_gb * GIB),
        memory=int(found.memory_gb * GIB),
        shm=int(found.shm_gb * GIB),
        skew=found.skew_seconds,
    )
