"""Variables of the inventory that all hosts of a run must have alike."""

from __future__ import annotations

from collections.abc import Mapping

from orchestrator.errors import RequestError


def agreed(variable: str, found: Mapping[str, tuple[str, ...]], why: str) -> tuple[str, ...]:
    """Host -> words, of which all have the same: these. `why` they must. Raises RequestError."""
    if len(set(found.values())) > 1:
        told = ", ".join(f"{host}: {' '.join(one) or 'none'}" for host, one in found.items())
        raise RequestError(
            f"{variable} differs between the hosts of a run ({told}).", hint=f"{why}: set it once, for all hosts."
        )
    return next(iter(found.values()), ())
