"""Read and write what `orch bench` has measured, in the state of a cluster."""

from __future__ import annotations

import json
from pathlib import Path

from orch_node.protocol import values
from orch_node.protocol.values import ProtocolError

from orchestrator.model.measurement import Measurement
from orchestrator.state import write_private

MEASURED = "measured.json"  # in the state of an inventory or a batch system


def read_measurement(path: Path) -> Measurement | None:
    """Return what was measured; None if nothing was, or another version has written the file."""
    try:
        return values.parse(Measurement, path.read_bytes(), str(path))
    except (OSError, ProtocolError):
        return None


def write_measurement(path: Path, measurement: Measurement) -> None:
    """Write what was measured, in place of an earlier measurement."""
    write_private(path, json.dumps(values.record(measurement), indent=1))
