"""Minimum resources of a node."""

from __future__ import annotations

from dataclasses import dataclass

GIB = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The minimum resources of a node in bytes and seconds; orch_limits of the inventory overrides them."""

    disk: int = 5 * GIB  # 0.7 for wheels, 2 for the environment, and the same again for an update
    memory: int = 2 * GIB
    shm: int = GIB // 4  # for Intel MPI's segments of a few ranks
    skew: float = 5.0
