"""`orch clean`: end what past runs have left."""

from __future__ import annotations

from pathlib import Path

from orchestrator.runs.cleanup import CleanupReport
from orchestrator.targets import registry


def clean(runs_dir: Path, inventory: str | None, *, look: bool) -> CleanupReport:
    """On this machine, or on an inventory's hosts; with `look`, only tell of it."""
    return registry.at(inventory).clean(inventory, runs_dir.absolute(), look=look)
