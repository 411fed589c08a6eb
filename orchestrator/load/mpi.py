"""orch_mpi of the inventory: the flavours of MPI that its nodes have besides the stack's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orchestrator.errors import RequestError, did_you_mean
from orchestrator.launchers import DIALECTS
from orchestrator.load.agreed import agreed

VARIABLE = "orch_mpi"


def mpi_flavours(hosts: Mapping[str, Mapping[str, Any]]) -> tuple[str, ...]:
    """One name or a list, the first of which starts the ranks; the same for all hosts.

    Raises RequestError.
    """
    found = {host: flavours_of(host, variables.get(VARIABLE)) for host, variables in hosts.items()}
    return agreed(VARIABLE, found, "One launcher starts all ranks")


def flavours_of(host: str, value: object) -> tuple[str, ...]:
    names = tuple(str(one) for one in (value if isinstance(value, list) else [value]) if one)
    for name in names:
        if name not in DIALECTS:
            raise RequestError(
                f"{host}: {VARIABLE} {name} is none of {', '.join(DIALECTS)}.", hint=did_you_mean(name, DIALECTS)
            )
    return names
