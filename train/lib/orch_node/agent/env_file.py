"""A file of variables for containers, as `docker run --env-file` reads it. The engine would show
their values to all its users; so orch reads it on the node, and hands them on by a pipe."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class EnvFileError(Exception):
    """It cannot be read, or a line of it is no variable."""


def read(path: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """NAME=VALUE, the value as it stands; NAME alone is taken from `environ`, where it is there.
    Raises EnvFileError, which never has a value in its words."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise EnvFileError(f"env_file {path} cannot be read: {error.strerror}") from None
    except UnicodeError:
        raise EnvFileError(f"env_file {path} is not in UTF-8") from None
    return dict(variables(path, text, environ))


def variables(path: Path, text: str, environ: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for number, line in enumerate(text.split("\n"), start=1):
        words = line.removesuffix("\r").lstrip()
        name, given, value = words.partition("=")
        if not words or words.startswith("#"):
            continue
        if not NAME.fullmatch(name) or "\0" in value:
            raise EnvFileError(f"env_file {path}: line {number} is no NAME=VALUE")
        if given or name in environ:
            yield name, value if given else environ[name]
