"""Find secrets in options and arguments, and replace them in everything that is printed, recorded or shared."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence

# Names of environment variables whose values are in no argument, manifest, log or record.
SECRET = re.compile(r"TOKEN(?!IZER)|SECRET|PASSWORD|PASSWD|CREDENTIAL|(API|ACCESS|PRIVATE)_?KEY", re.I)


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
NAME = re.compile(
    r"(?:^|[_-])(?:token|secret|password|passwd|passphrase|pwd|credentials?)$|(?:api|access|private|auth|secret)[_-]?key$",
    re.I,
)
# Of a value that only its name makes a secret: shorter ones are special tokens, such as [PAD]. Shorter passwords are
# replaced in URLs alone, because they may be parts of other words.
MIN_LENGTH = 6


def find_secrets(arguments: Sequence[str]) -> tuple[str, ...]:
    """Return the secrets in a list of arguments or assignments, the longest first."""
    secrets: set[str] = set()
    for argument, following in zip(arguments, (*arguments, "")[1:], strict=True):
        secrets.update(SECRET_IN_URL.findall(argument), TOKEN.findall(argument))
        name, has_value, value = argument.partition("=")
        if not has_value and name.startswith("-"):
            value = following
        if NAME.search(name) and len(value) >= MIN_LENGTH and value != MASK and not value.startswith("-"):
            secrets.add(value)
    return tuple(sorted(secrets, key=lambda secret: (-len(secret), secret)))


def mask(text: str, secrets: Iterable[str]) -> str:
    """Return a text, such as a script or JSON, with secrets replaced."""
    for secret in secrets:
        for form in (secret, json.dumps(secret)[1:-1]):
            if len(secret) < MIN_LENGTH:
                text = re.sub(rf"(?<=[:/]){re.escape(form)}(?=@)", MASK, text)
            else:
                text = text.replace(form, MASK)
    return text


def masked(arguments: Sequence[str]) -> tuple[str, ...]:
    """Return arguments or assignments with their secrets replaced."""
    secrets = find_secrets(arguments)
    return tuple(mask(argument, secrets) for argument in arguments)
