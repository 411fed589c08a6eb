"""The facts that `orch provision` has recorded about the nodes of an inventory."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from orchestrator.errors import RequestError
from orchestrator.state import State


def recorded_facts(inventory: Path, host: str) -> Mapping[str, Any] | None:
    """The record of one host, or None if it was never provisioned. Raises RequestError."""
    return read_record(State.of(inventory).record(host))


def read_record(path: Path) -> Mapping[str, Any] | None:
    try:
        record = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise RequestError(
            f"The recorded facts in {path} cannot be read: {error}.",
            hint="Delete the file, then run `orch provision`.",
        ) from None
    return record if isinstance(record, dict) else None
