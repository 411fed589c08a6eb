"""Where a run lives in a Kubernetes cluster."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from orch_node.protocol import values
from orch_node.protocol.record import RunRecord
from orch_node.protocol.values import ProtocolError

from orchestrator.errors import ExecuteError


@dataclass(frozen=True, slots=True, kw_only=True)
class JobLocation:
    """Where a run lives in a Kubernetes cluster: its job, and the volume with its files."""

    context: str | None
    namespace: str
    job: str
    launcher: str
    group: str
    version: str
    plural: str
    claim: str
    mount: str
    image: str
    uid: int
    python: str
    pull_secrets: tuple[str, ...]
    service_account: str | None = None  # older records tell of neither this nor the next
    tolerations: tuple[str, ...] = ()
    wait_limit: int | None = None  # seconds until the ranks must have started


def render(location: JobLocation) -> dict[str, Any]:
    """As a run's record has it."""
    found: dict[str, Any] = values.record(location)
    return found


def location_of(record: RunRecord) -> JobLocation:
    """Raises ExecuteError for a record that does not tell."""
    try:
        return values.read(JobLocation, record.location, "location")
    except ProtocolError as error:
        raise ExecuteError(
            f"The record of {record.run_id} is damaged: {error}",
            hint="`kubectl get pods` shows whether its pods live; its files stay in its volume.",
        ) from None
