"""List the fields of a request that this target refuses. It uses every field, so there are none."""

from __future__ import annotations

from collections.abc import Mapping

from orchestrator.planning.refusal import Refusal

REFUSES: Mapping[str, Refusal] = {}
