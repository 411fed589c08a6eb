"""What the setvars.sh of Intel's bindings does to an environment; no shell around the ranks."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

# What a login gives; whatever else the launcher's environment holds cannot mislead the script.
KEPT = ("HOME", "USER", "LANG", "PATH", "LD_LIBRARY_PATH")
SECONDS = 60.0
# A script may read $1.. or print; only what it leaves in the environment counts.
SOURCE = 'file=$1; set --; . "$file" > /dev/null; env -0'


class SetvarsError(Exception):
    """The script is missing or fails; the text says which one and why."""


def sourced(script: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that sourcing the script sets or changes. Raises SetvarsError."""
    if not script.is_file():
        raise SetvarsError(f"{script} is missing")
    clean = {name: environ[name] for name in KEPT if name in environ}
    command = ["bash", "--noprofile", "--norc", "-c", SOURCE, "bash", str(script)]
    try:
        done = subprocess.run(command, env=clean, capture_output=True, stdin=subprocess.DEVNULL, timeout=SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SetvarsError(f"{script} could not be sourced: {error}") from None
    if done.returncode != 0:
        words = done.stderr.decode(errors="replace").strip()
        raise SetvarsError(f"{script} ended with exit code {done.returncode}: {words}")
    pairs = (entry.partition("=") for entry in done.stdout.decode().split("\0") if entry)
    found = {name: value for name, _, value in pairs}
    ignored = {"_", "SHLVL", "PWD", "OLDPWD"}
    return {n: v for n, v in found.items() if clean.get(n) != v and n not in ignored}


def in_packages(path: str) -> Path:
    """A file below this interpreter's site-packages, or the place where it should be."""
    found = [Path(folder) / path for folder in sys.path if folder.endswith("site-packages")]
    return next((one for one in found if one.is_file()), found[0] if found else Path(path))
