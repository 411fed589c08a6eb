"""What orch's own wheel carries of the bindings: all that says whether they were built already."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from orchestrator.provisioning.own_bindings import sources

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

CHECKOUT = Path(__file__).parents[3]


def project() -> dict[str, Any]:
    return dict(tomllib.loads((CHECKOUT / "pyproject.toml").read_text()))


def test_the_changelog_begins_with_unreleased_changes_or_this_version() -> None:
    sections = re.findall(r"^## (\S+)", (CHECKOUT / "CHANGELOG.md").read_text(), re.M)
    assert sections[0] in ("Unreleased", project()["project"]["version"])


def test_the_wheel_has_all_sources_of_the_bindings() -> None:
    """Else orch from its wheel would build them again, and be another orch than the checkout."""
    wheel = project()["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    found = [path.relative_to(CHECKOUT) for path in sources(CHECKOUT / "bindings")]
    assert len(found) > 20
    carried = {Path(name) for name in wheel}
    missing = [path for path in found if not carried & {path, *path.parents}]
    assert missing == []
