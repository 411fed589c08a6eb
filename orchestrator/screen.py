"""The one place where text goes to the screen. Text may come from nodes: it is shown, not obeyed.

Characters that move a terminal (escapes and other controls, but for tabs and newlines), that turn
the direction of writing, or that no encoding has are shown by their numbers.
"""

from __future__ import annotations

import contextlib
import io
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

CONTROLS = {*range(0x20), *range(0x7F, 0xA0)} - {ord("\t"), ord("\n")}
LINES = {0x2028, 0x2029}  # that are none for grep
DIRECTIONS = {*range(0x202A, 0x202F), *range(0x2066, 0x206A)}
SURROGATES = range(0xD800, 0xE000)
SHOWN = {
    **{code: f"\\x{code:02x}" for code in CONTROLS},
    **{code: f"\\u{code:04x}" for code in (*LINES, *DIRECTIONS, *SURROGATES)},
}


def harmless(text: str) -> str:
    return text.replace("\r\n", "\n").translate(SHOWN)


def say(text: object, *, err: bool = False, nl: bool = True, program: bool = False) -> None:
    """On standard output, or on standard error. `program`: the text is one, or a manifest; where it
    goes to a file or a pipe it stays what it is."""
    stream = sys.stderr if err else sys.stdout
    shown = str(text) if program and not stream.isatty() else harmless(str(text))
    print(shown, end="\n" if nl else "", file=stream, flush=True)


def prepare() -> None:
    """What a terminal's encoding does not have is shown by its number, and is no error."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            with contextlib.suppress(OSError, ValueError):
                stream.reconfigure(errors="backslashreplace")


def console(*, stderr: bool = True) -> Console:
    """Return a console for progress, on standard error or standard output. Nothing in a text is
    markup, or a name of a picture; texts have to be made harmless before."""
    from rich.console import Console

    return Console(stderr=stderr, markup=False, emoji=False, highlight=False, soft_wrap=True)


def paper(width: int) -> Console:
    """Return a console for tables that are captured, without styles.

    The captured text is printed by say(), which would show the escape codes of a style.
    """
    from rich.console import Console

    return Console(markup=False, emoji=False, highlight=False, width=width, color_system=None)
