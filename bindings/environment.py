"""The build backend: setuptools, with the torch of the environment that pip installs into.

pip builds in an isolated environment. If the build required torch, pip would install its default
version there: several GB, and the resulting wheel would not fit the torch that is in use.
Therefore the installed packages are appended to the path of the build.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

from setuptools.build_meta import build_sdist, build_wheel, prepare_metadata_for_build_wheel  # noqa: F401


def installed_paths() -> list[str]:
    """Return the path of this Python without pip's isolation, which pip sets up by PYTHONPATH."""
    isolation = ("PYTHONPATH", "PYTHONNOUSERSITE")
    env = {name: value for name, value in os.environ.items() if name not in isolation}
    command = [sys.executable, "-c", "import json, sys; print(json.dumps(sys.path[1:]))"]
    paths: list[str] = json.loads(subprocess.check_output(command, env=env, text=True))
    return paths


sys.path += [path for path in installed_paths() if path not in sys.path]
