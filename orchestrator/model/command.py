"""A command as a value: argv and environment."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import PurePosixPath


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A program with its arguments, and the variables added to its environment."""

    argv: tuple[str, ...]
    env: tuple[tuple[str, str], ...] = ()

    def shell(self) -> str:
        """Return the command as POSIX shell text."""
        variables = [f"{name}={value}" for name, value in self.env]
        prefix = ["env", *variables] if variables else []
        return shlex.join([*prefix, *self.argv])


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandResult:
    """The exit code and the output of a program."""

    code: int
    out: str
    err: str


# The hint for output that is not the output of orch's program.
LOGIN_SCRIPT_HINT = (
    "A start-up file of the login shell may have started a program that prints: `ssh NODE sleep 10` shows its output."
)


def program_name(argv: tuple[str, ...]) -> str:
    """Return the program's name; for a Python interpreter, that of its script."""
    scripts = (word for word in argv if word.endswith(".py"))
    return PurePosixPath(next(scripts, argv[0])).name
