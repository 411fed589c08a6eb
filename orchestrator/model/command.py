"""A command as a value: argv and environment. Only `shell()` turns it into text for a shell."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import PurePosixPath


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A program with its arguments, and the variables set on top of the environment it finds."""

    argv: tuple[str, ...]
    env: tuple[tuple[str, str], ...] = ()

    def shell(self) -> str:
        """Text that a POSIX shell runs as this very command."""
        variables = [f"{name}={value}" for name, value in self.env]
        prefix = ["env", *variables] if variables else []
        return shlex.join([*prefix, *self.argv])


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a program said, and its exit code."""

    code: int
    out: str
    err: str


# What to do about an answer that is not what our program prints.
QUIET = "A login script there that prints is one cause: `ssh NODE true` must print nothing."


def program(argv: tuple[str, ...]) -> str:
    """How a person would call it: the script, where a python runs one."""
    scripts = (word for word in argv if word.endswith(".py"))
    return PurePosixPath(next(scripts, argv[0])).name
