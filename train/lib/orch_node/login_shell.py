"""Run programs through a login shell of any kind, and drop what the shell prints before their output.

sshd gives a command to the user's login shell. That may be csh or fish, which quote in other ways than sh, and its
start-up files may print: a message of the day, conda's activation, a prompt.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence

# The line before the output of a program, on its standard output and its standard error.
START_MARKER = b"orch:program-output\n"
# The quotes inside of the word keep the marker out of what a shell prints about this command (set -v, set -x). `exec`
# ends the login shell, so that it prints nothing after the program. The arguments are parts of the command, encoded for
# printf, which joins them.
SCRIPT = 'echo orch:program-"output"; echo orch:program-"output" >&2; eval "exec $(printf %b "$@")"'
PART_CHARACTERS = 50  # in a word: 20 bytes each outside of ASCII, and BSD's csh reads words of up to 1024 bytes
DROPPED_BYTES = 1000  # of the text before the marker that are kept for messages


def shell_command(argv: Sequence[str]) -> str:
    """Return the text with which any login shell runs a program behind a start marker.

    sh, csh, fish and zsh read a text in single quotes alike if it has no quotes, backslashes, exclamation marks and
    line breaks; printf's octal numbers stand for these.
    """
    command = shlex.join(argv)
    parts = [command[start : start + PART_CHARACTERS] for start in range(0, len(command), PART_CHARACTERS)]
    arguments = " ".join("'{}'".format("".join(map(encode, part))) for part in parts)
    return f"exec /bin/sh -c '{SCRIPT}' sh {arguments}"


def encode(character: str) -> str:
    r"""Return a character as printf's %b reads it, without what a login shell could interpret inside of quotes.

    fish reads '\\' as one backslash, but '\0' as it is.
    """
    if character.isascii() and character.isprintable() and character not in "'\\!":
        return character
    return "".join(f"\\0{byte:03o}" for byte in character.encode(errors="surrogateescape"))


def program_errors(text: str) -> str:
    """Return what a program has printed, from all that was printed to its standard error."""
    return text.rpartition(START_MARKER.decode())[2].strip()


class StartFilter:
    """Drop the bytes of a program's output up to the start marker.

    Attributes:
        started: whether the marker has been read.
    """

    def __init__(self) -> None:
        self.started = False
        self._dropped = b""
        self._pending = b""  # may be the beginning of the marker

    def output(self, part: bytes) -> bytes:
        """Return what belongs to the program in the next part of the output."""
        if self.started:
            return part
        dropped, marker, output = (self._pending + part).partition(START_MARKER)
        self.started = bool(marker)
        if not marker:
            dropped, self._pending = dropped[: 1 - len(START_MARKER)], dropped[1 - len(START_MARKER) :]
        self._dropped = (self._dropped + dropped)[:DROPPED_BYTES]
        return output

    @property
    def dropped(self) -> str:
        """Return the beginning of what was printed before the marker."""
        return (self._dropped + (b"" if self.started else self._pending)).decode(errors="replace").strip()
