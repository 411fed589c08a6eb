"""The software bill of materials of an image or a release."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from urllib.parse import quote

from orchestrator.provisioning.wheelhouse import Wheel


def sbom(name: str, wheels: Iterable[Wheel], *, kind: str = "container") -> dict[str, Any]:
    """Return the packages with their SHA-256 as CycloneDX 1.5 (https://cyclonedx.org/docs/1.5/json).

    Args:
        name: of the component that has the packages.
        wheels: the packages.
        kind: CycloneDX's type of the component.
    """
    components = [
        {
            "type": "library",
            "name": wheel.name,
            "version": wheel.version,
            # https://github.com/package-url/purl-spec
            "purl": f"pkg:pypi/{wheel.name}@{quote(wheel.version, safe='.')}",
            "hashes": [{"alg": "SHA-256", "content": wheel.sha256}],
        }
        for wheel in sorted(wheels, key=lambda wheel: wheel.name)
    ]
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": {"type": kind, "name": name}},
        "components": components,
    }
