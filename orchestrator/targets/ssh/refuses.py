"""Fields of a request that nodes behind SSH have no use for: none, they are all read."""

from __future__ import annotations

from collections.abc import Mapping

from orchestrator.planning.refusal import Refusal

REFUSES: Mapping[str, Refusal] = {}
