"""Run processes while a test does something, and find processes in /proc, not in records of orch."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def find_processes(text: str) -> dict[int, str]:
    """Return the command lines, by process id, of other processes whose arguments or environment have this text."""
    command_lines = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            arguments = (folder / "cmdline").read_bytes()
            content = arguments + (folder / "environ").read_bytes()
        except OSError:  # it has ended
            continue
        if os.fsencode(text) in content and int(folder.name) != os.getpid():
            command_lines[int(folder.name)] = arguments.replace(b"\0", b" ").decode(errors="replace")
    return command_lines


@contextlib.contextmanager
def running_python(text: str, *arguments: object, **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    """Yield a process of a Python program that has printed a line and ends with its standard input."""
    command = [sys.executable, "-c", text, *map(str, arguments)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, **options) as process:
        assert process.stdout.readline()
        yield process
        process.communicate()
