"""Inventory variables that all hosts of a run must share: orch_fabric, orch_mpi and orch_requirements."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from orchestrator.errors import RequestError, did_you_mean
from orchestrator.launchers import DIALECTS

FABRIC, MPI, REQUIREMENTS = "orch_fabric", "orch_mpi", "orch_requirements"


def requested_fabric(hosts: Mapping[str, Mapping[str, Any]]) -> str | None:
    """Return orch_fabric, or None if it is not set.

    Raises:
        RequestError: if the hosts have different values.
    """
    values = {host: (str(fabric),) if (fabric := variables.get(FABRIC)) else () for host, variables in hosts.items()}
    return next(iter(common_value(FABRIC, values, "all ranks use one fabric")), None)


def common_requirements(source: Path, hosts: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the file of orch_requirements, relative to the inventory's folder; empty if it is not set.

    Raises:
        RequestError: if the hosts have different values.
    """
    values = {host: (str(file),) if (file := variables.get(REQUIREMENTS)) else () for host, variables in hosts.items()}
    file = next(iter(common_value(REQUIREMENTS, values, "all ranks have the same packages")), "")
    return str((source if source.is_dir() else source.parent) / file) if file else ""


def mpi_flavours(hosts: Mapping[str, Mapping[str, Any]]) -> tuple[str, ...]:
    """Return orch_mpi, one name or a list: the flavours of MPI to install; the first one starts the ranks.

    Raises:
        RequestError: if a name is unknown, or the hosts have different values.
    """
    values: dict[str, tuple[str, ...]] = {}
    for host, variables in hosts.items():
        value = variables.get(MPI)
        values[host] = tuple(str(name) for name in (value if isinstance(value, list) else [value]) if name)
        if unknown := [name for name in values[host] if name not in DIALECTS]:
            raise RequestError(
                f"{host}: unknown {MPI} '{unknown[0]}'; available are {', '.join(DIALECTS)}.",
                hint=did_you_mean(unknown[0], DIALECTS),
            )
    return common_value(MPI, values, "one launcher starts all ranks")


def common_value(variable: str, values: Mapping[str, tuple[str, ...]], reason: str) -> tuple[str, ...]:
    """Return the value that all hosts have.

    Raises:
        RequestError: if the hosts have different values.
    """
    if len(set(values.values())) > 1:
        listing = ", ".join(f"{host}: {' '.join(value) or 'none'}" for host, value in values.items())
        raise RequestError(
            f"{variable} differs between the hosts of a run ({listing}).", hint=f"Set it once for all hosts: {reason}."
        )
    return next(iter(values.values()), ())
