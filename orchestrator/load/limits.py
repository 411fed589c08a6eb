"""Loads Limits from orch_limits of the inventory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, NonNegativeFloat, ValidationError

from orchestrator.errors import RequestError, describe_invalid
from orchestrator.model.limits import GIB, Limits

VARIABLE = "orch_limits"
DEFAULT = Limits()


class LimitsVariable(BaseModel):
    """The value of orch_limits; an ini inventory contains the numbers as text."""

    model_config = ConfigDict(defer_build=True, extra="forbid")

    disk_gb: NonNegativeFloat = DEFAULT.disk / GIB
    memory_gb: NonNegativeFloat = DEFAULT.memory / GIB
    shm_gb: NonNegativeFloat = DEFAULT.shm / GIB
    skew_seconds: NonNegativeFloat = DEFAULT.skew


def limits(host: str, variables: Mapping[str, Any]) -> Limits:
    """Return the minimum resources that the inventory requires of a node.

    Raises:
        RequestError: naming the key that is wrong.
    """
    try:
        values = LimitsVariable.model_validate(variables.get(VARIABLE, {}))
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join([VARIABLE, *map(str, first["loc"])])
        raise RequestError(
            f"{key} of {host}: {describe_invalid(first['msg'])}.",
            hint=f"Keys of {VARIABLE}: {', '.join(LimitsVariable.model_fields)}.",
        ) from None
    return Limits(
        disk=int(values.disk_gb * GIB),
        memory=int(values.memory_gb * GIB),
        shm=int(values.shm_gb * GIB),
        skew=values.skew_seconds,
    )
