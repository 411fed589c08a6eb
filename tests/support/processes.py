"""Find processes in /proc, not in records of orch."""

from __future__ import annotations

import os
from pathlib import Path


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
