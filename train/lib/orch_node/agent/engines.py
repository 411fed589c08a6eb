"""How a program that holds containers is asked."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence


class ContainerError(Exception):
    """The engine is not there or refuses, in its words, with the cure where it is known."""


def answer(argv: Sequence[str], *, seconds: float) -> str:
    """What it prints. Raises ContainerError with its whole words."""
    try:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=seconds
        )
    except OSError as error:
        raise ContainerError(f"{argv[0]} cannot be started: {error.strerror}") from None
    except subprocess.TimeoutExpired:
        raise ContainerError(f"{argv[0]} {argv[1]} gave no answer for {seconds:.0f} s") from None
    if done.returncode != 0:
        raise ContainerError(done.stderr.strip() or f"exit code {done.returncode}")
    return done.stdout
