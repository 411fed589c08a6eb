"""Ask OpenSSH which options it uses."""

from __future__ import annotations

import subprocess

from tests.conftest import require_program


def openssh_options(*arguments: str) -> dict[str, str]:
    """Return the options that OpenSSH uses with these arguments; skip the test if it is missing."""
    require_program("ssh")
    output = subprocess.run(["ssh", "-G", *arguments], capture_output=True, text=True, check=True).stdout
    return dict(line.split(" ", 1) for line in output.splitlines() if " " in line)
