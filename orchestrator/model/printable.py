"""Text for people and shells: on one line, counted and quoted, and with secrets masked."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath

MAX_NAMED = 3


def one_line(text: str) -> str:
    r"""Return the text with line breaks and other unprintable characters escaped as in Python (\\x1b, \\n)."""
    if text.isprintable():
        return text
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape", "surrogatepass").decode() for letter in text
    )


def counted(number: int | str, noun: str) -> str:
    """Return a number with its noun in the singular or the plural: `1 rank`, `2 processes`."""
    plural = f"{noun}{'es' if noun.endswith(('s', 'ch')) else 's'}"
    return f"{number} {noun if str(number) == '1' else plural}"


def enumeration(names: Sequence[str]) -> str:
    """Return the first names and the number of the others: `a.py, b.py, c.py and 4 more`."""
    text = ", ".join(map(one_line, names[:MAX_NAMED]))
    return f"{text} and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else text


def described_size(size: int) -> str:
    """Return a number of bytes in its unit: `20 bytes`, `1.2 kB`, `3.4 MB`."""
    if size < 1000:
        return counted(size, "byte")
    return f"{size / 1e3:.1f} kB" if size < 1e6 else f"{size / 1e6:.1f} MB"


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A program with its arguments, and the variables added to its environment."""

    argv: tuple[str, ...]
    env: dict[str, str] = field(default_factory=dict, hash=False)

    def shell(self) -> str:
        """Return the command as POSIX shell text."""
        variables = [f"{name}={value}" for name, value in self.env.items()]
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


# Names of environment variables that orch refuses, because manifests, logs and records would show their values.
SECRET_VARIABLE = re.compile(r"TOKEN(?!IZER)|SECRET|PASSWORD|PASSWD|CREDENTIAL|(API|ACCESS|PRIVATE)_?KEY", re.I)
MASK = "<masked>"
# The password in the URL of a server or a database, or the token in one of a website.
SECRET_IN_URL = re.compile(r"\b(?:[a-z][a-z0-9+.-]*://[^\s/:@]*:|https?://)([^\s/]+)@", re.I)
# Tokens and keys whose format is known: Hugging Face, GitHub, GitLab, OpenAI, Anthropic, AWS, Google, Slack, npm, PyPI,
# Docker, and JSON web tokens.
TOKEN = re.compile(
    r"(?<![A-Za-z0-9])(?:hf_[A-Za-z0-9]{8,}|gh[opsur]_[A-Za-z0-9]{16,}|github_pat_\w{20,}|glpat-[\w-]{16,}|sk-[\w-]{16,}"
    r"|A(?:KI|SI)A[A-Z0-9]{16}|AIza[\w-]{30,}|xox[abeoprs]-[\w-]{10,}|npm_[A-Za-z0-9]{30,}|pypi-[\w-]{30,}"
    r"|dckr_pat_[\w-]{20,}|eyJ[\w-]{10,}\.eyJ[\w-]{10,}\.[\w-]+)"
)
# Names of arguments and variables whose value is a secret: --hf_token, API_KEY=, but not --max_tokens or --pad_token 0.
SECRET_NAME = re.compile(
    r"(?:^|[_-])(?:token|secret|password|passwd|passphrase|pwd|credentials?)$|(?:api|access|private|auth|secret)[_-]?key$",
    re.I,
)
# Of a value that only its name makes a secret: shorter ones are special tokens, such as [PAD]. Shorter passwords are
# replaced in URLs alone, because they may be parts of other words.
MIN_SECRET_LENGTH = 6


def find_secrets(arguments: Sequence[str]) -> tuple[str, ...]:
    """Return the secrets in a list of arguments or assignments, the longest first."""
    secrets: set[str] = set()
    for argument, following in zip(arguments, (*arguments, "")[1:], strict=True):
        secrets.update(SECRET_IN_URL.findall(argument), TOKEN.findall(argument))
        name, has_value, value = argument.partition("=")
        if not has_value and name.startswith("-"):
            value = following
        if SECRET_NAME.search(name) and len(value) >= MIN_SECRET_LENGTH and value != MASK and not value.startswith("-"):
            secrets.add(value)
    return tuple(sorted(secrets, key=lambda secret: (-len(secret), secret)))


def mask(text: str, secrets: Iterable[str]) -> str:
    """Return a text, such as a script or JSON, with secrets replaced."""
    for secret in secrets:
        for form in (secret, json.dumps(secret)[1:-1]):
            if len(secret) < MIN_SECRET_LENGTH:
                text = re.sub(rf"(?<=[:/]){re.escape(form)}(?=@)", MASK, text)
            else:
                text = text.replace(form, MASK)
    return text


def masked(arguments: Sequence[str]) -> tuple[str, ...]:
    """Return arguments or assignments with their secrets replaced."""
    secrets = find_secrets(arguments)
    return tuple(mask(argument, secrets) for argument in arguments)
