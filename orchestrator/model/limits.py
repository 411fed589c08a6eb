"""What a node must have at least."""

from __future__ import annotations

from dataclasses import dataclass

GIB = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The least that a node must have, unless its orch_limits say otherwise. Bytes and seconds."""

    disk: int = 5 * GIB  # wheels 0.7, environment 2, and room for an update beside them
    memory: int = 2 * GIB
    shm: int = GIB // 4  # Intel MPI's segments of a few ranks
    skew: float = 5.0
