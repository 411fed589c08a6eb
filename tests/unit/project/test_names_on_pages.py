"""The pages tell to install what is ours, or what our stacks and options name: nobody else's."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from orchestrator import load
from orchestrator.operations.version import DISTRIBUTION

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

CHECKOUT = Path(__file__).parents[3]
PAGES = sorted(
    path
    for pattern in ("README.md", "CONTRIBUTING.md", "docs/**/*.md", "*/README.md")
    for path in CHECKOUT.glob(pattern)
)
SAID = re.compile(r"\b(?:pip|pipx|uv tool|uv pip) install +([^`#|\n]+)")
WITH_VALUE = ("--python", "--index-url", "--extra-index-url", "--find-links", "-r", "--prefix")


def project() -> dict[str, list[str]]:
    table = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
    assert table["name"] == DISTRIBUTION
    return {"dependencies": table["dependencies"], **table["optional-dependencies"]}


def known() -> set[str]:
    asked = (Requirement(one).name for group in project().values() for one in group)
    stacks = (name for stack in load.all_stacks() for name in stack.requirements)
    return {canonicalize_name(one) for one in (DISTRIBUTION, "pipx", "uv", *asked, *stacks)}


def installed(text: str) -> Iterator[str]:
    """Names of packages in the commands of a page; files and folders are no names."""
    for said in SAID.findall(text):
        words = iter(shlex.split(said.replace("\\", " ")))
        for word in words:
            if word in WITH_VALUE:
                next(words, None)
            elif not word.startswith(("-", ".", "/")) and "/" not in word and ".whl" not in word:
                yield canonicalize_name(Requirement(word).name)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(CHECKOUT)))
def test_a_page_names_no_strangers_package(path: Path) -> None:
    assert sorted(set(installed(path.read_text())) - known()) == []


def test_a_stranger_would_be_seen() -> None:
    text = "    pip install -U 'orch[k8s]' ./bindings\n`uv tool install --python 3.12 orch-train`\n"
    assert sorted(set(installed(text)) - known()) == ["orch"]


def test_what_is_installed_here_bears_the_name() -> None:
    assert version(DISTRIBUTION)
