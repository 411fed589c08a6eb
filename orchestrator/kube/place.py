"""Where a run lives in a Kubernetes cluster."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class KubePlace:
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
