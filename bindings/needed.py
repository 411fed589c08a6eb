"""Report the tools that setting up orch and building the bindings need and this machine lacks.

Run as a program it is the first step of `make setup`; setup.py imports it before it builds.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
import sysconfig
from pathlib import Path

# A missing tool -> its package on Debian and Ubuntu, and on Fedora and RHEL.
Missing = dict[str, tuple[str, str]]

HEADERS = Path(sysconfig.get_path("include"))


def missing_build_tools(headers: Path = HEADERS) -> Missing:
    """Return what building the bindings needs and this machine lacks."""
    compiler = os.environ.get("CXX", "g++").split()[0]
    missing: Missing = {}
    if shutil.which(compiler) is None:
        missing[f"a C++ compiler ('{compiler}')"] = ("g++", "gcc-c++")
    if not (headers / "Python.h").is_file():
        missing[f"the headers of {sys.executable} (Python.h)"] = ("python3-dev", "python3-devel")
    return missing


def missing_setup_tools() -> Missing:
    """Return what `make setup` needs and this machine lacks."""
    missing = missing_build_tools()
    if importlib.util.find_spec("ensurepip") is None:
        missing["Python's venv"] = ("python3-venv", "python3")
    return missing


def describe(missing: Missing) -> str:
    """Return a message that names the missing tools and the packages to install."""
    debian, fedora = (" ".join(packages[column] for packages in missing.values()) for column in (0, 1))
    return (
        f"This machine lacks {', '.join(missing)}. Install it: "
        f"`apt install {debian}` (Debian, Ubuntu) or `dnf install {fedora}` (Fedora, RHEL)."
    )


if __name__ == "__main__" and (missing := missing_setup_tools()):
    sys.exit(f"orch: {describe(missing)}")
