"""Advice about a full disk for runs whose files are on a volume of the cluster."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from orchestrator.model.finding import Finding

DISK_FULL = "disk full"  # the name of the signature
PATH = re.compile(r"(?<![\w/])/[^\s'\":,]+")


def advise_on_volume(explanation: Finding, location: Mapping[str, Any], run_dir: str) -> Finding:
    """Return the explanation; if the disk is full, it names the volume and a folder to check.

    Args:
        explanation: the explanation of an error.
        location: the location of the run; it has a volume if it has a `claim` and a `mount`.
        run_dir: the folder of the run on the volume.
    """
    claim, mount = location.get("claim"), location.get("mount")
    if explanation.subject != DISK_FULL or not claim or not mount:
        return explanation
    paths = PATH.findall(explanation.evidence)
    other_paths = [path for path in paths if not path.startswith(f"{mount}/") and path != mount]
    if other_paths and len(other_paths) == len(paths):
        return replace(
            explanation,
            message=f"The disk of the pod itself is full: {other_paths[0]} is not on the volume.",
            cure=f"Write below {mount}, where the claim {claim} is mounted.",
        )
    folder = next((path for path in paths if path not in other_paths), run_dir)
    return replace(
        explanation,
        message=f"The volume of the claim {claim} is full; it is mounted at {mount}.",
        cure=f"Delete unneeded files ({folder}, older runs in {mount}/runs, "
        f"{mount}/cache), or enlarge the claim: `kubectl edit pvc {claim}`, if its storage class "
        "allows that.",
    )
