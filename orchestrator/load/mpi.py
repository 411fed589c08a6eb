"""orch_mpi of the inventory: the flavours of MPI that its nodes have besides the stack's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orchestrator.errors import RequestError, did_you_mean
from orchestrator.launchers import DIALECTS

VARIABLE = "orch_mpi"


def mpi_flavours(hosts: Mapping[str, Mapping[str, Any]]) -> tuple[str, ...]:
    """One name or a list, the first of which starts the ranks; the same for all hosts.

    Raises RequestError.
    """
    found = {host: flavours_of(host, variables.get(VARIABLE)) for host, variables in hosts.items()}
    if len(set(found.values())) > 1:
        told = ", ".join(f"{host}: {' '.join(one) or 'none'}" for host, one in found.items())
        raise RequestError(
            f"{VARIABLE} differs between the hosts of a run ({told}).",
            hint="One launcher starts all ranks: set it once, for all hosts.",
        )
    return next(iter(found.values()), ())


def flavours_of(host: str, value: object) -> tuple[str, ...]:
    names = tuple(str(one) for one in (value if isinstance(value, list) else [value]) if one)
    for name in names:
        if name not in DIALECTS:
            raise RequestError(
                f"{host}: {VARIABLE} {name} is none of {', '.join(DIALECTS)}.",
                hint=did_you_mean(name, DIALECTS),
            )
    return names
