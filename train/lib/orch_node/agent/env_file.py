"""Read a file of variables for containers, in the format of `docker run --env-file`.

orch reads it itself and passes the variables by a pipe: the engine would show them to all its users.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class EnvFileError(Exception):
    """An unreadable file of variables, or a line in it that is not a variable."""


def read(path: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of the file: NAME=VALUE, with the value as written.

    A line NAME takes the value from `environ`, if it is there.

    Raises:
        EnvFileError: if a line is wrong; the message never contains a value.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise EnvFileError(f"env_file {path} cannot be read: {error.strerror}") from None
    except UnicodeError:
        raise EnvFileError(f"env_file {path} is not UTF-8") from None
    variables = {}
    for number, line in enumerate(text.split("\n"), start=1):
        assignment = line.removesuffix("\r").lstrip()
        name, has_value, value = assignment.partition("=")
        if not assignment or assignment.startswith("#"):
            continue
        if not NAME.fullmatch(name) or "\0" in value:
            raise EnvFileError(f"env_file {path}: line {number} is not NAME=VALUE")
        if has_value or name in environ:
            variables[name] = value if has_value else environ[name]
    return variables
