"""How orch starts pip: with nothing from the current folder, and no password in its arguments."""

from __future__ import annotations

import os
import sys
import urllib.parse
from collections.abc import Sequence

# pip's options that name a place -> the variable that says the same.
PLACES = {"--index-url": "PIP_INDEX_URL", "--extra-index-url": "PIP_EXTRA_INDEX_URL", "--find-links": "PIP_FIND_LINKS"}


def command(*words: str) -> list[str]:
    """-I: `python -m pip` would import a pip.py, or a folder pip, of the current folder."""
    return [sys.executable, "-I", "-m", "pip", "--disable-pip-version-check", *words]


def without_passwords(words: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Arguments of pip that all users of this machine may read, and the environment that says the
    rest: `--option=URL` where the URL has a password."""
    kept: list[str] = []
    environment: dict[str, str] = {}
    for word in words:
        option, _, value = word.partition("=")
        if option in PLACES and has_password(value):
            name = PLACES[option]
            before = environment.get(name) or (os.environ.get(name, "") if option != "--index-url" else "")
            environment[name] = f"{before} {value}".strip()
        else:
            kept.append(word)
    return kept, environment


def has_password(url: str) -> bool:
    try:
        return "@" in urllib.parse.urlsplit(url).netloc
    except ValueError:
        return "@" in url
