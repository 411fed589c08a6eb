"""Check that pages only install orch's distribution and packages that its stacks and extras require."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from orchestrator import load
from orchestrator.files import tomllib
from orchestrator.operations.stacks import DISTRIBUTION

CHECKOUT = Path(__file__).parents[3]
PAGES = sorted(
    path
    for pattern in ("README.md", "CONTRIBUTING.md", "docs/**/*.md", "*/README.md")
    for path in CHECKOUT.glob(pattern)
)
INSTALL = re.compile(r"\b(?:pip|pipx|uv tool|uv pip) install +([^`#|\n]+)")
OPTIONS_WITH_VALUE = ("--python", "--index-url", "--extra-index-url", "--find-links", "-r", "--prefix")


def known_packages() -> set[str]:
    table = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
    assert table["name"] == DISTRIBUTION
    groups = (table["dependencies"], *table["optional-dependencies"].values())
    dependencies = (Requirement(text).name for group in groups for text in group)
    requirements = (name for stack in load.all_stacks() for name in stack.requirements)
    return {canonicalize_name(name) for name in (DISTRIBUTION, "pipx", "uv", *dependencies, *requirements)}


def installed_packages(text: str) -> Iterator[str]:
    """Yield the package names in the install commands of a page, without files and folders."""
    for arguments in INSTALL.findall(text):
        tokens = iter(shlex.split(arguments.replace("\\", " ")))
        for token in tokens:
            if token in OPTIONS_WITH_VALUE:
                next(tokens, None)
            elif not token.startswith(("-", ".", "/")) and "/" not in token and ".whl" not in token:
                yield canonicalize_name(Requirement(token).name)


def test_pages_install_only_known_packages() -> None:
    allowed = known_packages()
    unknown_packages = {path: set(installed_packages(path.read_text())) - allowed for path in PAGES}
    assert {path: names for path, names in unknown_packages.items() if names} == {}
