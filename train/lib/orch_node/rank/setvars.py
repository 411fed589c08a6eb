"""Get the variables that the setvars.sh of Intel's bindings sets, without a shell around the ranks."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

# Pass only what a login sets: other variables of the launcher could mislead the script.
PASSED_VARIABLES = ("HOME", "USER", "LANG", "PATH", "LD_LIBRARY_PATH")
IGNORED_VARIABLES = {"_", "SHLVL", "PWD", "OLDPWD"}
TIMEOUT_SECONDS = 60.0
# The script may read $1.. or print; only its effect on the environment counts.
SOURCE = 'file=$1; set --; . "$file" > /dev/null; env -0'


class SetvarsError(Exception):
    """The script is missing or fails; the text names it and the reason."""


def sourced_variables(script: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that sourcing the script sets or changes.

    Raises:
        SetvarsError: if the script is missing or fails.
    """
    if not script.is_file():
        raise SetvarsError(f"{script} is missing")
    passed = {name: environ[name] for name in PASSED_VARIABLES if name in environ}
    command = ["bash", "--noprofile", "--norc", "-c", SOURCE, "bash", str(script)]
    try:
        process = subprocess.run(
            command, env=passed, capture_output=True, stdin=subprocess.DEVNULL, timeout=TIMEOUT_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SetvarsError(f"{script} could not be sourced: {error}") from None
    if process.returncode != 0:
        output = process.stderr.decode(errors="replace").strip()
        raise SetvarsError(f"{script} ended with exit code {process.returncode}: {output}")
    variables = (entry.partition("=") for entry in process.stdout.decode().split("\0") if entry)
    return {name: value for name, _, value in variables if passed.get(name) != value and name not in IGNORED_VARIABLES}


def find_in_packages(path: str) -> Path:
    """Return the file in this interpreter's site-packages, or where it should be."""
    candidates = [Path(folder) / path for folder in sys.path if folder.endswith("site-packages")]
    default = candidates[0] if candidates else Path(path)
    return next((candidate for candidate in candidates if candidate.is_file()), default)
