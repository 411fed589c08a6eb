"""What an image, or a release, holds of Python packages, as a software bill of materials. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from urllib.parse import quote

from orchestrator.provisioning.wheelhouse import Wheel


def sbom(name: str, wheels: Iterable[Wheel], *, kind: str = "container") -> dict[str, Any]:
    """CycloneDX 1.5 (https://cyclonedx.org/docs/1.5/json): each wheel with its SHA-256. `kind`: of
    thing that has them."""
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": {"type": kind, "name": name}},
        "components": [component(wheel) for wheel in sorted(wheels, key=lambda one: one.name)],
    }


def component(wheel: Wheel) -> dict[str, Any]:
    """Its package URL as https://github.com/package-url/purl-spec has those of PyPI."""
    return {
        "type": "library",
        "name": wheel.name,
        "version": wheel.version,
        "purl": f"pkg:pypi/{wheel.name}@{quote(wheel.version, safe='.')}",
        "hashes": [{"alg": "SHA-256", "content": wheel.sha256}],
    }
