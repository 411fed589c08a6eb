"""Output on the terminal, with control characters escaped, because text may come from nodes.

Control characters other than tab and newline, characters that change the writing direction, and
surrogates are printed as their code points.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import signal
import sys
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

CLOSED = 128 + signal.SIGPIPE  # a shell's exit code for a program that SIGPIPE has ended
CONTROLS = {*range(0x20), *range(0x7F, 0xA0)} - {ord("\t"), ord("\n")}
LINES = {0x2028, 0x2029}  # line separators that grep does not split at
DIRECTIONS = {*range(0x202A, 0x202F), *range(0x2066, 0x206A)}
ESCAPED = (*CONTROLS, *LINES, *DIRECTIONS, *range(0xD800, 0xE000))  # the last are surrogates
SHOWN = {code: f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" for code in ESCAPED}


def escape_control_chars(text: str) -> str:
    """Return the text with control characters replaced by their code points."""
    return text.replace("\r\n", "\n").translate(SHOWN)


def print_text(text: object, *, err: bool = False, nl: bool = True, program: bool = False) -> None:
    """Print text with control characters escaped.

    Args:
        text: the text.
        err: print on standard error instead of standard output.
        nl: append a newline.
        program: the text is a script or manifest, which is unchanged in a file or a pipe.
    """
    stream = sys.stderr if err else sys.stdout
    shown = str(text) if program and not stream.isatty() else escape_control_chars(str(text))
    try:
        print(shown, end="\n" if nl else "", file=stream, flush=True)
    except BrokenPipeError:
        closed_output.end(stream.fileno())
    except OSError as error:  # such as a full disk
        closed_output.end(stream.fileno(), f"error: The output cannot be written: {error.strerror}.")


@dataclass(slots=True)
class ClosedOutput:
    """The reaction to output that nobody reads any more, as in `orch train ... | head`, or that cannot be written.

    Attributes:
        message: what is printed where it can still be read.
        is_ignored: whether the program continues.
    """

    message: str = ""
    is_ignored: bool = False

    def end(self, descriptor: int, error: str = "") -> None:
        """End the program, or discard what goes to this output from now on.

        Args:
            descriptor: the output.
            error: why it cannot be written; the exit code is then 1 in place of that of SIGPIPE.
        """
        code = 1 if error else CLOSED
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, descriptor)
        os.close(null)
        if self.is_ignored:
            return
        with contextlib.suppress(OSError):
            os.write(2, "".join(f"{line}\n" for line in (error, self.message) if line).encode())
        if threading.current_thread() is threading.main_thread():
            raise SystemExit(code)
        os._exit(code)  # another thread cannot raise in the main one, which may wait for hours


closed_output = ClosedOutput()


class SlowSteps(logging.Handler):
    """Prints what orch logs about steps that take long."""

    def emit(self, record: logging.LogRecord) -> None:
        print_text(record.getMessage(), err=True)


def prepare() -> None:
    """Escape characters that the terminal's encoding lacks, and discard output to a closed descriptor (`2>&-`).

    /dev/null replaces each standard stream that is closed; otherwise a file that is opened later takes its place.
    What orch logs is printed on standard error.
    """
    for descriptor, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(descriptor)
        except OSError:
            null = os.open(os.devnull, os.O_RDONLY if descriptor == 0 else os.O_WRONLY)
            if null != descriptor:
                os.dup2(null, descriptor)
                os.close(null)
            os.set_inheritable(descriptor, True)
            mode = "r" if descriptor == 0 else "w"
            setattr(sys, name, os.fdopen(descriptor, mode, encoding="utf-8", closefd=False))
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            with contextlib.suppress(OSError, ValueError):
                stream.reconfigure(errors="backslashreplace")
    logger = logging.getLogger("orchestrator")
    logger.handlers[:] = [SlowSteps()]
    logger.setLevel(logging.INFO)


def console(*, stderr: bool = True) -> Console:
    """Return a console for progress on standard error or standard output.

    It interprets neither markup nor emoji names. Callers pass text through escape_control_chars() first.
    """
    from rich.console import Console

    class EndingConsole(Console):
        """A console that ends the program at a closed output."""

        def on_broken_pipe(self) -> None:
            closed_output.end(self.file.fileno())

    return EndingConsole(stderr=stderr, markup=False, emoji=False, highlight=False, soft_wrap=True, force_jupyter=False)
