from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from orchestrator.load.files import tomllib
from orchestrator.provisioning.bindings_wheel import sources

CHECKOUT = Path(__file__).parents[3]


def project() -> dict[str, Any]:
    return dict(tomllib.loads((CHECKOUT / "pyproject.toml").read_text()))


def test_changelog_begins_with_unreleased_changes_or_this_version() -> None:
    sections = re.findall(r"^## (\S+)", (CHECKOUT / "CHANGELOG.md").read_text(), re.M)
    assert sections[0] in ("Unreleased", project()["project"]["version"])


def test_wheel_contains_all_sources_of_the_bindings() -> None:
    """orch from a wheel without them would build the bindings again, because their digest differs."""
    wheel = project()["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    paths = [path.relative_to(CHECKOUT) for path in sources(CHECKOUT / "bindings")]
    assert len(paths) > 20
    included = {Path(name) for name in wheel}
    missing = [path for path in paths if not included & {path, *path.parents}]
    assert missing == []
