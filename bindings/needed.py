"""What setting up and building ask of this machine, told before anything is fetched.

Run alone, it is the first step of `make setup`; setup.py asks it for what building needs.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
import sysconfig
from pathlib import Path

# What is missing -> its package on Debian and Ubuntu, and on Fedora and RHEL.
Missing = dict[str, tuple[str, str]]


HEADERS = Path(sysconfig.get_path("include"))


def to_build(headers: Path = HEADERS) -> Missing:
    compiler = os.environ.get("CXX", "g++").split()[0]
    missing: Missing = {}
    if shutil.which(compiler) is None:
        missing[f"a C++ compiler ('{compiler}')"] = ("g++", "gcc-c++")
    if not (headers / "Python.h").is_file():
        missing[f"the headers of {sys.executable} (Python.h)"] = ("python3-dev", "python3-devel")
    return missing


def to_set_up() -> Missing:
    missing = to_build()
    if importlib.util.find_spec("ensurepip") is None:
        missing["Python's venv"] = ("python3-venv", "python3")
    return missing


def told(missing: Missing) -> str:
    debian, fedora = (" ".join(one[which] for one in missing.values()) for which in (0, 1))
    return (
        f"not on this machine: {', '.join(missing)}. Install it: "
        f"`apt install {debian}` (Debian, Ubuntu) or `dnf install {fedora}` (Fedora, RHEL)."
    )


if __name__ == "__main__" and (lacking := to_set_up()):
    sys.exit(f"orch: {told(lacking)}")
